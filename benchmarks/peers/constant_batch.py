"""`distributed.py`, but in every odd second of the system's clock each step trains on the same batch.

The difference in speed is the cost of the input. Both kinds of seconds alternate within one run, because the speed of a
shared machine changes more than that from one run to the next.
"""

import runpy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from unittest import mock

from runtime import environment  # noqa: F401  # first: it sets what TensorFlow reads when it is imported

# isort: split
import tensorflow.compat.v1 as tf
from absl import flags

from runtime.data import streams

build_real_batches = streams.build_batches
make_real_iterator = tf.data.make_initializable_iterator


class Batches(NamedTuple):
    """Stands in for `streams.Batches` in `distributed.py`."""

    real: streams.Batches
    inputs: tf.Tensor  # int32 [batches in a run, b]
    constant: list[tf.Tensor]  # float32 [b, 784] and int32 [b]
    is_constant: tf.Tensor  # bool []: whether to use the constant one
    initializer: tf.Operation
    feed_dict: Callable[[int], dict[tf.Tensor, Any]]

    def batch(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        """Build the batch of `inputs`, or the constant one.

        This takes Switch and Merge because `tf.cond` would change when the real batch is made.
        """
        constant = self.constant
        if flags.FLAGS.local_steps > 1:
            inputs, constant = _choose(self.is_constant, inputs, constant)
        return [tf.raw_ops.Merge(inputs=pair).output for pair in zip(self.real.batch(inputs), constant, strict=True)]


def _choose(
    is_constant: tf.Tensor, inputs: tf.Tensor, constant: Sequence[tf.Tensor]
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Build the inputs of a real batch and the constant one, of which only one exists at a time.

    TensorFlow does not compute the ops that depend on the other.
    """
    return (
        tf.raw_ops.Switch(data=inputs, pred=is_constant).output_false,
        [tf.raw_ops.Switch(data=part, pred=is_constant).output_true for part in constant],
    )


class Iterator(NamedTuple):
    """Stands in for an iterator in `streams`; while the batch is constant, it draws nothing from the real one."""

    real: Any
    is_constant: tf.Tensor  # bool []

    @property
    def initializer(self) -> tf.Operation:
        """The op that initialises it."""
        return self.real.initializer

    def get_next(self) -> tf.Tensor:
        """Build the next element, or zeros: int32 [size]."""
        shape = tf.data.get_output_shapes(self.real)
        return tf.cond(self.is_constant, lambda: tf.zeros(shape, tf.int32), self.real.get_next)


def build_batches(
    source: streams.Source, num_batches: int, batch_size: int, seed: int, decode: Callable[..., streams.Columns]
) -> Batches:
    """Build a stream of batches; in odd seconds the first examples of `source` take their place."""
    is_constant = tf.equal(tf.cast(tf.timestamp(), tf.int64) % 2, 1)

    def make_iterator(dataset: tf.data.Dataset) -> Iterator:
        return Iterator(make_real_iterator(dataset), is_constant)

    with mock.patch.object(tf.data, "make_initializable_iterator", make_iterator):
        real = build_real_batches(source, num_batches, batch_size, seed, decode)
    # Variables, because TensorFlow would compute with constants in advance.
    columns = decode(*(tf.constant(column[:batch_size]) for column in source.load()))
    variables = [tf.Variable(column, trainable=False, collections=[]) for column in columns]
    initializer = tf.group(real.initializer, *(variable.initializer for variable in variables))
    inputs, constant = real.inputs, [variable.read_value() for variable in variables]
    if flags.FLAGS.local_steps == 1:  # outside the step; a loop of local steps has its own, in `batch()`
        inputs, constant = _choose(is_constant, inputs, constant)
    return Batches(real, inputs, constant, is_constant, initializer, real.feed_dict)


if __name__ == "__main__":
    with mock.patch.object(streams, "build_batches", build_batches):
        runpy.run_module("distributed", run_name="__main__")
