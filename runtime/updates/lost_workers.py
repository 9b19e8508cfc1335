"""Lost workers: how those that wait for each other go on without them."""

import time
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.board import absent
from runtime.cluster.membership import Membership
from runtime.cluster.status import describe
from runtime.cluster.task import Peer
from runtime.process.threads import SessionThread
from runtime.updates.exchange import Updates
from runtime.updates.meeting import Meeting, Rule
from runtime.updates.ps_shard import PsShard

LOOK_SECS = 1.0  # how often the chief looks whether training moves
REMINDER_SECS = 60.0  # how often it says whom it waits for while nothing moves


class LostWorkersHook(tf.train.SessionRunHook):
    """Lets nobody wait for a worker that does not train any more, until its next step. For the chief.

    While the numbers grow, an exchange may take as long as it takes. When none has grown for a look, the chief asks
    who still trains, and tells every ps who is lost. A `SessionThread` looks.
    """

    def __init__(self, meetings: Sequence[Meeting], rule: Rule, membership: Membership):
        """Build the ops of the chief, which has this `membership`, in the default graph."""
        self.meetings, self._rule = meetings, rule
        self._membership, self._task = membership, membership.task
        self._last_num_gradients = rule.num_gradients
        numbers = [meeting.number for meeting in meetings]
        shards = [meeting.shard for meeting in meetings]
        steps_left = [shard.count_steps_left(shard.steps.read_value()) for shard in shards]
        self._of_model = [shard.steps is tf.train.get_global_step() for shard in shards].index(True)
        waited_for = [meeting for meeting in meetings if meeting.is_waited_for]
        self._fetches = [numbers, steps_left, waited_for[0].are_awaited]
        # A worker is late if every ps waits for it: one that itself waits for a ps has been heard there already.
        self._are_late = tf.reduce_all(tf.stack([meeting.build_are_late() for meeting in waited_for]), axis=0)
        self._are_lost = tf.placeholder(tf.bool, [rule.num_workers], name="are_lost")
        self._forget = [meeting.build_forget(self._are_lost) for meeting in meetings]

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
        """Look whether the numbers grow; if none does, tell the ps tasks who is lost. It is never done."""
        counts, steps_left, are_awaited = session.run(self._fetches)
        is_moving, self._last_counts = counts != self._last_counts, counts
        if max(steps_left) <= 0:  # no worker waits any more, and the others may have left
            return False
        lost = dict[Peer, str]()
        if not is_moving:
            lost = absent(self._task.others("worker"), self._membership.board.records())
            are_lost = np.zeros(self._rule.num_workers, bool)
            are_lost[[worker.index for worker in lost]] = True
            # A chief that has taken its last step waits for the others, and these may still wait for another ps.
            are_lost[self._task.index] = steps_left[self._of_model] <= 0 and not self._is_stepping
            session.run(self._forget, {self._are_lost: are_lost})
            are_awaited &= ~are_lost
        if is_moving:
            self._still_since = time.monotonic()
        elif time.monotonic() > self._still_since + REMINDER_SECS:
            self._still_since = time.monotonic()
            late = ", ".join(f"worker {index}" for index in np.flatnonzero(session.run(self._are_late)))
            awaited = f"the gradient of {late}; check what each reads or computes" if late else "a ps"
            move = self.meetings[0].MOVE
            logging.warning("%s: no %s for %g s: waiting for %s", self._task, move, REMINDER_SECS, awaited)
        self._log_change(counts[0] + 1, are_awaited.sum(), lost)
        return False

    def _log_change(self, number: int, num_awaited: int, lost: Mapping[Peer, str]) -> None:
        num_gradients = min(max(num_awaited, 1), self._rule.num_gradients)
        if num_gradients != self._last_num_gradients:
            logging.warning(
                f"%s: {self.meetings[0].CHANGE}",
                self._task,
                number,
                num_gradients,
                self._rule.num_gradients,
                f", without {describe(lost)}" if lost else "",
            )
        self._last_num_gradients = num_gradients


def watch(
    updates: Updates, shards: Sequence[PsShard], meetings: Sequence[Meeting], rule: Rule, membership: Membership
) -> Updates:
    """Let the chief watch over those that wait for each other, and end training."""
    hooks, ends = list[tf.train.SessionRunHook](), list[tf.Operation]()
    if membership.task.is_chief:
        # First where the global step is, which tells the workers: one that is cut off then ends none of it, or all.
        for shard in sorted(shards, key=lambda shard: shard.steps is not tf.train.get_global_step()):
            with tf.device(shard.device), tf.control_dependencies(ends):
                ends.append(shard.last_step.assign(0, read_value=False))
        with tf.control_dependencies(ends):  # wake who waits
            ends += [meeting.build_forget(tf.fill([rule.num_workers], False)) for meeting in meetings]
    if ends and meetings:
        lost = LostWorkersHook(meetings, rule, membership)
        what = f"{membership.task} could not check which workers are lost"
        hooks = [lost, SessionThread("look", lost.look, LOOK_SECS, what)]
    unsaved = [*updates.unsaved_variables, *(variable for meeting in meetings for variable in meeting.variables)]
    return updates._replace(hooks=hooks, unsaved_variables=unsaved, end=tf.group(*ends))
