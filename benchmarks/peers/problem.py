"""The problem that every peer solves: the flags, the data, the model, where its training starts, and the rates."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from absl import flags

import mnist_input
from benchmarks.peers import rates
from runtime.data import download
from runtime.data.memory import MemorySource

HIDDEN_UNITS = 100
BATCH_SIZE = 100  # of each worker
NUM_WORKERS = 2  # of a distributed peer
MOMENTUM = 0.9  # Nesterov's

FLAGS = flags.FLAGS
flags.DEFINE_string("data_dir", download.default_data_dir(), "folder with the four MNIST files")
flags.DEFINE_float("learning_rate", 0.3, "greatest learning rate of the one cycle")
flags.DEFINE_integer(
    "train_steps", 3000, "global steps: batches, or rounds of batches where all workers update together"
)
flags.DEFINE_integer("num_threads", 1, "threads of an operation")
flags.DEFINE_integer("seed", 0, "seed of the initial weights and of the order of examples")
flags.DEFINE_float("snapshot_secs", 0.05, "period of the snapshots; 0: none, and only the test accuracy is printed")


class Parameters(NamedTuple):
    """The parameters of the model, 784-100-10 with ReLU: float32 [784, 100], [100], [100, 10] and [10]."""

    hidden_weights: npt.NDArray[np.float32]
    hidden_biases: npt.NDArray[np.float32]
    logits_weights: npt.NDArray[np.float32]
    logits_biases: npt.NDArray[np.float32]


def initial_parameters() -> Parameters:
    """Return the common start of the peers that have none of their own: Glorot's uniform weights and zero biases."""
    generator = np.random.default_rng(FLAGS.seed)

    def weights(num_inputs: int, num_outputs: int) -> npt.NDArray[np.float32]:
        limit = math.sqrt(6 / (num_inputs + num_outputs))
        return generator.uniform(-limit, limit, [num_inputs, num_outputs]).astype(np.float32)

    num_classes = mnist_input.NUM_CLASSES
    return Parameters(
        weights(mnist_input.NUM_PIXELS, HIDDEN_UNITS),
        np.zeros(HIDDEN_UNITS, np.float32),
        weights(HIDDEN_UNITS, num_classes),
        np.zeros(num_classes, np.float32),
    )


def make_rates() -> npt.NDArray[np.float32]:
    """Return the learning rate of each step, and of all later ones: float32 [train_steps + 1]."""
    return rates.make_rates(FLAGS.learning_rate, FLAGS.train_steps)


def load_train(index: int = 0, num_workers: int = 1) -> mnist_input.Examples:
    """Read the training examples of worker `index` of `num_workers`."""
    source = MemorySource(mnist_input.load(FLAGS.data_dir, "train"))
    return mnist_input.Examples(*source.share(index, num_workers).load())


def compute_logits(
    parameters: Sequence[npt.NDArray[np.float32]], inputs: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Return the model's logits, float32 [n, 10], from its `Parameters` and inputs, float32 [n, 784] in [0, 1]."""
    hidden_weights, hidden_biases, logits_weights, logits_biases = parameters
    return np.maximum(inputs @ hidden_weights + hidden_biases, 0) @ logits_weights + logits_biases
