"""Lost workers: how synchronous training goes on without their gradients."""

import time
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.membership import Membership
from runtime.cluster.status import describe
from runtime.cluster.table import absent
from runtime.cluster.task import Peer
from runtime.updates.aggregation import Aggregation, Rule

LOOK_SECS = 1.0  # how often the chief looks whether synchronous training moves
REMINDER_SECS = 60.0  # how often it says whom it waits for while nothing moves


class LostWorkersHook(tf.train.SessionRunHook):
    """Lets no update wait for a worker that does not train any more, until its next step. For the chief.

    While updates happen, an exchange may take as long as it takes. When none has happened for a look, the chief asks
    who still trains, and tells every ps who is lost. A `SessionThread` looks.
    """

    def __init__(self, aggregations: Sequence[Aggregation], rule: Rule, membership: Membership):
        """Build the ops of the chief, which has this `membership`, in the default graph."""
        self.aggregations, self._rule = aggregations, rule
        self._membership, self._task = membership, membership.task
        self._last_num_gradients = rule.num_gradients
        num_updates = [aggregation.num_updates for aggregation in aggregations]
        steps = [aggregation.shard.steps for aggregation in aggregations]
        waited_for = [aggregation for aggregation in aggregations if aggregation.is_waited_for]
        self._fetches = [num_updates, steps, tf.train.get_global_step(), waited_for[0].are_awaited]
        # A worker is late if every ps waits for it: one that itself waits for a ps has been heard there already.
        are_late = [a.are_awaited & (a.last_added < a.num_updates) for a in waited_for]
        self._are_late = tf.reduce_all(tf.stack(are_late), axis=0)
        self._are_lost = tf.placeholder(tf.bool, [rule.num_workers], name="are_lost")
        self._forget = [aggregation.build_forget(self._are_lost) for aggregation in aggregations]

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        self._is_stepping = False
        self._last_counts, self._still_since = list[int](), time.monotonic()
        if coord.should_stop():  # a chief that was started again takes no step, and others may wait for its last one
            for _ in range(2):  # the first look only counts
                self.look(session, coord)

    def before_run(self, run_context: tf.train.SessionRunContext) -> None:
        self._is_stepping = True

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        self._is_stepping = False

    def look(self, session: tf.Session, coord: tf.train.Coordinator) -> bool:
        """Look whether updates happen; if none does, tell the ps tasks who is lost. It is never done."""
        counts, steps, step, are_awaited = session.run(self._fetches)
        is_moving, self._last_counts = counts != self._last_counts, counts
        if min(steps) >= self._rule.train_steps:  # no worker waits any more, and the others may have left
            return False
        lost = dict[Peer, str]()
        if not is_moving:
            lost = absent(self._task.others("worker"), self._membership.records())
            are_lost = np.zeros(self._rule.num_workers, bool)
            are_lost[[worker.index for worker in lost]] = True
            # A chief that has taken its last step waits for the others, and these may still wait for another ps.
            are_lost[self._task.index] = step >= self._rule.train_steps and not self._is_stepping
            session.run(self._forget, {self._are_lost: are_lost})
            are_awaited &= ~are_lost
        if is_moving:
            self._still_since = time.monotonic()
        elif time.monotonic() > self._still_since + REMINDER_SECS:
            self._still_since = time.monotonic()
            late = ", ".join(f"worker {index}" for index in np.flatnonzero(session.run(self._are_late)))
            awaited = f"the gradient of {late}; see what each reads or computes" if late else "a ps"
            logging.warning("%s: no synchronous update for %g s: waiting for %s", self._task, REMINDER_SECS, awaited)
        self._log_change(counts[0] + 1, are_awaited.sum(), lost)
        return False

    def _log_change(self, number: int, num_awaited: int, lost: Mapping[Peer, str]) -> None:
        num_gradients = min(max(num_awaited, 1), self._rule.num_gradients)
        if num_gradients != self._last_num_gradients:
            logging.warning(
                "%s: from synchronous update %d on: the average of %d of %d gradients%s",
                self._task,
                number,
                num_gradients,
                self._rule.num_gradients,
                f", without {describe(lost)}" if lost else "",
            )
        self._last_num_gradients = num_gradients
