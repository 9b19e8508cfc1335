"""Read the files of Fashion-MNIST into examples, and turn their bytes into inputs of the model.

Shapes: n examples, b examples in a batch, 784 = 28 * 28 pixels of an image, row by row.
"""

import gzip
import os
import zlib
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow.compat.v1 as tf

INPUT = tf.TensorSpec((28, 28), tf.uint8, "images")  # what an exported model takes of an example
NUM_PIXELS = INPUT.shape.num_elements()
FEATURES = {  # of an example in a TFRecord file
    "image": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([], tf.int64),
}
MEAN, DEVIATION = 72.9, 90.0  # of the pixels of all training images


class DataError(Exception):
    """A data file is missing or is not what it should be."""


class Examples(NamedTuple):
    """Images and their labels, in memory."""

    images: npt.NDArray[np.uint8]  # uint8 [n, 784]
    labels: npt.NDArray[np.uint8]  # uint8 [n], in [0, 10)


def load(data_dir: str, split: str) -> Examples:
    """Read one split, `train` or `t10k`.

    Raises:
      DataError: it cannot be read, or is not Fashion-MNIST's.
    """
    prefix = os.path.join(data_dir, split)
    try:
        with (
            gzip.open(f"{prefix}-images-idx3-ubyte.gz") as images,
            gzip.open(f"{prefix}-labels-idx1-ubyte.gz") as labels,
        ):
            examples = Examples(
                np.frombuffer(images.read(), np.uint8, offset=16).reshape(-1, NUM_PIXELS),
                np.frombuffer(labels.read(), np.uint8, offset=8),
            )
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"{prefix}-*-ubyte.gz cannot be read ({error}): put Fashion-MNIST's files there") from error
    if len(set(np.bincount(examples.labels))) != 1 or len(examples.images) != len(examples.labels):
        raise DataError(f"{prefix}-*-ubyte.gz are not Fashion-MNIST's, whose classes have equally many examples")
    return examples


def parse(serialized: tf.Tensor) -> Examples:
    """Build examples like those from `load()` from the records of TFRecord files, string [b]."""
    parsed = tf.io.parse_example(serialized, FEATURES)
    return Examples(tf.reshape(tf.io.decode_raw(parsed["image"], tf.uint8), [-1, NUM_PIXELS]), parsed["label"])


def decode(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Build the inputs of the model, with `to_inputs()`, and the labels, int32 [b], of a batch."""
    return to_inputs(images), tf.cast(labels, tf.int32)


def to_inputs(images: tf.Tensor) -> tf.Tensor:
    """Turn pixels, uint8 `[b, 784]`, into float32 `[b, 784]` with mean 0 and deviation 1."""
    return (tf.cast(images, tf.float32) - MEAN) * (1 / DEVIATION)
