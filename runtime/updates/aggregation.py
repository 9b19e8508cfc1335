"""Where the gradients of a synchronous update come together: on one ps, which needs no other for that."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from runtime.updates.holding import Gradient, Holding


class Rule(NamedTuple):
    """When an update happens."""

    num_workers: int
    num_gradients: int  # that an update averages
    max_steps: int  # that each of them stands for
    train_steps: int  # after which there are no updates

    @property
    def is_strict(self) -> bool:
        """Whether an update has a gradient of each worker."""
        return self.num_gradients == self.num_workers


class Aggregation:
    """Averages the gradients of several workers on a ps; whoever brings the last of them applies the average.

    A worker whose gradient is accepted waits for the update. The update hands out one token for each gradient in it,
    through a queue. Odd updates have a queue of their own: so no fast worker, which waits for the next update already,
    can take the token of a slow one.

    A gradient is dropped if an update was made since its worker read the parameters. So is a worker's second one for
    the same update, unless an update has fewer gradients than there are workers, or a worker is lost: then there are
    spare tokens, with which the others take its share.
    """

    def __init__(self, holding: Holding, rule: Rule):
        """Average gradients of what `holding` has, on its ps."""
        self.holding, self._rule = holding, rule
        # Backup workers wait for the updates of the global step alone: each ps drops other gradients, and workers that
        # wait for several ps tasks could all wait for each other.
        self.is_waited_for = rule.is_strict or holding.steps is tf.train.get_global_step()
        with tf.device(holding.device), tf.name_scope("aggregation"):
            self._gradients = tf.ConditionalAccumulator(tf.float32, [holding.size], shared_name="gradients")
            # A mean would divide each row by the number of the gradients that have it.
            self._sums_of_slices = [
                tf.SparseConditionalAccumulator(
                    tf.float32, variable.shape, shared_name=f"gradients_of_{variable.op.name}", reduction_type="SUM"
                )
                for variable in holding.table_slices
            ]
            self._accumulators = [*self._sums_of_slices, self._gradients]
            self._tokens = [tf.FIFOQueue(-1, tf.bool, [()], shared_name=f"{name}_tokens") for name in ("even", "odd")]
            self._mutex = tf.raw_ops.MutexV2(container="", shared_name="aggregation")
            self.num_updates = self._make_variable("num_updates", self._start_anew)
            self.num_spares = self._make_variable("num_spares", lambda: tf.zeros([], tf.int64))
            # For each worker: how many updates there were before the one that its last gradient is a part of.
            self.last_added = self._make_variable("last_added", self._build_nothing_added)
        self.variables = [self.num_updates, self.num_spares, self.last_added]

    def _make_variable(self, name: str, build_value: Callable[[], tf.Tensor]) -> tf.Variable:
        name = f"{name}_of_ps_{tf.DeviceSpec.from_string(self.holding.device).task}"
        return tf.Variable(build_value, trainable=False, collections=[], name=name)

    def _start_anew(self) -> tf.Tensor:
        """Build the number of updates of a model that was just made or restored; drop the gradients of the last one."""
        with tf.control_dependencies([self._drop_gradients()]):
            return tf.zeros([], tf.int64)

    def _drop_gradients(self) -> tf.Operation:
        """Drop what is there; a session that was aborted may have added to some of the accumulators alone."""
        drops = []
        for accumulator in self._accumulators:
            is_empty = tf.equal(accumulator.num_accumulated(), 0)
            drops.append(tf.cond(is_empty, tf.no_op, lambda taken=accumulator: tf.group(taken.take_grad(1))))
        return tf.group(*drops)

    def read_num_updates(self, after: Sequence[tf.Tensor]) -> tf.Tensor:
        """Build the number of updates, int64 [], as it is after something on this ps."""
        with tf.device(self.holding.device), tf.control_dependencies(after):
            return self.num_updates.read_value()

    def build_set_num_spares(self, num_spares: tf.Tensor) -> tf.Operation:
        """Build what lets each update have `num_spares`, int64 [], second gradients; the next one begins anew.

        So every worker adds its gradient to the next update of every ps, whatever it has missed.
        """
        with tf.device(self.holding.device):
            num_spares = tf.identity(num_spares)
            with tf.control_dependencies([num_spares]):
                lock = tf.raw_ops.MutexLock(mutex=self._mutex)
            with tf.control_dependencies([lock]):
                change = self.num_spares.assign(num_spares, read_value=False)
                with tf.control_dependencies([self._drop_gradients()]):
                    restart = self.last_added.assign(self._build_nothing_added(), read_value=False)
            with tf.control_dependencies([change, restart]):
                wake = [self._hand_out(queue, self._rule.num_workers) for queue in self._tokens]
            with tf.control_dependencies(wake):
                return tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)

    def _build_nothing_added(self) -> tf.Tensor:
        return -tf.ones([self._rule.num_workers], tf.int64)

    def add(self, vector: tf.Tensor, places: Sequence[tf.Tensor], num_updates: tf.Tensor, worker: int) -> tf.Tensor:
        """Add the gradient of a worker, and wait for its update, on the ps.

        Args:
          vector: the gradient, packed, of the type in which it travels.
          places: of the rows of tables in it: see `Selection`.
          num_updates: int64 [], which the parameters had that it was computed with.
          worker: the task index.

        Returns:
          int64 [], the steps that the gradient stands for; 0 after the end.
        """
        with tf.device(self.holding.device):
            # It must be here before the lock: the mutex is held only while there is nothing to wait for.
            vector = tf.cast(tf.identity(vector), tf.float32)
            gradient = self.holding.unpack(vector, places)
            with tf.control_dependencies([vector, *places, num_updates]):
                lock = tf.raw_ops.MutexLock(mutex=self._mutex)
            with tf.control_dependencies([lock]):
                num_steps = self._count_steps()
                is_fresh = tf.equal(self.num_updates.read_value(), num_updates)
                is_complete = self._add(gradient, num_updates, is_fresh & self._is_welcome(num_updates, worker), worker)
            update = tf.cond(is_complete & (num_steps > 0), lambda: self._update(num_updates + 1, num_steps), tf.no_op)
            with tf.control_dependencies([update]):
                is_awaited = is_fresh & (self._count_steps() > 0)
                unlock = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
            with tf.control_dependencies([unlock]):
                tokens = [
                    tf.cond(
                        is_awaited & tf.equal((num_updates + 1) % 2, parity),
                        functools.partial(self._wait, queue, num_updates, worker),
                        lambda: False,
                    )
                    for parity, queue in enumerate(self._tokens)
                ]
            with tf.control_dependencies(tokens if self.is_waited_for else [unlock]):
                return tf.identity(num_steps)

    def _wait(self, queue: tf.FIFOQueue, num_updates: tf.Tensor, worker: int) -> tf.Tensor:
        """Take tokens until the worker may go on: a dead worker may have left some behind."""

        def take_token(_: tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies([queue.dequeue()]):
                return tf.equal(self.num_updates.read_value(), num_updates) & ~self._is_welcome(num_updates, worker)

        return tf.while_loop(tf.identity, take_token, [tf.constant(True)], parallel_iterations=1, back_prop=False)

    def _count_steps(self) -> tf.Tensor:
        """Build the number of steps, int64 [], that the next update adds."""
        steps_left = self._rule.train_steps - self.holding.steps.read_value()
        return tf.clip_by_value(steps_left, 0, self._rule.max_steps)

    def _is_welcome(self, num_updates: tf.Tensor, worker: int) -> tf.Tensor:
        """Build whether the next update takes a gradient of a worker, bool []."""
        if not self._rule.is_strict:
            return tf.constant(True)
        return (self.last_added.sparse_read(worker) < num_updates) | (self.num_spares.read_value() > 0)

    def _add(self, gradient: Gradient, num_updates: tf.Tensor, is_accepted: tf.Tensor, worker: int) -> tf.Tensor:
        """Add a gradient if it is accepted; return whether the update has all that it needs, bool []."""
        local_step = tf.where(is_accepted, num_updates, tf.constant(-1, tf.int64))  # -1: the accumulator drops it
        num_updates = self.num_updates.read_value()
        additions = [accumulator.set_global_step(num_updates) for accumulator in self._accumulators]
        with tf.control_dependencies(additions):
            for accumulator, rows in zip(self._sums_of_slices, gradient.of_slices, strict=True):
                additions.append(accumulator.apply_indexed_slices_grad(rows, local_step))
        with tf.control_dependencies(additions):  # last, since it is the one that is counted
            addition = self._gradients.apply_grad(gradient.vector, local_step)
        with tf.control_dependencies([addition, tf.scatter_max(self.last_added, worker, local_step)]):
            return self._gradients.num_accumulated() >= self._rule.num_gradients

    def _update(self, number: tf.Tensor, num_steps: tf.Tensor) -> tf.Operation:
        """Apply the average, and hand out a token for each gradient in it; this is the update of that `number`."""
        num_gradients = tf.cast(self._gradients.num_accumulated(), tf.float32)
        with tf.control_dependencies([num_gradients]):
            sums = [accumulator.take_grad(1) for accumulator in self._sums_of_slices]  # of all that are there
            vector = self._gradients.take_grad(1)
        means = [tf.IndexedSlices(of_slice.values / num_gradients, of_slice.indices) for of_slice in sums]
        change = self.holding.apply(Gradient(vector, means), num_steps)
        with tf.control_dependencies([change]):
            count = self.num_updates.assign(number, read_value=False)
        with tf.control_dependencies([count]):
            num_spares = self.num_spares.read_value()
            num_own = self._rule.num_gradients - num_spares
            nums_tokens = [tf.where(tf.equal(number % 2, parity), num_own, num_spares) for parity in range(2)]
            return tf.group(*map(self._hand_out, self._tokens, nums_tokens))

    def _hand_out(self, queue: tf.FIFOQueue, num_tokens: tf.Tensor) -> tf.Operation:
        if not self.is_waited_for:  # nobody would ever take them
            return tf.no_op()
        return queue.enqueue_many([tf.fill([num_tokens], True)])
