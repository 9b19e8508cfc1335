"""How what the workers compute reaches the parameters on the ps tasks."""

import time
from typing import NamedTuple

import tensorflow.compat.v1 as tf
from absl import logging

from runtime import cluster

OPTIMIZERS = ("adam", "momentum", "sgd")
MOMENTUM = 0.9
LOOK_SECS = 1.0  # how often the chief looks whether synchronous training moves
STALL_SECS = 5.0  # what has not moved for so long has lost a token, even if every worker is there


class Updates(NamedTuple):
    """What a worker runs to take a step, and the hooks that this needs in its session."""

    train_op: tf.Operation
    global_step: tf.Tensor  # int64 [], as it is after the step
    hooks: list[tf.train.SessionRunHook]


def make_optimizer(name: str, learning_rate: float) -> tf.train.Optimizer:
    """Return one of `OPTIMIZERS`."""
    if name == "adam":
        return tf.train.AdamOptimizer(learning_rate)
    if name == "momentum":
        return tf.train.MomentumOptimizer(learning_rate, MOMENTUM)
    return tf.train.GradientDescentOptimizer(learning_rate)


def build_async_updates(loss: tf.Tensor, optimizer: tf.train.Optimizer) -> Updates:
    """Let every worker apply its gradients as soon as it has them, to parameters that others may have changed since."""
    train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return Updates(train_op, _read_global_step_after(train_op), [])


def build_sync_updates(
    loss: tf.Tensor, optimizer: tf.train.Optimizer, replicas_to_aggregate: int, task: cluster.Task
) -> Updates:
    """Average the gradients of `replicas_to_aggregate` batches in each update (Chen et al. 2016, arXiv:1604.00981).

    With fewer replicas than workers, the slowest gradients of each update are dropped: those are the backup workers.
    """
    num_workers = len(task.worker_hosts)
    sync_optimizer = tf.train.SyncReplicasOptimizer(optimizer, replicas_to_aggregate, total_num_replicas=num_workers)
    train_op = sync_optimizer.minimize(loss, tf.train.get_global_step())
    sync_optimizer.ready_for_local_init_op.mark_used()  # the scaffold has a check of its own
    return Updates(
        train_op, _read_global_step_after(train_op), [SyncReplicasHook(sync_optimizer, replicas_to_aggregate, task)]
    )


def _read_global_step_after(train_op: tf.Operation) -> tf.Tensor:
    """Build the global step as it is after the step; the variable, fetched beside the step, would be older."""
    with tf.control_dependencies([train_op]):
        return tf.train.get_global_step().read_value()


class SyncReplicasHook(tf.train.SessionRunHook):
    """Does for `SyncReplicasOptimizer` what its own `make_session_run_hook()` does, but for three things.

    * It hands out no spare tokens at the start, with which a fast worker would do a slow one's share.
    * It does not close the token queue when the chief stops: the queue stays on the ps, and the next chief needs it.
    * It replaces tokens that dead tasks took with them, since the others would wait for ever.
    """

    def __init__(self, optimizer: tf.train.SyncReplicasOptimizer, replicas_to_aggregate: int, task: cluster.Task):
        self._optimizer, self._replicas_to_aggregate, self._task = optimizer, replicas_to_aggregate, task

    def begin(self) -> None:
        self._init_op = self._optimizer.chief_init_op if self._task.is_chief else self._optimizer.local_step_init_op
        self._global_step = tf.train.get_global_step()
        update = self._optimizer.get_chief_queue_runner()
        with tf.device(self._global_step.device):
            self._add_token = update.queue.enqueue(self._global_step)
        self._updater = tf.train.QueueRunner(
            update.queue,
            update.enqueue_ops,
            close_op=tf.no_op(),
            cancel_op=tf.no_op(),
            queue_closed_exception_types=(tf.errors.OutOfRangeError, tf.errors.CancelledError),  # the session's end
        )

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        session.run(self._init_op)
        if self._task.is_chief:
            self._updater.create_threads(session, coord=coord, daemon=True, start=True)
            self._seen_step, self._moved_at = -1, time.monotonic()
            tf.train.LooperThread.loop(coord, LOOK_SECS, self._end_stall, args=(session,))

    def _end_stall(self, session: tf.Session) -> None:
        """Add a token if the global step stands still; one too many is harmless: stale gradients are dropped."""
        step, now = session.run(self._global_step), time.monotonic()
        if step != self._seen_step:
            self._seen_step, self._moved_at = step, now
            return
        missing = cluster.missing(self._task.others("worker"))
        if not missing and now < self._moved_at + STALL_SECS:
            return
        session.run(self._add_token)
        logging.warning(
            "%s: no synchronous update for %.0f s at global step %d%s: going on with the average of %d gradients of %d"
            " live workers",
            self._task,
            now - self._moved_at,
            step,
            f", without {cluster.describe(missing)}" if missing else "",
            self._replicas_to_aggregate,
            len(self._task.worker_hosts) - len(missing),
        )
        self._moved_at = now
