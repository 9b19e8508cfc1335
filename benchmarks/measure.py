"""What all peers share: the flags, the data, the model's start, the clock, and the last line.

The clock starts at the end of the first step, so that what is built, traced or compiled in that step counts for nobody.
Examples/s are those of the last three quarters of the time, when every process is at work and warm. While the clock
runs, one process keeps a snapshot of the parameters every `--snapshot_secs`; what that costs is a part of the
training time, alike for all. Only afterwards the snapshots are evaluated, on all test images, in numpy.
"""

import json
import math
import os
import pathlib
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

# These are read when numpy, TensorFlow and gRPC are imported: no accelerator, no chatter, no proxy between processes,
# and for numpy, which only evaluates, no threads that wait in a loop for each other.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_GRPC_DEFAULT_OPTIONS", "grpc.enable_http_proxy=0")
sys.path.append(str(pathlib.Path(__file__).parents[1]))  # the project is run from its checkout, not installed

import numpy as np
import numpy.typing as npt
from absl import flags

import mnist_input
from runtime import download

HIDDEN_UNITS = 100
BATCH_SIZE = 100  # of each worker
NUM_WORKERS = 2  # of a peer that is distributed
TARGET_ACCURACY = 0.975
WARM_UP = 0.25  # of the training time
MOMENTUM = 0.9

FLAGS = flags.FLAGS
flags.DEFINE_string("data_dir", download.default_data_dir(), "the four MNIST files")
flags.DEFINE_enum("optimizer", "adam", ["adam", "sgd", "momentum"], "the optimizer; momentum is 0.9")
flags.DEFINE_float("learning_rate", 0.001, "of the optimizer")
flags.DEFINE_integer("train_steps", 3000, "global steps: batches, or where all workers update together, rounds of them")
flags.DEFINE_integer("seed", 0, "of the initial weights and the order of examples")
flags.DEFINE_float("snapshot_secs", 0.1, "period of the snapshots")


class Parameters(NamedTuple):
    """Those of the model, 784-100-10 with ReLU: float32 [784, 100], [100], [100, 10] and [10]."""

    hidden_weights: npt.NDArray[np.float32]
    hidden_biases: npt.NDArray[np.float32]
    logits_weights: npt.NDArray[np.float32]
    logits_biases: npt.NDArray[np.float32]


class _Snapshot(NamedTuple):
    secs: float  # since the clock started
    global_step: int
    parameters: Sequence[npt.NDArray[np.float32]]


def initial_parameters() -> Parameters:
    """Return where every peer starts that has no habits of its own: Glorot's uniform weights, and biases of zero."""
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


def load_train(index: int = 0, num_workers: int = 1) -> mnist_input.Examples:
    """Read what worker `index` of `num_workers` trains on."""
    return mnist_input.shard(mnist_input.load(FLAGS.data_dir, "train"), index, num_workers)


def compute_logits(
    parameters: Sequence[npt.NDArray[np.float32]], inputs: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Return the model's logits, float32 [n, 10], from its `Parameters` and inputs, float32 [n, 784] in [0, 1]."""
    hidden_weights, hidden_biases, logits_weights, logits_biases = parameters
    return np.maximum(inputs @ hidden_weights + hidden_biases, 0) @ logits_weights + logits_biases


class Clock:
    """Times one run, and keeps what the model was when."""

    def __init__(self, examples_per_step: int = BATCH_SIZE):
        """Prepare to count `examples_per_step` for each global step."""
        self._examples_per_step = examples_per_step
        self._snapshots: list[_Snapshot] = []

    def start(self) -> None:
        """Start, at the end of the first step."""
        self._started_at = time.perf_counter()
        self._due_at = self._started_at + FLAGS.snapshot_secs

    def is_due(self) -> bool:
        """Return whether it is time for the next snapshot."""
        return time.perf_counter() >= self._due_at

    def keep(self, global_step: int, parameters: Sequence[npt.NDArray[np.float32]]) -> None:
        """Keep a snapshot; the arrays must be copies, and not views of what is trained."""
        now = time.perf_counter()
        self._snapshots.append(_Snapshot(now - self._started_at, global_step, parameters))
        self._due_at = now + FLAGS.snapshot_secs

    def stop(self, global_step: int) -> None:
        """Stop, at the end of the last step."""
        self._train_secs = time.perf_counter() - self._started_at
        self._last_step = global_step

    def print_result(
        self,
        parameters: Sequence[npt.NDArray[np.float32]],
        compute_logits: Callable[..., npt.NDArray[np.float32]] = compute_logits,
        more: Mapping[str, float] = types.MappingProxyType({}),
    ) -> None:
        """Evaluate, and print the last line: one JSON object.

        Args:
          parameters: what was trained, in the end.
          compute_logits: the model, if it is another one.
          more: what else the line has.
        """
        images, labels = mnist_input.load(FLAGS.data_dir, "t10k")
        inputs = np.divide(images, 255, dtype=np.float32)

        def accuracy(snapshot: _Snapshot) -> float:
            return float(np.mean(np.argmax(compute_logits(snapshot.parameters, inputs), axis=1) == labels))

        end = _Snapshot(self._train_secs, self._last_step, parameters)
        reached = next((s for s in [*self._snapshots, end] if accuracy(s) >= TARGET_ACCURACY), None)
        start = next((s for s in self._snapshots if s.secs >= WARM_UP * self._train_secs), None)
        if not start:
            sys.exit("error: the run was too short to measure: give more --train_steps")
        num_examples = (end.global_step - start.global_step) * self._examples_per_step
        result = {
            "examples_per_sec": round(num_examples / (end.secs - start.secs), 1),
            "train_secs": round(self._train_secs, 3),
            "global_step": self._last_step,
            "secs_to_target": round(reached.secs, 3) if reached else None,
            "steps_to_target": reached.global_step if reached else None,
            "test_accuracy": round(accuracy(end), 6),
            **more,
        }
        print(json.dumps(result), flush=True)


def train(
    take_steps: Callable[[], object],
    read_parameters: Callable[[], Parameters],
    steps_per_call: int = 1,
    examples_per_step: int = BATCH_SIZE,
    is_measuring: bool = True,
) -> None:
    """Train for `--train_steps`, rounded up to whole calls, and print the result.

    Args:
      take_steps: takes `steps_per_call` global steps.
      read_parameters: returns a copy of what is trained.
      steps_per_call: what one call takes.
      examples_per_step: in a global step.
      is_measuring: whether this is the process that keeps snapshots, and prints the result.
    """
    clock = Clock(examples_per_step)
    for step in range(steps_per_call, FLAGS.train_steps + steps_per_call, steps_per_call):
        take_steps()
        if step == steps_per_call:
            clock.start()
        elif is_measuring and clock.is_due():
            clock.keep(step, read_parameters())
    clock.stop(step)
    if is_measuring:
        clock.print_result(read_parameters())
