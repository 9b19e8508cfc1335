"""From MNIST's IDX files to batches of examples.

Shapes: n examples, b examples in a batch, 784 = 28 * 28 pixels of an image, row by row.
"""

import gzip
import math
import os
import sys
import zlib
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow.compat.v1 as tf

NUM_CLASSES = 10
IMAGE_SHAPE = (28, 28)
NUM_PIXELS = math.prod(IMAGE_SHAPE)

# The first four bytes of an IDX file: two zeros, 8 for "unsigned byte", and the number of dimensions.
# http://yann.lecun.com/exdb/mnist/
IMAGES_MAGIC = 0x00000803
LABELS_MAGIC = 0x00000801


class DataError(Exception):
    """A data file is missing or is not what it should be."""


class Examples(NamedTuple):
    """Images and their labels, as they lie in memory."""

    images: npt.NDArray[np.uint8]  # uint8 [n, 784], 0 is paper and 255 is ink
    labels: npt.NDArray[np.uint8]  # uint8 [n], in [0, 10)

    @property
    def checksum(self) -> int:
        """The CRC-32 of all bytes."""
        return zlib.crc32(self.labels.data, zlib.crc32(self.images.data))


class Batches(NamedTuple):
    """An endless stream of batches, a few for each run of the graph; run `initializer` first, with `feed_dict()`.

    The examples stay in memory as bytes. The stream carries indices: a run gathers and converts only what it uses.
    """

    images: tf.Variable  # uint8 [n, 784]
    labels: tf.Variable  # uint8 [n]
    indices: tf.Tensor  # int32 [batches in a run, b], in [0, n)
    initializer: tf.Operation
    examples: dict[tf.Tensor, npt.NDArray[np.uint8]]  # what the placeholders are fed
    first_example: tf.Tensor  # int64 [], a placeholder: how many examples earlier sessions have used
    batch_size: int

    def feed_dict(self, first_batch: int) -> dict[tf.Tensor, Any]:
        """Return what `initializer` is fed, so that the stream begins with batch `first_batch`."""
        return {**self.examples, self.first_example: first_batch * self.batch_size}

    def batch(self, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Build the batch of `indices`, int32 [b]: images, float32 [b, 784] in [0, 1]; labels, int32 [b] in [0, 10)."""
        with tf.name_scope("batch"):
            with self.images.graph.colocate_with(self.images.handle):  # of all examples, only the batch goes elsewhere
                images, labels = tf.gather(self.images, indices), tf.gather(self.labels, indices)
            return to_float(images), tf.cast(labels, tf.int32)


def load(data_dir: str, split: str) -> Examples:
    """Read and check one split, `train` or `t10k`, of MNIST or of a data set with the same format and file names.

    Raises:
      DataError: a file is missing or is no such IDX file, or the two files do not belong together.
    """
    images_path = os.path.join(data_dir, f"{split}-images-idx3-ubyte.gz")
    labels_path = os.path.join(data_dir, f"{split}-labels-idx1-ubyte.gz")
    images = _read_idx(images_path, IMAGES_MAGIC, item_shape=IMAGE_SHAPE).reshape(-1, NUM_PIXELS)
    labels = _read_idx(labels_path, LABELS_MAGIC, item_shape=())
    if len(images) != len(labels):
        raise DataError(
            f"{images_path} has {len(images)} images, but {labels_path} has {len(labels)} labels: these are not"
            " files of one data set"
        )
    if labels.max() >= NUM_CLASSES:
        index = int(np.argmax(labels >= NUM_CLASSES))
        raise DataError(f"{labels_path}: label {index} is {labels[index]}, expected 0 to {NUM_CLASSES - 1}")
    return Examples(images, labels)


def _read_idx(path: str, magic: int, item_shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Read a gzipped IDX file of unsigned bytes as uint8 `[n, *item_shape]`, n > 0."""
    remedy = "put the right file there, or delete it to have MNIST's fetched"
    try:
        with open(path, "rb") as file:
            content = gzip.decompress(file.read())  # faster than reading from gzip.open()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read as a gzip file ({error}): {remedy}") from error

    header_bytes = 4 * (2 + len(item_shape))
    if len(content) < header_bytes:
        raise DataError(f"{path} has {len(content)} bytes, expected a header of {header_bytes}: {remedy}")
    file_magic, num_items, *file_shape = np.frombuffer(content[:header_bytes], ">u4").tolist()
    if file_magic != magic:
        raise DataError(f"{path} begins with 0x{file_magic:08x}, expected 0x{magic:08x}: {remedy}")
    if tuple(file_shape) != item_shape:
        raise DataError(f"{path} has images of {file_shape} pixels, expected {list(item_shape)}: {remedy}")
    expected_bytes = header_bytes + num_items * math.prod(item_shape)
    if num_items == 0 or len(content) != expected_bytes:
        raise DataError(
            f"{path} has {len(content)} bytes, expected {expected_bytes} for the {num_items} items that its header"
            f" promises, one at least: {remedy}"
        )
    return np.frombuffer(content, np.uint8, offset=header_bytes).reshape(num_items, *item_shape)


def shard(examples: Examples, index: int, num_shards: int) -> Examples:
    """Return every `num_shards`-th example from `index` on: shards are disjoint and complete.

    Raises:
      DataError: there are fewer examples than shards, so this one is empty.
    """
    if len(examples.labels) <= index:
        raise DataError(f"{len(examples.labels)} examples cannot be shared by {num_shards} workers: use fewer workers")
    return Examples(examples.images[index::num_shards], examples.labels[index::num_shards])


def to_float(images: tf.Tensor) -> tf.Tensor:
    """Turn pixels, uint8 `[b, 784]`, into float32 `[b, 784]` in [0, 1]."""
    return tf.cast(images, tf.float32) * (1 / 255)  # faster than a division


def build_batches(examples: Examples, num_batches: int, batch_size: int, seed: int, stream: int) -> Batches:
    """Build an endless stream of shuffled batches.

    Each epoch uses every example once, in a new order that `seed`, `stream` and the number of the epoch determine. A
    batch may span the end of an epoch, so none is ever short.

    Args:
      examples: usually one worker's shard; each session is fed them once, and they are no part of the graph.
      num_batches: how many batches a run of the graph may use.
      batch_size: b, at least 1; it may exceed the number of examples.
      seed: the run's seed, in [0, 2**31).
      stream: the index of the worker, so that workers shuffle differently.
    """

    @tf.autograph.experimental.do_not_convert  # it has no control flow to convert, and looking for it takes time
    def shuffle(epoch: tf.Tensor) -> tf.Tensor:
        run_seed = tf.constant([seed, stream], tf.int64)
        order = tf.random.experimental.stateless_shuffle(
            tf.range(num_examples), tf.random.experimental.stateless_fold_in(run_seed, epoch)
        )
        return order[tf.maximum(first_example - epoch * num_examples, 0) :]  # of the first epoch, what is left

    num_examples = len(examples.labels)
    first_example = tf.placeholder(tf.int64, [], name="first_example")
    epochs = tf.data.Dataset.range(first_example // num_examples, sys.maxsize)
    indices = epochs.map(shuffle).rebatch(num_batches * batch_size, drop_remainder=True).prefetch(2)
    # There is nothing to tune, and closing a session would wait for the autotuner's thread, which may sleep a minute.
    options = tf.data.Options()
    options.autotune.enabled = False
    iterator = tf.data.make_initializable_iterator(indices.with_options(options))

    fed = [tf.placeholder(tf.uint8, part.shape) for part in examples]
    images, labels = (tf.Variable(part, trainable=False, collections=[]) for part in fed)
    return Batches(
        images,
        labels,
        tf.reshape(iterator.get_next(), [num_batches, batch_size]),
        tf.group(iterator.initializer, images.initializer, labels.initializer),
        dict(zip(fed, examples, strict=True)),
        first_example,
        batch_size,
    )
