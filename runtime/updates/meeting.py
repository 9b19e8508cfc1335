"""Where workers wait for each other on a ps, for a synchronous update or for the slowest of them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from runtime.updates.packing import read
from runtime.updates.ps_shard import PsShard

ALL = tf.int64.max


class Rule(NamedTuple):
    """When an update happens."""

    num_workers: int
    num_gradients: int  # that an update averages while enough workers are there
    max_steps: int  # that each of them stands for

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
                number = read(self.number)
            with tf.control_dependencies([number]):
                unlock = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
            with tf.control_dependencies([unlock]):
                return tf.identity(number)

        with tf.device(self.shard.device), tf.control_dependencies(after):
            return tf.cond(self.are_awaited.sparse_read(worker), lambda: read(self.number), come)

    def read(self, after: Sequence[tf.Tensor]) -> tf.Tensor:
        """Build the number, int64 [], after something on this ps."""
        with tf.device(self.shard.device), tf.control_dependencies(after):
            return read(self.number)

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
                are_awaited = read(self.are_awaited) & ~are_lost
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

    def _wait(self, is_enough: Callable[[tf.Tensor], tf.Tensor], awaited: tf.Tensor) -> tf.Tensor:
        """Wait until the number is enough, such as the `awaited` one, for which a bell rings, or training has ended."""
        bell = tf.gather(self._bells, awaited % 2)

        def must_wait(_: tf.Tensor) -> tf.Tensor:
            return ~is_enough(read(self.number)) & (self._count_steps_left() > 0)

        def hear(_: tf.Tensor) -> tf.Tensor:
            return tf.ensure_shape(*tf.raw_ops.QueueDequeueV2(handle=bell, component_types=[tf.bool]), [])

        return tf.while_loop(must_wait, hear, [True], parallel_iterations=1, back_prop=False)

    def _ring(self, number: tf.Tensor | int) -> tf.Operation:
        """Wake the workers that wait for a number; a bell holds at most one ring for each worker."""
        if not self.is_waited_for:
            return tf.no_op()
        bell = tf.gather(self._bells, number % 2)
        num_rings = self._rule.num_workers - tf.raw_ops.QueueSizeV2(handle=bell)
        return tf.raw_ops.QueueEnqueueManyV2(handle=bell, components=[tf.fill([num_rings], True)])

    def _count_steps_left(self) -> tf.Tensor:
        """Build the number of steps, int64 [], that are left; none if it is not above 0."""
        return self.shard.count_steps_left(read(self.shard.steps))


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
            return self._wait(lambda number: own <= number + self._max_staleness, number)  # each move rings both bells

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
        number = read(self.number)
        slowest = tf.reduce_min(
            tf.where(self.are_awaited, self.last_numbers + 1, tf.fill([self._rule.num_workers], ALL))
        )

        is_moving = (slowest > number) & (slowest < ALL)
        move = tf.cond(is_moving, lambda: self.number.assign(slowest, read_value=False), tf.no_op)
        with tf.control_dependencies([move]):  # nobody waits after the end either
            must_ring = is_moving | (self._count_steps_left() <= 0)
            return tf.cond(must_ring, lambda: tf.group(self._ring(0), self._ring(1)), tf.no_op)
