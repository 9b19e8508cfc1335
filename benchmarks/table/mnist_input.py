"""Examples of eight random numbers, and random labels."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow.compat.v1 as tf

NUM_IDS = 8
NUM_EXAMPLES = {"train": 200_000, "t10k": 1000}
INPUT = tf.TensorSpec([NUM_IDS], tf.int32, "numbers")


class DataError(Exception):
    """Nothing raises it."""


class Examples(NamedTuple):
    """The examples, as they lie in memory."""

    numbers: npt.NDArray[np.int32]  # int32 [n, 8], at least 0
    labels: npt.NDArray[np.uint8]  # uint8 [n], 0 or 1


def load(data_dir: str, split: str) -> Examples:
    """Make one split."""
    generator, size = np.random.default_rng(0), NUM_EXAMPLES[split]
    numbers = generator.integers(2**31, size=[size, NUM_IDS], dtype=np.int32)
    return Examples(numbers, generator.integers(2, size=size, dtype=np.uint8))


def decode(numbers: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Build what the model takes of a batch."""
    return numbers, tf.cast(labels, tf.int32)


def to_inputs(numbers: tf.Tensor) -> tf.Tensor:
    """Return examples as they are."""
    return numbers
