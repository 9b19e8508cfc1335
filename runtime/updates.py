"""How what the workers compute reaches the parameters on the ps tasks."""

from typing import NamedTuple

import tensorflow.compat.v1 as tf
from absl import logging

OPTIMIZERS = ("adam", "momentum", "sgd")
MOMENTUM = 0.9
STALL_SECS = 5.0  # synchronous training that does not move for so long has lost a token


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
    loss: tf.Tensor, optimizer: tf.train.Optimizer, replicas_to_aggregate: int, num_workers: int, is_chief: bool
) -> Updates:
    """Average the gradients of `replicas_to_aggregate` batches in each update (Chen et al. 2016, arXiv:1604.00981).

    With fewer replicas than workers, the slowest gradients of each update are dropped: those are the backup workers.
    """
    sync_optimizer = tf.train.SyncReplicasOptimizer(optimizer, replicas_to_aggregate, total_num_replicas=num_workers)
    train_op = sync_optimizer.minimize(loss, tf.train.get_global_step())
    sync_optimizer.ready_for_local_init_op.mark_used()  # the scaffold has a check of its own
    return Updates(train_op, _read_global_step_after(train_op), [SyncReplicasHook(sync_optimizer, is_chief)])


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

    def __init__(self, optimizer: tf.train.SyncReplicasOptimizer, is_chief: bool):
        self._optimizer = optimizer
        self._is_chief = is_chief

    def begin(self) -> None:
        self._init_op = self._optimizer.chief_init_op if self._is_chief else self._optimizer.local_step_init_op
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
        if self._is_chief:
            self._updater.create_threads(session, coord=coord, daemon=True, start=True)
            self._last_seen_step = -1
            tf.train.LooperThread.loop(coord, STALL_SECS, self._end_stall, args=(session,))

    def _end_stall(self, session: tf.Session) -> None:
        """Add a token if the global step stands still; one too many is harmless: stale gradients are dropped."""
        step = session.run(self._global_step)
        if step == self._last_seen_step:
            logging.warning(
                "worker 0: no synchronous update for %.0f s at global step %d: a worker is slow or gone; adding a token"
                " so that the others can do its share",
                STALL_SECS,
                step,
            )
            session.run(self._add_token)
        self._last_seen_step = step
