"""How what the workers compute reaches the parameters on the ps tasks."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf
from absl import logging

from runtime import cluster
from runtime.packing import Packing

OPTIMIZERS = ("adam", "momentum", "sgd")
MOMENTUM = 0.9
LOOK_SECS = 1.0  # how often the chief looks whether synchronous training moves
STALL_SECS = 5.0  # what has not moved for so long has lost a token, even if every worker is there


class Exchange(NamedTuple):
    """What a worker brings to the ps tasks in one run of its graph."""

    gradients: list[tf.Tensor]  # packed, float32 [size] for each ps
    optimizer: tf.train.Optimizer  # that applies them there
    counter: tf.Variable | None  # that the optimizer must advance by 1; if None, it advances the global step itself
    num_steps: tf.Tensor  # int64 [], how many local steps they stand for


class Updates(NamedTuple):
    """What a worker runs to take its steps, and what this needs of its session."""

    train_op: tf.Operation
    num_steps: tf.Tensor  # int64 [], local steps in one run of it
    global_step: tf.Tensor  # int64 [], as it is after that
    hooks: list[tf.train.SessionRunHook]
    unsaved_variables: list[tf.Variable]  # on the ps tasks, to be initialised before the model is, and never saved


BuildLoss = Callable[[Sequence[tf.Tensor], tf.Tensor | int], tf.Tensor]  # from packed parameters and a batch's number


def make_optimizer(name: str, learning_rate: float) -> tf.train.Optimizer:
    """Return one of `OPTIMIZERS`."""
    if name == "adam":
        return tf.train.AdamOptimizer(learning_rate)
    if name == "momentum":
        return tf.train.MomentumOptimizer(learning_rate, MOMENTUM)
    return tf.train.GradientDescentOptimizer(learning_rate)


def build_gradients(parameters: Sequence[tf.Tensor], build_loss: BuildLoss, optimizer: tf.train.Optimizer) -> Exchange:
    """Compute the gradients of one batch, which `optimizer` applies on the ps tasks: the classic step."""
    gradients = tf.gradients(build_loss(parameters, 0), parameters)
    return Exchange(gradients, optimizer, tf.train.get_global_step(), num_steps=tf.constant(1, tf.int64))


def build_local_steps(
    parameters: Sequence[tf.Tensor],
    build_loss: BuildLoss,
    optimizer: tf.train.Optimizer,
    local_steps: int,
    train_steps: int,
) -> Exchange:
    """Take `local_steps` steps on a copy of the parameters, and bring what has changed: on this worker's device.

    This is Downpour SGD with n_push = n_fetch (Dean et al. 2012) or, in synchronous mode, local SGD, also called
    federated averaging (McMahan et al. 2017, arXiv:1602.05629). The optimizer's state stays on the worker. The last
    exchange has just as many steps as are left of `train_steps`.
    """
    global_step = tf.train.get_global_step()
    with tf.device(global_step.device):  # there it is needed again, when the global step is advanced
        num_steps = tf.clip_by_value(train_steps - global_step.read_value(), 0, local_steps)

    def make_local(next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
        return next_creator(**{**kwargs, "collections": [tf.GraphKeys.LOCAL_VARIABLES], "trainable": False})

    with tf.variable_creator_scope(make_local):
        copies = [tf.Variable(tf.zeros(vector.shape), name="copy") for vector in parameters]
        with tf.control_dependencies([copy.assign(vector) for copy, vector in zip(copies, parameters, strict=True)]):
            first_step = tf.zeros([], tf.int64)

        def take_step(step: tf.Tensor) -> tf.Tensor:
            values = [copy.read_value() for copy in copies]
            gradients = tf.gradients(build_loss(values, step), values)
            with tf.control_dependencies([optimizer.apply_gradients(zip(gradients, copies, strict=True))]):
                return step + 1

        end = tf.while_loop(lambda step: step < num_steps, take_step, [first_step], parallel_iterations=1)
    with tf.control_dependencies([end]):
        changes = [vector - copy.read_value() for vector, copy in zip(parameters, copies, strict=True)]
    return Exchange(changes, _ChangeOptimizer(num_steps), None, num_steps)


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


def build_async_updates(packing: Packing, exchange: Exchange) -> Updates:
    """Let every worker apply what it has as soon as it has it, to parameters that others may have changed since."""
    with tf.device(tf.train.get_global_step().device):  # for what is constant, else each step would send it there
        train_op = exchange.optimizer.apply_gradients(packing.unpack(exchange.gradients), exchange.counter)
    return Updates(train_op, exchange.num_steps, _read_global_step_after(train_op), [], [])


def build_sync_updates(packing: Packing, exchange: Exchange, replicas_to_aggregate: int, task: cluster.Task) -> Updates:
    """Average what `replicas_to_aggregate` exchanges bring in each update (Chen et al. 2016, arXiv:1604.00981).

    With fewer replicas than workers, the slowest of each update are dropped: those are the backup workers.
    """
    num_workers = len(task.worker_hosts)
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
    return Updates(train_op, exchange.num_steps, _read_global_step_after(train_op), [hook], unsaved_variables)


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
            self._seen_count, self._moved_at = -1, time.monotonic()
            tf.train.LooperThread.loop(coord, LOOK_SECS, self._end_stall, args=(session,))

    def _end_stall(self, session: tf.Session) -> None:
        """Add a token if nothing is updated; one too many is harmless: stale gradients are dropped."""
        count, now = session.run(self._counter), time.monotonic()
        if count != self._seen_count:
            self._seen_count, self._moved_at = count, now
            return
        missing = cluster.missing(self._task.others("worker"))
        if not missing and now < self._moved_at + STALL_SECS:
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
