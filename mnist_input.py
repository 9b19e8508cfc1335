"""From MNIST's IDX files to examples, and from their bytes to what the model takes.

`python mnist_input.py convert --shards N` writes them as TFRecord files.

Shapes: n examples, b examples in a batch, 784 = 28 * 28 pixels of an image, row by row.
"""

import contextlib
import gzip
import math
import os
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow.compat.v1 as tf

NUM_CLASSES = 10
IMAGE_SHAPE = (28, 28)
NUM_PIXELS = math.prod(IMAGE_SHAPE)
RECORD_BYTES = NUM_PIXELS + 1  # of an example in a TFRecord file: its pixels and its label
PART_SIZE = 10_000  # examples that are converted at once

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


def load(data_dir: str, split: str) -> Examples:
    """Read and check one split, `train` or `t10k`, of MNIST or of a data set with the same format and file names.

    Raises:
      DataError: a file is missing or is no such IDX file, or the two files do not belong together.
    """
    images_path, labels_path = _paths(data_dir, split)
    images = _read_idx(images_path, IMAGES_MAGIC, IMAGE_SHAPE).reshape(-1, NUM_PIXELS)
    labels = _read_idx(labels_path, LABELS_MAGIC, item_shape=())
    _check_counts(data_dir, split, len(images), len(labels))
    _check_labels(labels_path, labels, first=0)
    return Examples(images, labels)


def read_records(data_dir: str, split: str) -> Iterator[tuple[npt.NDArray[np.uint8], int]]:
    """Yield what `load()` returns as records, uint8 [n, 785], part by part, each with the number of all of them.

    Raises:
      DataError: see `load()`.
    """
    images_path, labels_path = _paths(data_dir, split)
    images, labels = _read_idx_parts(images_path, IMAGES_MAGIC, IMAGE_SHAPE), _read_idx_parts(labels_path, LABELS_MAGIC)
    first = 0
    for (of_images, num_images), (of_labels, num_labels) in zip(images, labels, strict=False):
        _check_counts(data_dir, split, num_images, num_labels)
        _check_labels(labels_path, of_labels, first)
        yield np.concatenate([of_images.reshape(-1, NUM_PIXELS), of_labels[:, None]], axis=1), num_images
        first += len(of_labels)


def _paths(data_dir: str, split: str) -> tuple[str, str]:
    """Return where the images and the labels of a split are."""
    images, labels = f"{split}-images-idx3-ubyte.gz", f"{split}-labels-idx1-ubyte.gz"
    return os.path.join(data_dir, images), os.path.join(data_dir, labels)


def _check_counts(data_dir: str, split: str, num_images: int, num_labels: int) -> None:
    images_path, labels_path = _paths(data_dir, split)
    if num_images != num_labels:
        raise DataError(
            f"{images_path} has {num_images} images, but {labels_path} has {num_labels} labels: these are not"
            " files of one data set"
        )


def _check_labels(path: str, labels: npt.NDArray[np.uint8], first: int) -> None:
    """Check labels, the first of which has the number `first` in its file."""
    if labels.max() >= NUM_CLASSES:
        index = int(np.argmax(labels >= NUM_CLASSES))
        raise DataError(f"{path}: label {first + index} is {labels[index]}, expected 0 to {NUM_CLASSES - 1}")


def _read_idx(path: str, magic: int, item_shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Read a gzipped IDX file of unsigned bytes as uint8 `[n, *item_shape]`, n > 0."""
    with _explaining_errors(path), open(path, "rb") as file:
        content = gzip.decompress(file.read())  # faster than reading from gzip.open()
    header_bytes = 4 * (2 + len(item_shape))
    num_items = _check_header(path, content[:header_bytes], magic, item_shape)
    _check_length(path, len(content), header_bytes, num_items, item_shape)
    return np.frombuffer(content, np.uint8, offset=header_bytes).reshape(num_items, *item_shape)


def _read_idx_parts(
    path: str, magic: int, item_shape: tuple[int, ...] = ()
) -> Iterator[tuple[npt.NDArray[np.uint8], int]]:
    """Yield what `_read_idx()` returns in parts of `PART_SIZE`, each with the number of all items."""
    with _explaining_errors(path), gzip.open(path) as file:
        header_bytes = 4 * (2 + len(item_shape))
        num_items = _check_header(path, file.read(header_bytes), magic, item_shape)
        for first in range(0, max(num_items, 1), PART_SIZE):
            num_in_part = min(PART_SIZE, num_items - first)
            content = file.read(num_in_part * math.prod(item_shape))
            is_last = first + num_in_part == num_items
            if len(content) < num_in_part * math.prod(item_shape) or is_last:
                _check_length(path, file.tell() + len(file.read(1)), header_bytes, num_items, item_shape)
            yield np.frombuffer(content, np.uint8).reshape(num_in_part, *item_shape), num_items


REMEDY = "put the right file there, or delete it to have MNIST's fetched"


@contextlib.contextmanager
def _explaining_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read as a gzip file ({error}): {REMEDY}") from error


def _check_header(path: str, header: bytes, magic: int, item_shape: tuple[int, ...]) -> int:
    """Check the header of an IDX file, and return how many items it promises."""
    header_bytes = 4 * (2 + len(item_shape))
    if len(header) < header_bytes:
        raise DataError(f"{path} has {len(header)} bytes, expected a header of {header_bytes}: {REMEDY}")
    file_magic, num_items, *file_shape = np.frombuffer(header, ">u4").tolist()
    if file_magic != magic:
        raise DataError(f"{path} begins with 0x{file_magic:08x}, expected 0x{magic:08x}: {REMEDY}")
    if tuple(file_shape) != item_shape:
        raise DataError(f"{path} has images of {file_shape} pixels, expected {list(item_shape)}: {REMEDY}")
    return int(num_items)


def _check_length(path: str, num_bytes: int, header_bytes: int, num_items: int, item_shape: tuple[int, ...]) -> None:
    expected_bytes = header_bytes + num_items * math.prod(item_shape)
    if num_items == 0 or num_bytes != expected_bytes:
        raise DataError(
            f"{path} has {num_bytes} bytes, expected {expected_bytes} for the {num_items} items that its header"
            f" promises, one at least: {REMEDY}"
        )


def split_records(records: Any) -> Examples:
    """Split records of TFRecord files, uint8 [n, 785], an array or a tensor."""
    return Examples(records[:, :NUM_PIXELS], records[:, NUM_PIXELS])


def decode(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Build what the model takes: images, float32 [b, 784] in [0, 1], and labels, int32 [b]; both come as uint8."""
    return to_float(images), tf.cast(labels, tf.int32)


def to_float(images: tf.Tensor) -> tf.Tensor:
    """Turn pixels, uint8 `[b, 784]`, into float32 `[b, 784]` in [0, 1]."""
    return tf.cast(images, tf.float32) * (1 / 255)  # faster than a division


if __name__ == "__main__":
    from runtime.data import convert  # only this command needs it

    convert.main(read_records, DataError)
