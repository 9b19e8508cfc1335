"""How what the workers compute reaches the parameters on the ps tasks."""

import threading
from collections.abc import Callable
from typing import NamedTuple

import tensorflow.compat.v1 as tf
from absl import logging

OPTIMIZERS = ("adam", "momentum", "sgd")
MOMENTUM = 0.9
STALL_SECS = 5.0  # synchronous training that does not move for so long has lost a token


class Updates(NamedTuple):
    """What a worker runs to take a step, and the hooks that this needs in its session."""

    train_op: tf.Operation
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
    return Updates(optimizer.minimize(loss, tf.train.get_global_step()), [])


def build_sync_updates(
    loss: tf.Tensor,
    optimizer: tf.train.Optimizer,
    replicas_to_aggregate: int,
    num_workers: int,
    make_updater_session: Callable[[], tf.Session] | None,
) -> Updates:
    """Average the gradients of `replicas_to_aggregate` batches in each update (Chen et al. 2016, arXiv:1604.00981).

    With fewer replicas than workers, the slowest gradients of each update are dropped: those are the backup workers.

    Args:
      loss: of this worker's batch, float32 [].
      optimizer: what applies the average.
      replicas_to_aggregate: from 1 to `num_workers`.
      num_workers: how many workers there are.
      make_updater_session: makes the session in which the chief applies the updates; None on other workers.
    """
    sync_optimizer = tf.train.SyncReplicasOptimizer(optimizer, replicas_to_aggregate, total_num_replicas=num_workers)
    train_op = sync_optimizer.minimize(loss, tf.train.get_global_step())
    sync_optimizer.ready_for_local_init_op.mark_used()  # the scaffold has a check of its own
    return Updates(train_op, [SyncReplicasHook(sync_optimizer, make_updater_session)])


class SyncReplicasHook(tf.train.SessionRunHook):
    """Does for `SyncReplicasOptimizer` what its own `make_session_run_hook()` does, with three differences.

    * No spare tokens at the start, with which a fast worker would do a slow one's share.
    * The token queue is not closed when the chief stops: it outlives the chief on the ps, and the next one needs it.
    * The updates run in a session of their own, which is never closed. There is always one that waits for gradients,
      and to close its session took up to 10 s with two ps tasks.
    """

    def __init__(
        self, optimizer: tf.train.SyncReplicasOptimizer, make_updater_session: Callable[[], tf.Session] | None
    ):
        self._optimizer = optimizer
        self._make_updater_session = make_updater_session
        self._updater: threading.Thread | None = None

    def begin(self) -> None:
        is_chief = self._make_updater_session is not None
        self._init_op = self._optimizer.chief_init_op if is_chief else self._optimizer.local_step_init_op
        self._global_step = tf.train.get_global_step()
        queue_runner = self._optimizer.get_chief_queue_runner()
        (self._update_op,) = queue_runner.enqueue_ops
        with tf.device(self._global_step.device):
            self._add_token = queue_runner.queue.enqueue(self._global_step)

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        session.run(self._init_op)
        if self._make_updater_session is None:
            return
        if self._updater is None or not self._updater.is_alive():
            updater_session = self._make_updater_session()
            self._updater = threading.Thread(target=self._update, args=(updater_session,), name="updater", daemon=True)
            self._updater.start()
        self._last_seen_step = -1
        tf.train.LooperThread.loop(coord, STALL_SECS, self._end_stall, args=(session,))

    def _update(self, session: tf.Session) -> None:
        """Apply one synchronous update after another, until a ps is lost."""
        try:
            while True:
                session.run(self._update_op)
        except tf.errors.OpError as error:
            logging.info("worker 0: synchronous updates end: %s", type(error).__name__)

    def _end_stall(self, session: tf.Session) -> None:
        """Replace a token that a dead task took with it; one too many is harmless: stale gradients are dropped."""
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
