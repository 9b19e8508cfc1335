"""When the workers wait for each other: synchronous ones before the first step, the chief after the last."""

import contextlib
import time

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster import host_lists
from runtime.cluster.roll_call import TRAINED, TRAINING, RollCall, Word
from runtime.cluster.status import statuses_of, unreachable
from runtime.cluster.task import Task
from runtime.cluster.waiting import wait_until_nothing_is_missing
from runtime.errors import reason

GRACE_SECS = 20.0  # how long to wait for a worker that took part before, and may come back


class RollCallHook(tf.train.SessionRunHook):
    """Says when this worker trains and when it has trained; synchronous workers wait for each other before that.

    A new model waits for all of them, or fails. One that has trained already, or takes the place of a lost one, goes on
    without those that do not come back soon. TensorFlow does not call `end()` after an error, so nothing is said then.
    An asynchronous worker that has trained has nothing left to do, even if a ps is lost before it can say so.
    """

    def __init__(self, roll_call: RollCall, task: Task, wait_for_all: bool, startup_timeout_secs: float):
        self._roll_call, self._task = roll_call, task
        self._wait_for_all, self._startup_timeout_secs = wait_for_all, startup_timeout_secs
        self._present: set[Word] = set()
        self._was_complete = False

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        self._roll_call.say(session, TRAINING)
        if coord.should_stop():  # the model has reached its goal: the others may have left
            return
        if self._wait_for_all:
            self._wait(session)
        host_lists.begin_training()

    def _wait(self, session: tf.Session) -> None:
        self._present.clear()
        is_new = not self._was_complete and session.run(tf.train.get_global_step(session.graph)) == 0
        timeout_secs = self._startup_timeout_secs if is_new else min(GRACE_SECS, self._startup_timeout_secs)
        remedy = "start each missing worker, or correct --worker_hosts" if is_new else "training goes on"
        try:
            wait_until_nothing_is_missing(self._task, lambda: self._describe_absent(session), timeout_secs, remedy)
            self._was_complete = True  # some may have trained and left, when a model begins again
        except TimeoutError as error:
            if is_new:
                raise
            logging.warning("%s", error)

    def _describe_absent(self, session: tf.Session) -> str:
        words = self._roll_call.listen(session)
        statuses = statuses_of([worker for worker in self._task.clients if words[worker.index] not in self._present])
        # The process that said the word must still answer: that of an earlier one does not count.
        spoken = {words[worker.index]: status.incarnation for worker, status in statuses.items()}
        self._present |= {word for word, found in spoken.items() if word.incarnation and word.incarnation == found}
        absent = {worker: of.reason for worker, of in statuses.items() if words[worker.index] not in self._present}
        return ", ".join(f"{worker} ({reason})" if reason else f"{worker}" for worker, reason in absent.items())

    def end(self, session: tf.Session) -> None:
        try:
            self._roll_call.say(session, TRAINED)
        except tf.errors.OpError as error:
            if self._task.is_chief or self._wait_for_all:
                raise
            logging.warning("%s: its last word has not reached every ps (%s)", self._task, reason(error))


class WaitForWorkersHook(tf.train.SessionRunHook):
    """Lets the chief end after every worker that trains has taken its last step.

    So the last checkpoint and the evaluation see parameters that nobody changes any more. In synchronous mode the chief
    tells the ps tasks who is lost, so it must go last. For the chief only, and first in `chief_only_hooks`.
    """

    def __init__(self, roll_call: RollCall, task: Task, recovery_timeout_secs: float):
        """Wait `GRACE_SECS` for workers that do not answer, and `recovery_timeout_secs` for those that do."""
        self._roll_call, self._task, self._recovery_timeout_secs = roll_call, task, recovery_timeout_secs
        self._has_trained = False

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        self._has_trained = True

    def end(self, session: tf.Session) -> None:
        answered_at = dict.fromkeys(self._task.clients, time.monotonic())

        def describe_training() -> str:
            words = self._roll_call.listen(session)
            training = [worker for worker in answered_at if words[worker.index].text == TRAINING]
            missing, now = unreachable(training), time.monotonic()
            answered_at.update(dict.fromkeys(set(training) - missing.keys(), now))
            awaited = [worker for worker in training if now < answered_at[worker] + GRACE_SECS]
            return ", ".join(f"worker {worker.index} to take its last step" for worker in awaited)

        with contextlib.suppress(TimeoutError):  # what is missing then is named below
            wait_until_nothing_is_missing(self._task, describe_training, self._recovery_timeout_secs)
        for worker, word in zip(answered_at, self._roll_call.listen(session)[1:], strict=True):
            if word.text == TRAINING:
                logging.warning("%s: ending without %s, which has not taken its last step", self._task, worker)
            elif not word.text and self._has_trained:  # else it may only be slower
                logging.warning("%s: %s never took part", self._task, worker)
