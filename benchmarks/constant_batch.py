"""`distributed.py`, but each step trains on the same batch: what it is faster by is what the input costs."""

import pathlib
import sys
from typing import NamedTuple
from unittest import mock

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # the project is run from its checkout, not installed

import distributed  # first: it sets what TensorFlow reads when it is imported

# isort: split
import tensorflow.compat.v1 as tf
from absl import app, flags, logging

import mnist_input


class ConstantBatch(NamedTuple):
    """What `distributed.py` takes for `mnist_input.Batches`."""

    images: tf.Variable  # float32 [b, 784]
    labels: tf.Variable  # int32 [b]
    initializer: tf.Operation
    feed_dict: dict[tf.Tensor, object]

    def batch(self, number: tf.Tensor | int) -> tuple[tf.Tensor, tf.Tensor]:
        """Build the batch; its number does not matter."""
        del number
        return self.images.read_value(), self.labels.read_value()


def build_batches(
    examples: mnist_input.Examples, num_batches: int, batch_size: int, seed: int, stream: int
) -> ConstantBatch:
    """Build the first batch of `examples`, as it is."""
    del num_batches, seed, stream
    # Variables, not constants, so that nothing is computed in advance.
    images = tf.Variable(
        mnist_input.to_float(tf.constant(examples.images[:batch_size])), trainable=False, collections=[]
    )
    labels = tf.Variable(tf.cast(examples.labels[:batch_size], tf.int32), trainable=False, collections=[])
    return ConstantBatch(images, labels, tf.group(images.initializer, labels.initializer), {})


if __name__ == "__main__":
    tf.logging.set_verbosity(tf.logging.ERROR)
    flags.FLAGS.set_default("verbosity", logging.INFO)
    with mock.patch.object(mnist_input, "build_batches", build_batches):
        app.run(distributed.run, flags_parser=distributed.parse_flags)
