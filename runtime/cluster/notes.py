"""Texts that the tasks leave on one of them for each other, such as what all workers must agree on."""

import json
from collections.abc import Mapping, Sequence

import tensorflow.compat.v1 as tf

from runtime.cluster.task import Task
from runtime.errors import UnusableError


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


class Agreement:
    """Settings by name, most of them flags, which every worker compares with those that the chief has published."""

    def __init__(self, task: Task, settings: Mapping[str, object]):
        """Build the ops for `task`, a worker, in the default graph."""
        self._task = task
        self._settings = {name: str(value) for name, value in settings.items()}
        with tf.name_scope("agreement/"):
            note = Notes("/job:ps/task:0", "agreement")  # a model lives only as long as every ps does
            self._published = note.read([0])
            self._publish = note.write(0, tf.constant(json.dumps(self._settings)))

    def check(self, session: tf.Session) -> None:
        """Compare the settings of this task with those published, if there are any; the chief then publishes its own.

        Raises:
          UnusableError: they differ.
        """
        (text,) = session.run(self._published)
        published = json.loads(text or "{}")
        for name, value in self._settings.items():
            if (theirs := published.get(name, value)) != value:
                remedy = "give all workers the same"
                if name == "data_dir":  # the CRC-32 is of the examples in their order
                    remedy += " examples in the same order (sort the files, seed the shuffle)"
                raise UnusableError(
                    f"{self._task} has --{name}={value}, but the model on the ps tasks is trained with"
                    f" --{name}={theirs}: {remedy}, or end the ps tasks and start them again"
                )
        if self._task.is_chief:
            session.run(self._publish)
