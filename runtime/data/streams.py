"""From examples, wherever they lie, to an endless stream of batches, a few for each run of the graph."""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from runtime.data.reader import Access, Columns, signature_of
from runtime.data.sources import Source

SHARDINGS = ("static", "dynamic")


class Batches(NamedTuple):
    """An endless stream of batches, a few for each run of the graph; run `initializer` first, with `feed_dict()`."""

    inputs: tf.Tensor  # [batches in a run, b, ...]: the numbers of examples in memory, or what was read of files
    initializer: tf.Operation
    columns: Callable[[tf.Tensor], Columns]  # builds the examples of some inputs, [b, ...]
    access: Access
    first_example: tf.Tensor  # int64 [], a placeholder: how many examples earlier sessions have used
    batch_size: int

    @property
    def signature(self) -> list[tf.TensorSpec]:
        """The columns of one example."""
        with tf.device(self.inputs.device):
            return signature_of(self.columns(self.inputs[0]))

    def feed_dict(self, first_batch: int) -> dict[tf.Tensor, Any]:
        """Return what `initializer` is fed, so that a worker's own stream begins with batch `first_batch`."""
        return {**self.access.feed_dict, self.first_example: first_batch * self.batch_size}


def build_batches(source: Source, num_batches: int, batch_size: int, seed: int) -> Batches:
    """Build an endless stream of shuffled batches.

    Each epoch uses every example once, in a new order that the seed, the stream and the number of the epoch determine.
    A batch may span the end of an epoch, so none is ever short.

    Args:
      source: usually one worker's share.
      num_batches: how many batches a run of the graph may use.
      batch_size: b, at least 1; it may exceed the number of examples.
      seed: the run's seed, in [0, 2**31).
    """
    run_size = num_batches * batch_size
    access = source.build_access()
    first_example = tf.placeholder(tf.int64, [], name="first_example")
    if source.stream is None:
        inputs, initializer = source.build_inputs(_build_first_position(run_size), run_size, seed), access.initializer
    else:
        # There is nothing to tune, and closing a session would wait for the autotuner's thread, which may sleep a
        # minute.
        options = tf.data.Options()
        options.autotune.enabled = False
        dataset = source.build_dataset(first_example, run_size, seed).with_options(options)
        iterator = tf.data.make_initializable_iterator(dataset)
        inputs, initializer = iterator.get_next(), tf.group(iterator.initializer, access.initializer)

    def build_columns(of_batch: tf.Tensor) -> Columns:
        with tf.name_scope("batch"):
            return access.build_columns(of_batch)

    inputs = tf.reshape(inputs, [num_batches, batch_size, *inputs.shape[1:]])
    return Batches(inputs, initializer, build_columns, access, first_example, batch_size)


def _build_first_position(run_size: int) -> tf.Tensor:
    """Build where the next piece of the stream that all workers share begins, int64 []; each run takes a new one.

    ps 0 counts the runs that have taken one, in a variable of the model: so a checkpoint has it, and whoever restores
    the parameters goes on where they were. Counting is one op on the ps, which no other worker can come between:
    `assign_add()` would read the sum with another op.
    """
    with tf.device("/job:ps/task:0"), tf.name_scope("sharding/"):
        num_runs = tf.Variable(tf.zeros([], tf.int64), trainable=False, name="runs_dealt_out")
        number = tf.raw_ops.ResourceCountUpTo(resource=num_runs.handle, limit=sys.maxsize, T=tf.int64)
    return number * run_size
