"""Texts that the tasks leave on one of them for each other."""

from collections.abc import Sequence

import tensorflow.compat.v1 as tf


class Notes:
    """Numbered texts on one task: a table which the graphs of all tasks share, and which ends with that one's process.

    A table needs no initialisation, is no part of the model, and is read by one op, however many texts are in it.
    """

    def __init__(self, device: str, name: str):
        """Build the table of this name on one task, by its device, in the default graph."""
        self._device = device
        with tf.device(self._device):
            self._table = tf.raw_ops.MutableHashTableV2(key_dtype=tf.int64, value_dtype=tf.string, shared_name=name)

    def read(self, numbers: Sequence[int]) -> tf.Tensor:
        """Build the texts of these numbers, string [n], "" where there is none."""
        with tf.device(self._device):
            keys = tf.constant(list(numbers), tf.int64)
            return tf.raw_ops.LookupTableFindV2(table_handle=self._table, keys=keys, default_value="")

    def count(self) -> tf.Tensor:
        """Build how many texts there are, int64 []."""
        with tf.device(self._device):
            return tf.raw_ops.LookupTableSizeV2(table_handle=self._table)

    def write(self, number: int, text: tf.Tensor) -> tf.Operation:
        """Build what writes a text, string [], in place of the one of that number."""
        with tf.device(self._device):
            keys = tf.constant([number], tf.int64)
            return tf.raw_ops.LookupTableInsertV2(table_handle=self._table, keys=keys, values=[text])
