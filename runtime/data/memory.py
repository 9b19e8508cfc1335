"""Examples that lie in memory: a run carries their numbers, and gathers only what it uses."""

import contextlib
import functools
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from runtime.data.order import build_numbers, build_seed, shuffle
from runtime.data.reader import (
    Batches,
    Columns,
    build_next_number,
    compute_checksum,
    describe_not_finite,
    make_iterator,
    signature_of,
)
from runtime.process.errors import UnusableError


class MemorySource:
    """Examples in memory, and how they become the inputs of a run."""

    def __init__(self, columns: Columns, stream: int | None = None):
        """Take arrays with an example in each row; they lie in the memory of the worker, and are no part of the graph.

        Args:
          columns: the parts of the examples, as a named tuple, such as images and labels.
          stream: the index of the worker whose share this is; None: all workers share one stream of all.
        """
        self._columns, self.stream = columns, stream
        self.num_examples = len(columns[0])

    @property
    def description(self) -> str:
        """What tells these examples from others: their number, and the CRC-32 of all of them."""
        return f"({self.num_examples} examples, CRC-32 {compute_checksum(self._columns):08x})"

    def share(self, index: int, num_workers: int, hold: Any = None) -> "MemorySource":
        """Return every `num_workers`-th example from `index` on, or all, which are dealt out, with `hold`.

        Raises:
          UnusableError: there are fewer examples than workers, so a share is empty.
        """
        if hold:
            return self
        if self.num_examples < num_workers:
            raise UnusableError(
                f"{self.num_examples} examples cannot be shared by {num_workers} workers: use fewer workers"
            )
        copies = (np.ascontiguousarray(column[index::num_workers]) for column in self._columns)  # frees the others
        return MemorySource(type(self._columns)(*copies), index)

    def load(self) -> Columns:
        """Return all examples, in memory."""
        return self._columns

    def telling_faults(self) -> contextlib.AbstractContextManager[None]:
        """Return nothing to do: all examples have been read."""
        return contextlib.nullcontext()

    @property
    def signature(self) -> list[tf.TensorSpec]:
        """The columns of one example."""
        return list(signature_of(self._columns))

    def draw(self, num_batches: int, batch_size: int, seed: int) -> Batches:
        """Build variables for the examples, which each session is fed once, and the numbers of those of a run."""
        fed = [tf.placeholder(column.dtype, column.shape) for column in self._columns]
        variables = [tf.Variable(part, trainable=False, collections=[]) for part in fed]

        def gather(numbers: tf.Tensor) -> list[tf.Tensor]:
            with variables[0].graph.colocate_with(variables[0].handle):  # only the batch goes elsewhere
                return [tf.gather(variable, numbers) for variable in variables]

        first_example, run_size = tf.placeholder(tf.int64, [], "first_example"), num_batches * batch_size
        initializers = [variable.initializer for variable in variables]
        if self.stream is None:
            position = build_next_number("runs_dealt_out") * run_size
            numbers = build_numbers(position, run_size, self.num_examples, seed, None)
        else:
            iterator = make_iterator(self._build_own_stream(first_example, run_size, seed))
            numbers = iterator.get_next()
            initializers.append(iterator.initializer)
        inputs = tf.reshape(numbers, [num_batches, batch_size])
        feed_dict = dict(zip(fed, self._columns, strict=True))
        initializer = tf.group(*initializers)
        how = gather, self.signature, [inputs], first_example, initializer, feed_dict
        return Batches(inputs, *how, describe_not_finite=functools.partial(describe_not_finite, self._columns))

    def _build_own_stream(self, first: tf.Tensor, run_size: int, seed: int) -> tf.data.Dataset:
        """Build the numbers of the examples of all runs from position `first` on: int32 [run_size] each.

        A worker that reads its own stream, and all of it, can shuffle an epoch as a whole.
        """
        num_examples, stream = self.num_examples, self.stream

        @tf.autograph.experimental.do_not_convert  # it has no control flow to convert, and looking for it takes time
        def shuffle_epoch(epoch: tf.Tensor) -> Any:
            order = shuffle(tf.range(num_examples), build_seed(seed, stream, epoch))
            return order[tf.maximum(first - epoch * num_examples, 0) :]  # of the first epoch, what is left

        epochs = tf.data.Dataset.range(first // num_examples, tf.int64.max)
        return epochs.map(shuffle_epoch).rebatch(run_size, drop_remainder=True).prefetch(2)
