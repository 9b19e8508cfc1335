"""How what the workers compute reaches the parameters on the ps tasks."""

import functools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf
from absl import logging

from runtime import cluster
from runtime.packing import Packing

OPTIMIZERS = ("adam", "momentum", "sgd")
MOMENTUM = 0.9
EXCHANGES_PER_RUN = 8  # of an asynchronous worker: a run has costs of its own, and within it nothing waits for a call
SHARES_OF_WORKER = 16  # of the steps that are left, in asynchronous mode: see `make_local_steps`
LOOK_SECS = 1.0  # how often the chief looks whether synchronous training moves
STALL_SECS = 5.0  # what has not moved for so long has lost a token, even if every worker is there
RESTART_SECS = 2.0  # the same after the chief was lost, which may have had a token


class Exchange(NamedTuple):
    """What a worker brings to the ps tasks for it."""

    gradients: list[tf.Tensor]  # packed, float32 [size] for each ps
    optimizer: tf.train.Optimizer  # that applies them there
    counter: tf.Variable | None  # that the optimizer must advance by 1; if None, it advances the global step itself
    num_steps: tf.Tensor  # int64 [], how many local steps they stand for
    loss: tf.Tensor  # float32 [], of the last of these; 0 if there is none


class Updates(NamedTuple):
    """What a worker runs to take its steps, and what this needs of its session."""

    train_op: tf.Operation
    num_steps: tf.Tensor  # int64 [], local steps in one run of it
    loss: tf.Tensor  # float32 [], of one of these; 0 if there is none
    global_step: tf.Tensor  # int64 [], as it is after the run
    hooks: list[tf.train.SessionRunHook]
    unsaved_variables: list[tf.Variable]  # on the ps tasks, to be initialised before the model is, and never saved


BuildLoss = Callable[[Sequence[tf.Tensor], tf.Tensor], tf.Tensor]  # from parameters and the indices of a batch
# See `make_gradients` and `make_local_steps`.
BuildExchange = Callable[[Sequence[tf.Tensor], Sequence[Exchange], int], Exchange]


def make_optimizer(name: str, learning_rate: float) -> tf.train.Optimizer:
    """Return one of `OPTIMIZERS`."""
    if name == "adam":
        return tf.train.AdamOptimizer(learning_rate)
    if name == "momentum":
        return tf.train.MomentumOptimizer(learning_rate, MOMENTUM)
    return tf.train.GradientDescentOptimizer(learning_rate)


def make_gradients(
    packing: Packing, build_loss: BuildLoss, indices: tf.Tensor, optimizer: tf.train.Optimizer
) -> BuildExchange:
    """Exchange the gradients of one batch, which `optimizer` applies on the ps tasks: the classic step.

    What is returned builds one exchange, from the packed parameters, and from its number in the run, which is that of
    its batch in `indices`, int32 [batches in a run, b].
    """
    rows = tf.unstack(indices)  # here, where it does not wait: below, it would go before the gradients are sent
    global_step = tf.train.get_global_step()
    with tf.device(global_step.device):
        num_steps = tf.constant(1, tf.int64)
    gradients: list[tf.Tensor] = []  # of the exchange before

    def build(vectors: Sequence[tf.Tensor], pending: Sequence[Exchange], number: int) -> Exchange:
        assert not pending, "the classic step knows all that this worker has done before"
        parameters = packing.split(vectors)
        # A batch is made when its turn comes: all of a run, made at once, would not stay in the cache.
        with tf.control_dependencies(gradients):
            loss = build_loss(parameters, rows[number])
        gradients[:] = packing.pack(tf.gradients(loss, parameters))
        # TensorFlow goes on with what costs least: after a reshape, which costs nothing, the gradients leave at once,
        # and not when the next batch is made, which becomes ready with it.
        sent = [tf.reshape(gradient, [-1]) for gradient in gradients]
        return Exchange(sent, optimizer, global_step, num_steps, loss)

    return build


