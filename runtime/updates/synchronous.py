"""Synchronous updates: each averages the gradients of several exchanges (Chen et al. 2016, arXiv:1604.00981)."""

import time

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster import probes
from runtime.cluster.task import Peer, Task
from runtime.updates.exchange import ExchangeBuilder, Updates, read_global_step_after
from runtime.updates.packing import Packing

LOOK_SECS = 1.0  # how often the chief looks whether synchronous training moves
RESTART_SECS = 2.0  # how long to wait for an update after the restart of a task, which may have had a token


def build_sync_updates(packing: Packing, builder: ExchangeBuilder, replicas_to_aggregate: int, task: Task) -> Updates:
    """Build a run of one exchange, which waits for the update that it is a part of.

    With fewer replicas than workers, each update drops the slowest gradients: these come from the backup workers.
    """
    with tf.device(task.device):
        exchange = builder.build_exchange(packing.read(), [], 0)
    counter, unsaved_variables = exchange.counter, []
    if counter is None:  # SyncReplicasOptimizer needs one: it drops gradients that come with an older count
        counter = tf.get_variable("num_updates", [], tf.int64, tf.zeros_initializer(), trainable=False, collections=[])
        unsaved_variables = [counter]
    optimizer = tf.train.SyncReplicasOptimizer(
        exchange.optimizer, replicas_to_aggregate, total_num_replicas=len(task.worker_hosts)
    )
    train_op = optimizer.apply_gradients(packing.unpack(exchange.gradients), counter)
    optimizer.ready_for_local_init_op.mark_used()  # the scaffold has a check of its own
    return Updates(
        train_op=train_op,
        num_steps=exchange.num_steps,
        loss=exchange.loss,
        global_step=read_global_step_after(train_op),
        num_replicas=replicas_to_aggregate,
        hooks=[SyncReplicasHook(optimizer, counter, replicas_to_aggregate, task)],
        unsaved_variables=unsaved_variables,
    )


class SyncReplicasHook(tf.train.SessionRunHook):
    """Serves a `SyncReplicasOptimizer` as its own `make_session_run_hook()` does, except for three things.

    * It hands out no spare tokens at the start: with those, a fast worker would do the share of a slow one.
    * It leaves the token queue open when the chief stops: the queue lives on the ps, and the next chief needs it.
    * It replaces tokens that died with their tasks: without them, the other workers would wait for ever.
    """

    def __init__(
        self,
        optimizer: tf.train.SyncReplicasOptimizer,
        counter: tf.Variable,
        replicas_to_aggregate: int,
        task: Task,
    ):
        """Serve an `optimizer` that counts its updates with `counter`."""
        self._optimizer, self._counter = optimizer, counter
        self._replicas_to_aggregate, self._task = replicas_to_aggregate, task
        self._stall_watch: tf.train.LooperThread | None = None  # of the chief

    def begin(self) -> None:
        self._init_op = self._optimizer.chief_init_op if self._task.is_chief else self._optimizer.local_step_init_op
        update = self._optimizer.get_chief_queue_runner()
        with tf.device(self._counter.device):
            self._add_token = update.queue.enqueue(self._counter)
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
            self._last_count = session.run(self._counter)
            self._lost, self._is_restart = dict[Peer, str](), self._last_count > 0
            self._patience_secs = RESTART_SECS
            self._stall_watch = tf.train.LooperThread(coord, LOOK_SECS, self._end_stall, args=(session,))

    def before_run(self, run_context: tf.train.SessionRunContext) -> None:
        if self._stall_watch and self._stall_watch.ident is None:  # until now the workers have waited for each other
            self._moved_at = time.monotonic()
            self._stall_watch.start()

    def _end_stall(self, session: tf.Session) -> None:
        """Add a token if no update happens since a task was lost, which may have had one.

        While every worker is there, an exchange may take as long as it takes. One token too many makes a fast worker do
        the share of a slow one, so the chief waits twice as long for the effect of each.
        """
        count, now = session.run(self._counter), time.monotonic()
        if count != self._last_count:
            self._last_count, self._moved_at, self._is_restart = count, now, False
            self._lost, self._patience_secs = {}, RESTART_SECS
            return
        unreachable = probes.unreachable(self._task.others("worker"))
        is_news = not unreachable.keys() <= self._lost.keys()
        self._lost |= unreachable
        if not (self._lost or self._is_restart) or (not is_news and now < self._moved_at + self._patience_secs):
            return
        session.run(self._add_token)
        self._patience_secs *= 2
        logging.warning(
            "%s: no synchronous update for %.0f s after %d of them%s: going on with the average of %d gradients of %d"
            " live workers",
            self._task,
            now - self._moved_at,
            count,
            f", without {probes.describe(unreachable)}" if unreachable else "",
            self._replicas_to_aggregate,
            len(self._task.worker_hosts) - len(unreachable),
        )
        self._moved_at = now
