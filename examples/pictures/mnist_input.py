"""From a folder of pictures by class to examples: PICTURES/CLASS/*.png or *.jpg, of any size.

Where there is PICTURES/train, that is for training, and PICTURES/test for testing, each with a folder of each class;
else every tenth picture is for testing. Shapes: b examples in a batch, pictures of [h, w, c].
"""

import glob
import os

import tensorflow.compat.v1 as tf

INPUT = tf.TensorSpec([32, 32, 3], tf.uint8, "images")  # [height, width, 1] makes them grey
ENDINGS = (".png", ".jpg", ".jpeg")
TEST_PERIOD = 10
SPLITS = {"train": "train", "t10k": "test"}


class DataError(Exception):
    """There are no pictures."""


def list_files(data_dir: str, split: str) -> tuple[list[str], list[int]]:
    """Return the paths of the pictures of one split, `train` or `t10k`, and their labels.

    Raises:
      DataError: there are none.
    """
    folder = os.path.join(data_dir, SPLITS[split])
    is_split = os.path.isdir(os.path.join(data_dir, SPLITS["train"]))
    paths = sorted(glob.glob(os.path.join(glob.escape(folder if is_split else data_dir), "*", "*")))
    paths = [path for path in paths if path.lower().endswith(ENDINGS)]
    if not is_split:
        paths = [path for number, path in enumerate(paths) if (number % TEST_PERIOD == 0) == (split == "t10k")]
    if not paths:
        raise DataError(f"{folder if is_split else data_dir} has no pictures: expected CLASS/*.png or *.jpg in it")
    classes, names = find_classes(data_dir), [os.path.basename(os.path.dirname(path)) for path in paths]
    if unknown := set(names).difference(classes):
        raise DataError(f"{folder} has the class {min(unknown)}, but the pictures to train on are of {classes}")
    return paths, [classes.index(name) for name in names]


def build_dataset(files: tf.data.Dataset, split: str) -> tf.data.Dataset:
    """Return the pictures of some of these files, each with its label: (uint8 [h, w, c], int32 [])."""

    def read(path: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        picture = tf.io.decode_png(tf.io.read_file(path), channels=INPUT.shape[2])  # and JPEG
        picture = tf.image.resize(picture, INPUT.shape[:2], method="area")
        return tf.cast(tf.round(picture), tf.uint8), label

    return files.map(read, num_parallel_calls=2)


def find_classes(data_dir: str) -> list[str]:
    """Return the names of the classes, which are folders; the place of one is its label."""
    of_training = os.path.join(data_dir, SPLITS["train"])
    with os.scandir(of_training if os.path.isdir(of_training) else data_dir) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def to_inputs(images: tf.Tensor) -> tf.Tensor:
    """Turn pixels, uint8 [b, h, w, c], into float32 in [-1, 1]."""
    return tf.cast(images, tf.float32) * (1 / 127.5) - 1


def decode(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Build what the model takes of a batch for training: some pictures are mirrored."""
    return to_inputs(tf.image.random_flip_left_right(images)), labels
