"""When the workers wait for each other: synchronous ones before the first step, the chief after the last."""

import contextlib
import time

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.board import TRAINED, TRAINING, Record, absent
from runtime.cluster.membership import Membership
from runtime.cluster.status import STARTING, describe
from runtime.cluster.task import Peer
from runtime.cluster.waiting import wait_until_nothing_is_missing
from runtime.process.errors import AwayError, reason

GRACE_SECS = 20.0  # how long to wait for a worker that may come back, or still comes


class AttendanceHook(tf.train.SessionRunHook):
    """Says when this worker trains and when it has trained; synchronous workers wait for each other before that.

    A new model waits for all of them, or fails. One that has trained already, or takes the place of a lost one, goes on
    without those that do not come back soon. TensorFlow does not call `end()` after an error, so nothing is said then.
    An asynchronous worker that has trained has nothing left to do, even if a ps is lost before it can say so.
    """

    def __init__(self, membership: Membership, wait_for_all: bool):
        self._membership, self._task, self._wait_for_all = membership, membership.task, wait_for_all
        self._present: set[Record] = set()
        self._compared: set[Peer] = set()  # workers that have the host lists of this one
        self._was_complete = False

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        self._membership.board.say(TRAINING)
        if coord.should_stop():  # the model has reached its goal: the others may have left
            return
        if self._wait_for_all:
            self._wait(session)
        self._membership.agreement.begin_training()

    def _wait(self, session: tf.Session) -> None:
        self._present.clear()
        is_new = not self._was_complete and session.run(tf.train.get_global_step(session.graph)) == 0
        startup_secs = self._membership.timeouts.startup_secs
        timeout_secs = startup_secs if is_new else min(GRACE_SECS, startup_secs)
        must_come = (
            "start each missing worker, correct --worker_hosts, or, if one is still reading, raise"
            " --startup_timeout_secs"
        )
        remedy = must_come if is_new else "training goes on"
        try:
            wait_until_nothing_is_missing(self._task, self._describe_absent, timeout_secs, remedy)
            self._was_complete = True  # some may have trained and left, when a model begins again
        except AwayError as error:
            if is_new:
                raise
            logging.warning("%s", error)

    def _describe_absent(self) -> str:
        records = self._membership.board.records()
        unseen = [worker for worker in self._task.clients if records[worker.index] not in self._present]
        missing = absent(unseen, records)
        for worker in missing.keys() - self._compared:  # one of another cluster would never say that it trains
            if missing[worker] == STARTING and self._membership.agreement.heed(worker):
                self._compared.add(worker)
        self._present |= {records[worker.index] for worker in unseen if worker not in missing}
        return describe(missing)

    def end(self, session: tf.Session) -> None:
        try:
            self._membership.board.repeat_until_answered(lambda: self._membership.board.say(TRAINED))
        except (AwayError, tf.errors.UnavailableError) as error:
            if self._task.is_chief or self._wait_for_all:
                raise
            logging.warning("%s: not every ps knows that it has finished training (%s)", self._task, reason(error))


class _StillTrainingError(Exception):
    """A worker has not taken its last step in time, though every ps answers."""


class WaitForWorkersHook(tf.train.SessionRunHook):
    """Lets the chief end after every worker that trains has taken its last step.

    So the last checkpoint and the evaluation see parameters that no longer change. In synchronous mode the chief
    tells the ps tasks who is lost, so it must go last. It waits the recovery timeout for workers that answer, and
    `GRACE_SECS` for those that do not. One that answers, but has not begun, also gets `GRACE_SECS` to join while the ps
    tasks are there: it finds that nothing is left to do. For the chief only.
    """

    def __init__(self, membership: Membership):
        self._membership, self._task = membership, membership.task
        self._has_trained = False

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        self._has_trained = True

    def end(self, session: tf.Session) -> None:
        start = time.monotonic()
        answered_at = dict.fromkeys(self._task.clients, start)

        def describe_awaited() -> str:
            records = self._membership.board.repeat_until_answered(self._membership.board.records)
            training = [worker for worker in answered_at if records[worker.index].state == TRAINING]
            coming = [worker for worker in answered_at if not records[worker.index].state]
            # A ps that was restarted has forgotten all of them, the chief too.
            if not records[0].state or time.monotonic() > start + GRACE_SECS:
                coming.clear()
            missing, now = absent([*training, *coming], records), time.monotonic()
            answered_at.update(dict.fromkeys({*training} - missing.keys(), now))
            awaited = [worker for worker in training if now < answered_at[worker] + GRACE_SECS]
            texts = [f"worker {of.index} to begin" for of in coming if missing.get(of) == STARTING]
            for of in awaited:
                why = missing.get(of, "")
                awaits = "begin" if why == STARTING else f"take its last step ({why})".removesuffix(" ()")
                texts.append(f"worker {of.index} to {awaits}")
            return ", ".join(texts)

        recovery_secs = self._membership.timeouts.recovery_secs
        with contextlib.suppress(_StillTrainingError):  # who does is named below
            wait_until_nothing_is_missing(self._task, describe_awaited, recovery_secs, error=_StillTrainingError)
        records = self._membership.board.repeat_until_answered(self._membership.board.records)
        for worker, record in zip(answered_at, records[1:], strict=True):
            if record.state == TRAINING:
                logging.warning("%s: ending without %s, which has not taken its last step", self._task, worker)
            elif not record.state and self._has_trained:  # else it may only be slower
                logging.warning("%s: %s never took part while this process trained", self._task, worker)
