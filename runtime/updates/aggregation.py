"""Where workers wait for each other on a ps: for a synchronous update, or for the slowest of them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from runtime.updates.ps_shard import Gradient, PsShard

ALL = tf.int64.max


class Rule(NamedTuple):
    """When an update happens."""

    num_workers: int
    num_gradients: int  # that an update averages while enough workers are there
    max_steps: int  # that each of them stands for
    train_steps: int  # after which there are no updates

    @property
    def is_strict(self) -> bool:
        """Whether an update has a gradient of each worker."""
        return self.num_gradients == self.num_workers


class Meeting:
    """Where workers wait, on a ps, for a number that only grows: of updates, or of exchanges of the slowest.

    What makes the number greater rings. Whatever wakes a worker, it looks at the number, and waits on if that is not
    enough. So a superfluous wake-up does no harm, and one that was not heard need not be taken back.
    """

    MOVE = "update"  # what makes the number greater
    CHANGE = ""  # what is said when another number of workers is awaited, of the number, and of how many

    def __init__(self, shard: PsShard, rule: Rule):
        """Meet where `shard` is."""
        self.shard, self._rule = shard, rule
        # Backup workers wait for the updates of the global step alone: each ps drops other gradients, and workers that
        # wait for several ps tasks could all wait for each other.
        self.is_waited_for = rule.is_strict or shard.steps is tf.train.get_global_step()
        with tf.device(shard.device), tf.name_scope("meeting"):
            # A worker hears the first bell if it waits for an even number, and the second for an odd one: so a fast
            # worker, which waits for the next number already, takes no wake-up from a slower one.
            bells = [tf.FIFOQueue(-1, tf.bool, [()], shared_name=f"{name}_bell") for name in ("even", "odd")]
            self._bells = tf.stack([bell.queue_ref for bell in bells])
            self._mutex = tf.raw_ops.MutexV2(container="", shared_name="meeting")
            self.number = self._make_variable("number", self._start_anew)
            self.are_awaited = self._make_variable("are_awaited", lambda: tf.fill([rule.num_workers], True))
            # For each worker: what the number was when it last did something for it; at the beginning -1.
            self.last_numbers = self._make_variable("last_numbers", lambda: -tf.ones([rule.num_workers], tf.int64))
        self.variables = [self.number, self.are_awaited, self.last_numbers]

    def _make_variable(self, name: str, build_value: Callable[[], tf.Tensor]) -> tf.Variable:
        name = f"{name}_of_ps_{tf.DeviceSpec.from_string(self.shard.device).task}"
        return tf.Variable(build_value, trainable=False, collections=[], name=name)

    def _start_anew(self) -> tf.Tensor:
        """Build the number, int64 [], of a model that was just made or restored."""
        return tf.zeros([], tf.int64)

    def join(self, worker: int, after: Sequence[tf.Tensor]) -> tf.Tensor:
        """Let the others wait for a worker; build the number, int64 [], after something on this ps."""

        def come() -> tf.Tensor:
            lock = tf.raw_ops.MutexLock(mutex=self._mutex)  # the number does not grow between the two
            with tf.control_dependencies([lock]):
                note = tf.group(tf.scatter_update(self.are_awaited, worker, True), self._welcome(worker))
            with tf.control_dependencies([note]):
                number = self.number.read_value()
            with tf.control_dependencies([number]):
                unlock = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
            with tf.control_dependencies([unlock]):
                return tf.identity(number)

        with tf.device(self.shard.device), tf.control_dependencies(after):
            return tf.cond(self.are_awaited.sparse_read(worker), self.number.read_value, come)

    def _welcome(self, worker: int) -> tf.Operation:
        """Build what is done for a worker that comes, or comes back."""
        return tf.no_op()

    def build_are_late(self) -> tf.Tensor:
        """Build for which workers the others wait, bool [workers]."""
        return self.are_awaited & (self.last_numbers < self.number)

    def build_forget(self, are_lost: tf.Tensor) -> tf.Operation:
        """Build what lets nobody wait for lost workers, bool [workers], until they are back, and wakes the others.

        An update that has all others is made, also if the worker that was to make it has died.
        """
        with tf.device(self.shard.device):
            are_lost = tf.identity(are_lost)
            with tf.control_dependencies([are_lost]):
                lock = tf.raw_ops.MutexLock(mutex=self._mutex)
            with tf.control_dependencies([lock]):
                are_awaited = self.are_awaited.read_value() & ~are_lost
                change = self.are_awaited.assign(are_awaited, read_value=False)
            with tf.control_dependencies([change]):
                move = self._move_on()
            with tf.control_dependencies([move]):
                rings = [self._ring(number) for number in range(2)]
            with tf.control_dependencies(rings):
                return tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)

    def _move_on(self) -> tf.Operation:
        """Make the number greater if nobody is missing for that, and wake who waits for it."""
        raise NotImplementedError

    def _wait(self, is_enough: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
        """Wait until the number is enough, unless training has ended."""

        def look() -> tuple[tf.Tensor, tf.Tensor]:
            number = self.number.read_value()
            return ~is_enough(number) & (self._count_steps() > 0), number

        def hear(_: tf.Tensor, number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            bell = tf.gather(self._bells, (number + 1) % 2)
            with tf.control_dependencies(tf.raw_ops.QueueDequeueV2(handle=bell, component_types=[tf.bool])):
                return look()

        must_wait, _ = tf.while_loop(lambda wait, _: wait, hear, look(), parallel_iterations=1, back_prop=False)
        return must_wait

    def _ring(self, number: tf.Tensor | int) -> tf.Operation:
        """Wake the workers that wait for a number; a bell holds at most one ring for each worker."""
        if not self.is_waited_for:
            return tf.no_op()
        bell = tf.gather(self._bells, number % 2)
        num_rings = self._rule.num_workers - tf.raw_ops.QueueSizeV2(handle=bell)
        return tf.raw_ops.QueueEnqueueManyV2(handle=bell, components=[tf.fill([num_rings], True)])

    def _count_steps(self) -> tf.Tensor:
        """Build the number of steps, int64 [], that are left for the next update."""
        steps_left = self._rule.train_steps - self.shard.steps.read_value()
        return tf.clip_by_value(steps_left, 0, self._rule.max_steps)


class Pace(Meeting):
    """How far a worker may be ahead of the slowest (stale synchronous parallel, Ho et al. 2013).

    The number is how many exchanges the slowest of the awaited workers has ended. One that comes late, or back, counts
    from there, and the others never wait for what it has missed.
    """

    MOVE = "exchange of the slowest worker"
    CHANGE = "from exchange %d on: %d of %d workers keep pace%s"

    def __init__(self, shard: PsShard, rule: Rule, max_staleness: int):
        """Meet where `shard` is; each worker may be so many exchanges ahead."""
        super().__init__(shard, rule)
        self._max_staleness = max_staleness

    def begin(self, worker: int, after: Sequence[tf.Tensor]) -> tf.Tensor:
        """Build what comes, on this ps, once a worker may begin its next exchange, after something there."""
        number = self.join(worker, after)
        with tf.device(self.shard.device), tf.control_dependencies([number]):
            own = self.last_numbers.sparse_read(worker) + 1
            return self._wait(lambda number: own <= number + self._max_staleness)

    def end(self, worker: int, after: Sequence[tf.Tensor], value: tf.Tensor) -> tf.Tensor:
        """Count an exchange of a worker, which is applied once `after` is there; return `value` then."""
        with tf.device(self.shard.device):
            with tf.control_dependencies(after):
                lock = tf.raw_ops.MutexLock(mutex=self._mutex)
            with tf.control_dependencies([lock]):
                count = tf.scatter_add(self.last_numbers, worker, tf.ones([], tf.int64))
            with tf.control_dependencies([count]):
                move = self._move_on()
            with tf.control_dependencies([move]):
                unlock = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
            with tf.control_dependencies([unlock]):
                return tf.identity(value)

    def _welcome(self, worker: int) -> tf.Operation:
        last = tf.maximum(self.last_numbers.sparse_read(worker), self.number - 1)
        return tf.scatter_update(self.last_numbers, worker, last)

    def _move_on(self) -> tf.Operation:
        number = self.number.read_value()
        slowest = tf.reduce_min(
            tf.where(self.are_awaited, self.last_numbers + 1, tf.fill([self._rule.num_workers], ALL))
        )

        def move() -> tf.Operation:
            with tf.control_dependencies([self.number.assign(slowest, read_value=False)]):
                return tf.group(self._ring(0), self._ring(1))

        def end() -> tf.Operation:
            return tf.cond(self._count_steps() > 0, tf.no_op, lambda: tf.group(self._ring(0), self._ring(1)))

        return tf.cond((slowest > number) & (slowest < ALL), move, end)


class Aggregation(Meeting):
    """Averages the gradients of several workers on a ps; the worker that brings the last of them applies the average.

    The updates are numbered. A gradient is for the one after those that its worker has read, and is dropped if that was
    made without it. It is dropped, too, if the update has one of this worker, from before a restart: it never has two.
    Unless it was made without it, a worker waits until the number has changed.

    An update waits for each worker that is awaited: one that has read the number, until the chief finds it lost. So no
    worker waits here for one that waits for it on another ps. Suppose that update a on one ps lacks the gradient of X,
    which waits for update b on another ps, which lacks that of Y, which waits for a. X is awaited for a, so it brought
    its part of the update before after it had read that b was next: update b - 1 came before a - 1. By Y, a - 1 came
    before b - 1. Both cannot be.
    """

    MOVE = "synchronous update"
    CHANGE = "from synchronous update %d on: the average of %d of %d gradients%s"

    def __init__(self, shard: PsShard, rule: Rule):
        """Average gradients of what `shard` has, on its ps."""
        with tf.device(shard.device), tf.name_scope("aggregation"):
            self._gradients = tf.ConditionalAccumulator(tf.float32, [shard.size], shared_name="gradients")
            # A mean would divide each row by the number of the gradients that have it.
            self._sums_of_slices = [
                tf.SparseConditionalAccumulator(
                    tf.float32, variable.shape, shared_name=f"gradients_of_{variable.op.name}", reduction_type="SUM"
                )
                for variable in shard.table_slices
            ]
            self._accumulators = [*self._sums_of_slices, self._gradients]
        super().__init__(shard, rule)

    def _start_anew(self) -> tf.Tensor:
        """Drop the gradients of the last model, too."""
        with tf.control_dependencies([self._drop_gradients()]):
            return super()._start_anew()

    def _drop_gradients(self) -> tf.Operation:
        """Drop what is there; a session that was aborted may have added to some of the accumulators alone."""
        drops = []
        for accumulator in self._accumulators:
            is_empty = tf.equal(accumulator.num_accumulated(), 0)
            drops.append(tf.cond(is_empty, tf.no_op, lambda taken=accumulator: tf.group(taken.take_grad(1))))
        return tf.group(*drops)

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
        with tf.device(self.shard.device):
            # It must be here before the lock: the mutex is held only while there is nothing to wait for.
            vector = tf.cast(tf.identity(vector), tf.float32)
            gradient = self.shard.unpack(vector, places)
            with tf.control_dependencies([vector, *places, num_updates]):
                lock = tf.raw_ops.MutexLock(mutex=self._mutex)
            with tf.control_dependencies([lock]):
                num_steps = self._count_steps()
                is_fresh = tf.equal(self.number.read_value(), num_updates)
                is_first = self.last_numbers.sparse_read(worker) < num_updates
            addition = tf.cond(is_fresh & is_first, lambda: self._add(gradient, num_updates, worker), tf.no_op)
            with tf.control_dependencies([addition, num_steps]):
                update = self._move_on()
            with tf.control_dependencies([update]):
                unlock = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
            with tf.control_dependencies([unlock]):
                wait = self._wait(lambda number: number > num_updates) if self.is_waited_for else unlock
            with tf.control_dependencies([wait]):
                return tf.identity(num_steps)

    def _add(self, gradient: Gradient, num_updates: tf.Tensor, worker: int) -> tf.Operation:
        # Note it first: of a worker that dies here, an update may lack the gradient, but it never has two.
        local_step = tf.int64.max  # or the accumulators, too, would drop what they take for stale
        with tf.control_dependencies([tf.scatter_update(self.last_numbers, worker, num_updates)]):
            additions = [
                accumulator.apply_indexed_slices_grad(rows, local_step)
                for accumulator, rows in zip(self._sums_of_slices, gradient.of_slices, strict=True)
            ]
            return tf.group(*additions, self._gradients.apply_grad(gradient.vector, local_step))

    def _move_on(self) -> tf.Operation:
        num_updates, num_steps = self.number.read_value(), self._count_steps()
        have_added = tf.equal(self.last_numbers.read_value(), num_updates)
        num_added = tf.math.count_nonzero(have_added, dtype=tf.int32)
        num_expected = tf.math.count_nonzero(have_added | self.are_awaited.read_value(), dtype=tf.int32)
        is_complete = num_added >= tf.clip_by_value(num_expected, 1, self._rule.num_gradients)
        is_due = is_complete & (num_steps > 0)
        return tf.cond(is_due, lambda: self._update(num_updates + 1, num_added, num_steps), tf.no_op)

    def _update(self, number: tf.Tensor, num_added: tf.Tensor, num_steps: tf.Tensor) -> tf.Operation:
        # A worker that dies while it makes an update takes gradients with it: then this one applies none.
        are_there = [tf.equal(accumulator.num_accumulated(), num_added) for accumulator in self._accumulators]
        is_whole = tf.reduce_all(tf.stack(are_there))
        change = tf.cond(is_whole, lambda: self._apply(num_added, num_steps), self._drop_gradients)
        with tf.control_dependencies([change]):
            count = self.number.assign(number, read_value=False)
        with tf.control_dependencies([count]):
            return self._ring(number)

    def _apply(self, num_gradients: tf.Tensor, num_steps: tf.Tensor) -> tf.Operation:
        """Apply the average of the gradients that are there."""
        sums = [accumulator.take_grad(1) for accumulator in self._sums_of_slices]  # of all that are there
        num_gradients = tf.cast(num_gradients, tf.float32)
        means = [tf.IndexedSlices(of_slice.values / num_gradients, of_slice.indices) for of_slice in sums]
        return tf.group(self.shard.apply(Gradient(self._gradients.take_grad(1), means), num_steps))
