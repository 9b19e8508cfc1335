"""Where the gradients of a synchronous update come together: on one ps, which needs no other for that."""

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from runtime.model.roles import SET, SUM
from runtime.updates.meeting import Meeting, Rule
from runtime.updates.packing import read
from runtime.updates.ps_shard import Gradient, PsShard


class Aggregation(Meeting):
    """Averages the gradients of several workers on a ps; the worker that brings the last of them applies the average.

    The updates are numbered. A gradient is for the one after those that its worker has read, and is dropped if that was
    made without it. It is dropped, too, if the update has one of this worker, from before a restart: it never has two.
    Unless it was made without it, a worker waits until the number has changed.

    Of state, what workers add is added up, and of what they assign, the last counts: as on a variable that they share.

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
        self._is_sum, self._is_set = shard.find(SUM), shard.find(SET)
        if self._is_set is not None:
            with tf.device(shard.device):
                self._last = self._make_variable("last_gradient", lambda: tf.zeros([shard.size]))
            self.variables.append(self._last)

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
                is_fresh = tf.equal(read(self.number), num_updates)
                is_first = self.last_numbers.sparse_read(worker) < num_updates
            addition = tf.cond(is_fresh & is_first, lambda: self._add(gradient, num_updates, worker), tf.no_op)
            with tf.control_dependencies([addition]):
                num_steps = self._count_steps()
                update = self._move_on(num_steps)
            with tf.control_dependencies([update]):
                unlock = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
            with tf.control_dependencies([unlock]):
                wait = unlock
                if self.is_waited_for:
                    wait = self._wait(lambda number: number > num_updates, num_updates + 1)
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
            if self._is_set is not None:
                additions.append(self._last.assign(gradient.vector, read_value=False))
            return tf.group(*additions, self._gradients.apply_grad(gradient.vector, local_step))

    def _count_steps(self) -> tf.Tensor:
        """Build the number of steps, int64 [], that the next update stands for."""
        return tf.clip_by_value(self._count_steps_left(), 0, self._rule.max_steps)

    def _move_on(self, num_steps: tf.Tensor | None = None) -> tf.Operation:
        num_updates, num_steps = read(self.number), self._count_steps() if num_steps is None else num_steps
        have_added = tf.equal(read(self.last_numbers), num_updates)
        num_added = tf.reduce_sum(tf.cast(have_added, tf.int32))
        num_expected = tf.reduce_sum(tf.cast(have_added | read(self.are_awaited), tf.int32))
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
        vector = self._gradients.take_grad(1)
        if self._is_sum is not None:
            vector = tf.where(self._is_sum, num_gradients * vector, vector)
        if self._is_set is not None:
            vector = tf.where(self._is_set, read(self._last), vector)
        return tf.group(self.shard.apply(Gradient(vector, means), num_steps))