def make_local_steps(
    packing: Packing,
    build_loss: BuildLoss,
    indices: tf.Tensor,
    optimizer: tf.train.Optimizer,
    local_steps: int,
    train_steps: int,
    num_shares: int,
) -> BuildExchange:
    """Take `local_steps` steps on a copy of the parameters, and exchange what has changed.

    This is Downpour SGD with n_push = n_fetch (Dean et al. 2012) or, in synchronous mode, local SGD, also called
    federated averaging (McMahan et al. 2017, arXiv:1602.05629). The copy and the optimizer's state stay on the worker.
    An exchange has no more steps than one of `num_shares` of those that are left of `train_steps` when the run begins
    (guided self-scheduling, Polychronopoulos and Kuck 1987): where the changes of all workers add up, they go too far
    together, and in the short exchanges at the end the noise of that fades.

    What is returned builds one exchange, from the packed parameters, from those before it that were pending when these
    were read, which they do not have yet, and from its number in the run, whose batches are the `local_steps` ones from
    `number * local_steps` on in `indices`, int32 [batches in a run, b].
    """
    global_step = tf.train.get_global_step()
    with tf.device(global_step.device):  # there it is needed again, when the global step is advanced
        share = -((global_step.read_value() - train_steps) // num_shares)  # rounded up
        num_steps = tf.clip_by_value(share, 0, local_steps)

    def make_local(next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
        return next_creator(**{**kwargs, "collections": [tf.GraphKeys.LOCAL_VARIABLES], "trainable": False})

    with tf.variable_creator_scope(make_local):
        copies = [tf.Variable(tf.zeros(part.shape), name="copy") for part in packing.split(packing.read())]

    def build(starts: Sequence[tf.Tensor], pending: Sequence[Exchange], number: int) -> Exchange:
        for exchange in pending:
            starts = [start - change for start, change in zip(starts, exchange.gradients, strict=True)]
        parameters = packing.split(starts)
        with tf.control_dependencies([copy.assign(value) for copy, value in zip(copies, parameters, strict=True)]):
            first_step = tf.zeros([], tf.int64)

        def take_step(step: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            values = [copy.read_value() for copy in copies]
            loss = build_loss(values, tf.gather(indices, number * local_steps + step))
            gradients = tf.gradients(loss, values)
            with tf.variable_creator_scope(make_local), tf.control_dependencies([loss]):  # of the values before
                change = optimizer.apply_gradients(zip(gradients, copies, strict=True))
            with tf.control_dependencies([change]):
                return step + 1, loss

        last_step, loss = tf.while_loop(
            lambda step, _: step < num_steps, take_step, (first_step, tf.zeros([])), parallel_iterations=1
        )
        with tf.control_dependencies([last_step]):
            ends = packing.pack([copy.read_value() for copy in copies])
            changes = [start - end for start, end in zip(starts, ends, strict=True)]
        return Exchange(changes, _ChangeOptimizer(num_steps), None, num_steps, loss)

    return build


class _ChangeOptimizer(tf.train.GradientDescentOptimizer):
    """Makes the changes that it is given instead of gradients, and counts the local steps that they stand for."""

    def __init__(self, num_steps: tf.Tensor):
        super().__init__(learning_rate=1.0)
        self._num_steps = num_steps

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[tf.Tensor, tf.Variable]],
        global_step: tf.Variable | None = None,
        name: str | None = None,
    ) -> tf.Operation:
        """Make the changes, then add their steps to the graph's global step, and then 1 to `global_step`."""
        with tf.control_dependencies([super().apply_gradients(grads_and_vars, name=name)]):
            count = tf.train.get_global_step().assign_add(self._num_steps, read_value=False)
        if global_step is None:
            return count
        with tf.control_dependencies([count]):
            return global_step.assign_add(1, read_value=False)


def build_async_updates(
    packing: Packing, build_exchange: BuildExchange, max_pending: int, train_steps: int, task: cluster.Task
) -> Updates:
    """Let every worker apply what it has as soon as it has it, to parameters that others may have changed since.

    A run takes several exchanges, one after the other. Each begins when all but `max_pending` of those before are done:
    0 for the classic step, which knows all that this worker has done before, or 1 to compute meanwhile. What does not
    fit into `train_steps` any more, when it reaches the ps tasks, is not applied.
    """
    global_step = tf.train.get_global_step()
    pending: list[Exchange] = []
    losses: list[tf.Tensor] = []
    counts: list[tf.Tensor] = []  # of the steps that each has added

    def apply_oldest(vectors: Sequence[tf.Tensor]) -> None:
        exchange = pending.pop(0)
        # The vectors must not have this exchange yet, which the next one takes for pending: so they were read before.
        pairs = packing.unpack(_after(exchange.gradients, vectors))
        arrived = [part for part, variable in pairs if variable.device == global_step.device]
        with tf.device(global_step.device):  # for what is constant, else each step would send it there
            with tf.control_dependencies([*counts[-1:], *arrived]):
                fits = global_step.read_value() + exchange.num_steps <= train_steps
            counts.append(tf.cond(fits, functools.partial(_apply, exchange, pairs), lambda: tf.zeros([], tf.int64)))

    for number in range(EXCHANGES_PER_RUN):
        with tf.control_dependencies(counts[-1:]):
            vectors = packing.read()
        with tf.device(task.device):
            exchange = build_exchange(vectors, pending, number)
        losses.append(exchange.loss)
        pending.append(exchange)
        if len(pending) > max_pending:
            apply_oldest(vectors)
    while pending:
        apply_oldest(vectors)
    with tf.device(global_step.device):
        num_steps = tf.add_n(counts)
    global_step_after, loss = _read_global_step_after(num_steps.op), losses[0]  # the last may have no steps
    return Updates(num_steps.op, num_steps, loss, global_step_after, [], [])


def _after(gradients: Sequence[tf.Tensor], vectors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Build the gradients for each ps, on it, as they are there after that one of the vectors has been read."""
    delayed = []
    for gradient, vector in zip(gradients, vectors, strict=True):
        with tf.device(vector.device), tf.control_dependencies([vector]):
            delayed.append(tf.identity(gradient))
    return delayed


def _apply(exchange: Exchange, pairs: Sequence[tuple[tf.Tensor, tf.Variable]]) -> tf.Tensor:
    """Apply an exchange, unpacked as `pairs`; return the number of its steps."""
    with tf.name_scope(None):  # else the optimizer's own variables would have that of the condition
        train_op = exchange.optimizer.apply_gradients(pairs, exchange.counter)
    with tf.control_dependencies([train_op]):
        return tf.identity(exchange.num_steps)


def build_sync_updates(
    packing: Packing, build_exchange: BuildExchange, replicas_to_aggregate: int, task: cluster.Task
) -> Updates:
    """Average what `replicas_to_aggregate` exchanges bring in each update (Chen et al. 2016, arXiv:1604.00981).

    With fewer replicas than workers, the slowest of each update are dropped: those are the backup workers.
    """
    num_workers = len(task.worker_hosts)
    with tf.device(task.device):
        exchange = build_exchange(packing.read(), [], 0)
    counter, unsaved_variables = exchange.counter, []
    if counter is None:  # SyncReplicasOptimizer needs one: what comes with an older count is stale
        counter = tf.get_variable("num_updates", [], tf.int64, tf.zeros_initializer(), trainable=False, collections=[])
        unsaved_variables = [counter]
    optimizer = tf.train.SyncReplicasOptimizer(
        exchange.optimizer, replicas_to_aggregate, total_num_replicas=num_workers
    )
    train_op = optimizer.apply_gradients(packing.unpack(exchange.gradients), counter)
    optimizer.ready_for_local_init_op.mark_used()  # the scaffold has a check of its own
    hook = SyncReplicasHook(optimizer, counter, replicas_to_aggregate, task)
    global_step = _read_global_step_after(train_op)
    return Updates(train_op, exchange.num_steps, exchange.loss, global_step, [hook], unsaved_variables)


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

    def __init__(
        self,
        optimizer: tf.train.SyncReplicasOptimizer,
        counter: tf.Variable,
        replicas_to_aggregate: int,
        task: cluster.Task,
    ):
        """Serve an `optimizer` that counts its updates with `counter`."""
        self._optimizer, self._counter = optimizer, counter
        self._replicas_to_aggregate, self._task = replicas_to_aggregate, task
        self._watch: tf.train.LooperThread | None = None  # of the chief

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
            self._seen_count = session.run(self._counter)
            self._is_restart = self._seen_count > 0
            self._watch = tf.train.LooperThread(coord, LOOK_SECS, self._end_stall, args=(session,))

    def before_run(self, run_context: tf.train.SessionRunContext) -> None:
        if self._watch and self._watch.ident is None:  # not earlier: until now the workers have waited for each other
            self._moved_at = time.monotonic()
            self._watch.start()

    def _end_stall(self, session: tf.Session) -> None:
        """Add a token if nothing is updated; one too many is harmless: stale gradients are dropped."""
        count, now = session.run(self._counter), time.monotonic()
        if count != self._seen_count:
            self._seen_count, self._moved_at, self._is_restart = count, now, False
            return
        missing = cluster.missing(self._task.others("worker"))
        if not missing and now < self._moved_at + (RESTART_SECS if self._is_restart else STALL_SECS):
            return
        session.run(self._add_token)
        logging.warning(
            "%s: no synchronous update for %.0f s after %d of them%s: going on with the average of %d gradients of %d"
            " live workers",
            self._task,
            now - self._moved_at,
            count,
            f", without {cluster.describe(missing)}" if missing else "",
            self._replicas_to_aggregate,
            len(self._task.worker_hosts) - len(missing),
        )
        self._moved_at = now
