"""Examples that lie in memory: a run carries their numbers, and gathers only what it uses."""

import sys
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from runtime.data.order import build_numbers
from runtime.data.reader import Access, Columns, compute_checksum
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

    def share(self, index: int, num_workers: int) -> "MemorySource":
        """Return every `num_workers`-th example from `index` on: shares are disjoint and complete.

        Raises:
          UnusableError: there are fewer examples than workers, so a share is empty.
        """
        if self.num_examples < num_workers:
            raise UnusableError(
                f"{self.num_examples} examples cannot be shared by {num_workers} workers: use fewer workers"
            )
        copies = (np.ascontiguousarray(column[index::num_workers]) for column in self._columns)  # frees the others
        return MemorySource(type(self._columns)(*copies), index)

    def load(self) -> Columns:
        """Return all examples, in memory."""
        return self._columns

    def build_access(self) -> Access:
        """Build variables for the examples, which each session is fed once."""
        fed = [tf.placeholder(column.dtype, column.shape) for column in self._columns]
        variables = [tf.Variable(part, trainable=False, collections=[]) for part in fed]

        def gather(numbers: tf.Tensor) -> list[tf.Tensor]:
            with variables[0].graph.colocate_with(variables[0].handle):  # only the batch goes elsewhere
                return [tf.gather(variable, numbers) for variable in variables]

        initializer = tf.group(*(variable.initializer for variable in variables))
        return Access(gather, initializer, dict(zip(fed, self._columns, strict=True)))

    def build_inputs(self, first: tf.Tensor, run_size: int, seed: int) -> tf.Tensor:
        """Build the numbers of the examples of the run that begins at position `first`, int64 []: int64 [run_size]."""
        return build_numbers(first, run_size, self.num_examples, 1, seed, self.stream)

    def build_dataset(self, first: tf.Tensor, run_size: int, seed: int) -> tf.data.Dataset:
        """Build the numbers of the examples of all runs from position `first` on: int32 [run_size] each.

        A worker that reads its own stream, and all of it, can shuffle an epoch as a whole. That takes a tenth of the
        time of `build_numbers()`.
        """
        num_examples, stream = self.num_examples, self.stream

        @tf.autograph.experimental.do_not_convert  # it has no control flow to convert, and looking for it takes time
        def shuffle(epoch: tf.Tensor) -> Any:
            run_seed = tf.constant([seed, stream], tf.int64)
            order = tf.random.experimental.stateless_shuffle(
                tf.range(num_examples), tf.random.experimental.stateless_fold_in(run_seed, epoch)
            )
            return order[tf.maximum(first - epoch * num_examples, 0) :]  # of the first epoch, what is left

        epochs = tf.data.Dataset.range(first // num_examples, sys.maxsize)
        return epochs.map(shuffle).rebatch(run_size, drop_remainder=True).prefetch(2)
