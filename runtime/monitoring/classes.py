"""Whether a worker's examples come mixed, or sorted by class, by which a model learns badly."""

import numpy as np
import numpy.typing as npt
import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.task import Task
from runtime.cluster.waiting import LOOK_SECS
from runtime.data.reader import Batches
from runtime.model.ops import find_ancestors
from runtime.model.trace import Trace
from runtime.process.threads import SessionThread


class ClassesHook(SessionThread):
    """Says so if a run of a worker has far fewer classes than a mixed one would have."""

    def __init__(self, task: Task, batches: Batches, made: Trace):
        """Look, in a thread, once the first examples of a session have come, at what `made` takes for their labels."""
        super().__init__("look_at_classes", self._look, LOOK_SECS, f"{task} could not check which classes it reads")
        self._task, self._num_drawn, self._labels = task, batches.num_drawn, None
        self._num_classes = made.logits.shape[-1] if made.is_of_classes else 2  # at least
        if isinstance(made.labels, tf.Tensor):
            made_of = find_ancestors([made.labels.op])
            columns = [number for number, column in enumerate(made.columns) if column.op in made_of]
            self._labels = batches.integers.get(columns[0]) if len(columns) == 1 else None

    def _look(self, session: tf.Session, coord: tf.train.Coordinator) -> bool:
        if self._labels is None:
            return True
        num_drawn, labels = session.run([self._num_drawn, self._labels])
        if num_drawn and (few := describe_few(labels, self._num_classes)):
            remedy = "shuffle it once, as examples/convert.py does, or return many files from list_files()"
            logging.warning("%s: %s: if what mnist_input.py reads is sorted by class, %s", self._task, few, remedy)
        return bool(num_drawn)


def describe_few(labels: npt.NDArray[np.integer], num_classes: int) -> str:
    """Return how few classes some labels are of, at most half of those that mixed ones would have; else ""."""
    num_found = len(np.unique(labels))
    num_expected = num_classes * (1 - (1 - 1 / num_classes) ** len(labels))
    if num_found > num_expected / 2:
        return ""
    return f"{len(labels)} examples in a row have {num_found} of {num_classes} classes"
