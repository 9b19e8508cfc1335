"""Lost workers: how synchronous training goes on without their gradients."""

from collections.abc import Sequence

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.status import describe, unreachable
from runtime.cluster.task import Task
from runtime.updates.aggregation import Aggregation, Rule

LOOK_SECS = 1.0  # how often the chief looks whether synchronous training moves


class LostWorkersHook(tf.train.SessionRunHook):
    """Lets each update have as many gradients as there are workers that answer, if these are fewer. For the chief.

    While updates happen and lack nothing, an exchange may take as long as it takes. When none has happened for a look,
    the chief asks who answers, and tells every ps how many gradients an update needs. A ps that has them makes the
    update, and wakes who waits for one. So it also goes on if the worker that was to do so has died.

    Several ps tasks may have taken different gradients while a worker that was taken for lost was there after all. Then
    all workers may wait, each for an update that lacks another one. So these are released.

    A `SessionThread` looks.
    """

    def __init__(self, aggregations: Sequence[Aggregation], rule: Rule, task: Task):
        """Build the ops of `task`, the chief, in the default graph."""
        self.aggregations, self._rule, self._task = aggregations, rule, task
        self._global_step = tf.train.get_global_step()
        self._steps = [aggregation.holding.steps for aggregation in aggregations]
        self._num_updates = [aggregation.num_updates for aggregation in aggregations]
        self._last_added = [aggregation.last_added for aggregation in aggregations]
        self._num_required = tf.placeholder(tf.int32, [], name="num_required")
        self._is_release = tf.placeholder(tf.bool, [], name="is_release")
        self._require = [a.build_require(self._num_required, self._is_release) for a in aggregations]

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        self._is_stepping = False
        self._last_counts = list[int]()
        self._last_num_required = 0  # unknown: a chief before this one may have told them

    def before_run(self, run_context: tf.train.SessionRunContext) -> None:
        self._is_stepping = True

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        self._is_stepping = False

    def look(self, session: tf.Session, coord: tf.train.Coordinator) -> bool:
        """Look whether updates happen; if none does, tell the ps tasks who answers. It is never done."""
        counts, steps, step = session.run([self._num_updates, self._steps, self._global_step])
        is_moving, self._last_counts = counts != self._last_counts, counts
        # After the end nobody waits, and the others may have left.
        if min(steps) >= self._rule.train_steps or (is_moving and self._last_num_required == self._rule.num_gradients):
            return False
        lost = unreachable(self._task.others("worker"))
        is_live = np.ones(self._rule.num_workers, bool)
        is_live[[worker.index for worker in lost]] = False
        # A chief that has taken its last step waits for the others, and these may still wait for another ps.
        is_live[self._task.index] = self._is_stepping or step < self._rule.train_steps
        num_required = int(np.clip(is_live.sum(), 1, self._rule.num_gradients))
        if is_moving and num_required == self._last_num_required:
            return False
        on_each_ps = zip(self.aggregations, session.run(self._last_added), counts, strict=True)
        is_waiting = np.any([added == count for a, added, count in on_each_ps if a.is_waited_for], axis=0)
        is_release = not is_moving and bool(is_waiting[is_live].all())
        is_release = is_release and session.run(self._num_updates) == counts  # else somebody waits no more
        session.run(self._require, {self._num_required: num_required, self._is_release: is_release})
        if num_required != (self._last_num_required or self._rule.num_gradients):
            logging.warning(
                "%s: from synchronous update %d on: the average of %d of %d gradients%s",
                self._task,
                counts[0] + 1,
                num_required,
                self._rule.num_gradients,
                f", without {describe(lost)}" if lost else "",
            )
        self._last_num_required = num_required
        return False
