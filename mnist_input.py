"""From the IDX files of MNIST's family to examples, and from their bytes to what the model takes.

Shapes: n examples, b examples in a batch, 784 = 28 * 28 pixels of an image, row by row.
"""

import gzip
import math
import os
import re
import zlib
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow.compat.v1 as tf
from absl import flags

NUM_CLASSES = 10
flags.DEFINE_integer("num_classes", NUM_CLASSES, "number of classes, such as 26, 47 or 62 for EMNIST", 2, 256)
flags.DEFINE_integer("first_label", 0, "label of the first class, such as 1 for EMNIST's letters", 0, 255)

IMAGE_SHAPE = (28, 28)
NUM_PIXELS = math.prod(IMAGE_SHAPE)
INPUT = tf.TensorSpec(IMAGE_SHAPE, tf.uint8, "images")  # what an exported model takes of an example
PREDICTS = "examples/digits/predict.py PICTURE..."  # the launcher tells how to use the model
FEATURES = {  # of an example in a TFRecord file: its pixels as they lie in memory, and its class
    "image": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([], tf.int64),
}

# The first four bytes of an IDX file: two zeros, 8 for "unsigned byte", and the number of dimensions.
# http://yann.lecun.com/exdb/mnist/
IMAGES_MAGIC = 0x00000803
LABELS_MAGIC = 0x00000801
WORDS = {"train": "train", "t10k": "t10k|test"}  # in the names of the files of a split
REMEDY = "put the right file there, or give an empty --data_dir to download MNIST"


class DataError(Exception):
    """A data file is missing or is not what it should be."""


class Examples(NamedTuple):
    """Images and their labels: arrays, or tensors."""

    images: Any  # uint8 [n, 784], 0 is paper and 255 is ink
    labels: Any  # integers [n], from 0 on


def find_classes(data_dir: str) -> list[str]:
    """Return the labels as the files have them, which are the names of the classes."""
    first, num_classes = (int(flags.FLAGS[name].value or 0) for name in ("first_label", "num_classes"))
    return [str(first + label) for label in range(num_classes)]


def fetch(data_dir: str) -> None:
    """Put those of MNIST's four files that are missing into a folder that is empty, or has some of them."""
    from runtime.data import download  # only who has an empty folder needs it

    download.fetch(data_dir)


def load(data_dir: str, split: str) -> Examples:
    """Read and check one split, `train` or `t10k`, of MNIST or of a data set with the same format.

    Raises:
      DataError: a file is missing or is no such IDX file, or the two files do not belong together.
    """
    images_path, labels_path = (find_file(data_dir, split, kind) for kind in ("images-idx3", "labels-idx1"))
    images = _read_idx(images_path, IMAGES_MAGIC, IMAGE_SHAPE).reshape(-1, NUM_PIXELS)
    labels = _read_idx(labels_path, LABELS_MAGIC, item_shape=())
    if len(images) != len(labels):
        raise DataError(
            f"{images_path} has {len(images)} images, but {labels_path} has {len(labels)} labels: they belong"
            " to different data sets"
        )
    first, num_classes = (int(flags.FLAGS[name].value or 0) for name in ("first_label", "num_classes"))
    are_wrong = (labels < first) | (labels >= first + num_classes)
    if are_wrong.any():
        index = int(np.argmax(are_wrong))
        raise DataError(
            f"{labels_path}: label {index} is {labels[index]}, expected {first} to {first + num_classes - 1}; the"
            f" labels are {labels.min()} to {labels.max()}: give --num_classes and --first_label"
        )
    return Examples(images, labels - np.uint8(first))


def find_file(data_dir: str, split: str, kind: str) -> str:
    """Return the path of the images or labels of a split: gzipped or not, with a dash or a dot before `idx`.

    Raises:
      DataError: there is none, or there are those of several data sets.
    """
    pattern = re.compile(rf"(.*-)?({WORDS[split]})-{kind.replace('-', '[-.]')}-ubyte(\.gz)?")
    try:
        names = sorted(os.listdir(data_dir))
    except OSError as error:
        raise DataError(f"--data_dir {data_dir} cannot be read: {error.strerror}; give another one") from error
    found: dict[str, str] = {}  # by data set
    for match in filter(None, map(pattern.fullmatch, names)):
        path, other = (os.path.join(data_dir, name) for name in (match[0], found.setdefault(match[1], match[0])))
        if path != other and _read(path) != _read(other):
            raise DataError(f"{other} and {path} differ: delete the wrong one")
    if len(found) > 1:
        several = ", ".join(found.values())
        raise DataError(f"--data_dir {data_dir} has several data sets, {several}: give a folder with only one")
    if not found:
        path, has = os.path.join(data_dir, f"{split}-{kind}-ubyte.gz"), ", ".join(names[:5]) or "nothing"
        raise DataError(f"{path} is missing, and {data_dir} has {has}: {REMEDY}")
    return os.path.join(data_dir, *found.values())


def _read(path: str) -> bytes:
    """Read a file that may be gzipped, whatever its name says."""
    try:
        with open(path, "rb") as file:
            content = file.read()
        return gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content  # faster than gzip.open()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}): {REMEDY}") from error


def _read_idx(path: str, magic: int, item_shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes, gzipped or not, as uint8 `[n, *item_shape]`, n > 0."""
    content = _read(path)
    header_bytes = 4 * (2 + len(item_shape))
    if len(content) < header_bytes:
        raise DataError(f"{path} has {len(content)} bytes, expected a header of {header_bytes}: {REMEDY}")
    file_magic, num_items, *file_shape = np.frombuffer(content[:header_bytes], ">u4").tolist()
    if file_magic != magic:
        raise DataError(f"{path} begins with 0x{file_magic:08x}, expected 0x{magic:08x}: {REMEDY}")
    if tuple(file_shape) != item_shape:
        raise DataError(f"{path} has images of {file_shape} pixels, expected {list(item_shape)}: {REMEDY}")
    expected_bytes = header_bytes + num_items * math.prod(item_shape)
    if num_items == 0 or len(content) != expected_bytes:
        raise DataError(
            f"{path} has {len(content)} bytes, expected {expected_bytes} for the {num_items} items in its header (at"
            f" least 1): {REMEDY}"
        )
    return np.frombuffer(content, np.uint8, offset=header_bytes).reshape(num_items, *item_shape)


def parse(serialized: tf.Tensor) -> Examples:
    """Build the examples, as `load()` returns them, of records in TFRecord files, string [b]."""
    parsed = tf.io.parse_example(serialized, FEATURES)
    pixels, labels = tf.io.decode_raw(parsed["image"], tf.uint8), parsed["label"]
    last = int(flags.FLAGS["num_classes"].value or 0) - 1
    are_right = tf.reduce_all((labels >= 0) & (labels <= last))
    with tf.control_dependencies([tf.Assert(are_right, [f"expected labels from 0 to {last}, found", labels])]):
        return Examples(tf.reshape(pixels, [-1, NUM_PIXELS]), tf.identity(labels))


def decode(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Build what the model takes: images, float32 [b, 784] in [0, 1], and labels, int32 [b]; both come as integers."""
    return to_inputs(images), tf.cast(labels, tf.int32)


def to_inputs(images: tf.Tensor) -> tf.Tensor:
    """Turn pixels, uint8 `[b, 784]`, into float32 `[b, 784]` in [0, 1]."""
    return tf.cast(images, tf.float32) * (1 / 255)  # faster than a division
