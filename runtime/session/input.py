"""Where the input of a session begins: at the batch that the global step says, not at the first one again."""

import tensorflow.compat.v1 as tf

from runtime.cluster.task import Task
from runtime.data.streams import Batches
from runtime.updates.exchange import Updates


class InputHook(tf.train.SessionRunHook):
    """Starts the input of each session. First in `hooks`: others may wait, and then train at once.

    A worker that takes part in every synchronous update goes on with its next batch. Asynchronous workers share the
    global steps unevenly, so each begins at the average.
    """

    def __init__(self, task: Task, updates: Updates, batches: Batches):
        """Start `batches`, which `updates` use."""
        self._batches, self._num_replicas, self._num_workers = batches, updates.num_replicas, task.num_clients

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        global_step = int(session.run(tf.train.get_global_step(session.graph)))
        first_batch = global_step * self._num_replicas // self._num_workers
        session.run(self._batches.initializer, self._batches.feed_dict(first_batch))
