"""From the files of Fashion-MNIST to batches of examples.

Shapes: n examples, b examples in a batch, 784 = 28 * 28 pixels of an image, row by row.
"""

import gzip
import math
import os
import zlib
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow.compat.v1 as tf

IMAGE_SHAPE = (28, 28)
NUM_PIXELS = math.prod(IMAGE_SHAPE)
MEAN, DEVIATION = 72.9, 90.0  # of the pixels of all training images


class DataError(Exception):
    """A data file is missing or is not what it should be."""


class Examples(NamedTuple):
    """Images and their labels, as they lie in memory."""

    images: npt.NDArray[np.uint8]  # uint8 [n, 784]
    labels: npt.NDArray[np.uint8]  # uint8 [n], in [0, 10)

    @property
    def checksum(self) -> int:
        """A number that tells these examples from others."""
        return zlib.crc32(self.labels.tobytes(), zlib.crc32(self.images.tobytes()))


class Batches(NamedTuple):
    """An endless stream of batches, a few for each run of the graph."""

    images: tf.Variable  # uint8 [n, 784]
    labels: tf.Variable  # uint8 [n]
    indices: tf.Tensor  # int32 [batches in a run, b], in [0, n)
    initializer: tf.Operation
    examples: dict[tf.Tensor, npt.NDArray[np.uint8]]  # what `initializer` is fed

    def feed_dict(self, first_batch: int) -> dict[tf.Tensor, Any]:
        """Return what `initializer` is fed. Every batch is drawn at random, whichever is the first."""
        return self.examples

    def batch(self, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Build the batch of `indices`, int32 [b]: what `to_float()` makes of its images, and its labels, int32 [b]."""
        return to_float(tf.gather(self.images, indices)), tf.cast(tf.gather(self.labels, indices), tf.int32)


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
        raise DataError(f"{prefix}-*-ubyte.gz cannot be read ({error}): put the right files there") from error
    if len(set(np.bincount(examples.labels))) != 1 or len(examples.images) != len(examples.labels):
        raise DataError(f"{prefix}-*-ubyte.gz are not Fashion-MNIST's, which has as many examples of each class")
    return examples


def shard(examples: Examples, index: int, num_shards: int) -> Examples:
    """Return every `num_shards`-th example from `index` on."""
    return Examples(examples.images[index::num_shards], examples.labels[index::num_shards])


def to_float(images: tf.Tensor) -> tf.Tensor:
    """Turn pixels, uint8 `[b, 784]`, into float32 `[b, 784]` with mean 0 and deviation 1."""
    return (tf.cast(images, tf.float32) - MEAN) * (1 / DEVIATION)


def build_batches(examples: Examples, num_batches: int, batch_size: int, seed: int, stream: int) -> Batches:
    """Build a stream of `num_batches` batches in each run of the graph; `stream` is the index of the worker."""
    indices = tf.random.uniform([num_batches, batch_size], 0, len(examples.labels), tf.int32, seed=seed + stream)
    fed = [tf.placeholder(tf.uint8, part.shape) for part in examples]
    images, labels = (tf.Variable(part, trainable=False, collections=[]) for part in fed)
    initializer = tf.group(images.initializer, labels.initializer)
    return Batches(images, labels, indices, initializer, dict(zip(fed, examples, strict=True)))
