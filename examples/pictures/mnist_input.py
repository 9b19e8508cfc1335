"""Read pictures of any format and size from a folder for each class, PICTURES/CLASS/*.jpg.

`runtime/data/pictures.py` says which files count. Shapes: b examples in a batch, pictures of [h, w, c].
"""

import tensorflow.compat.v1 as tf

from runtime.data import pictures

INPUT = tf.TensorSpec([32, 32, 3], tf.uint8, "images")  # [height, width, 1] makes them grey

PREDICTS = "examples/pictures/predict.py PICTURE..."  # the launcher tells how to use the model

find_classes = pictures.find_classes  # their names: the place of one is its label
list_files = pictures.list_pictures  # paths, and labels


def build_dataset(files: tf.data.Dataset, split: str) -> tf.data.Dataset:
    """Return the pictures in some of these files, each with its label: (uint8 [h, w, c], int32 [])."""

    def read(path: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        picture = tf.numpy_function(lambda path: pictures.read_picture(path, INPUT.shape.as_list()), [path], tf.uint8)
        return tf.ensure_shape(picture, INPUT.shape), label

    return files.map(read, num_parallel_calls=2)


def to_inputs(images: tf.Tensor) -> tf.Tensor:
    """Turn pixels, uint8 [b, h, w, c], into float32 in [-1, 1]."""
    return tf.cast(images, tf.float32) * (1 / 127.5) - 1


def decode(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Build the inputs of the model and the labels of a training batch, in which some pictures are mirrored."""
    return to_inputs(tf.image.random_flip_left_right(images)), labels
