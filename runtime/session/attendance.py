"""When the workers wait for each other: synchronous ones before the first step, the chief after the last."""

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.roll_call import TRAINED, TRAINING, RollCall
from runtime.cluster.task import Task
from runtime.cluster.waiting import wait_until_nothing_is_missing

GRACE_SECS = 20.0  # how long to wait for a worker that took part before, and may come back


class RollCallHook(tf.train.SessionRunHook):
    """Says when this worker trains and when it has trained; synchronous workers wait for each other before that.

    A new model waits for all of them, or fails. One that has trained already goes on without those that do not come
    back soon. TensorFlow does not call `end()` after an error, so nothing is said then.
    """

    def __init__(self, roll_call: RollCall, task: Task, wait_for_all: bool, startup_timeout_secs: float):
        self._roll_call, self._task = roll_call, task
        self._wait_for_all, self._startup_timeout_secs = wait_for_all, startup_timeout_secs

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        self._roll_call.say(session, TRAINING)
        if not self._wait_for_all:
            return
        is_new = session.run(tf.train.get_global_step(session.graph)) == 0
        timeout_secs = self._startup_timeout_secs if is_new else min(GRACE_SECS, self._startup_timeout_secs)
        remedy = "start each missing worker, or correct --worker_hosts" if is_new else "training goes on"
        try:
            wait_until_nothing_is_missing(self._task, lambda: self._describe_absent(session), timeout_secs, remedy)
        except TimeoutError as error:
            if is_new:
                raise
            logging.warning("%s", error)

    def _describe_absent(self, session: tf.Session) -> str:
        words = self._roll_call.listen(session)
        return ", ".join(f"worker {i} at {self._task.worker_hosts[i]}" for i, word in enumerate(words) if not word)

    def end(self, session: tf.Session) -> None:
        self._roll_call.say(session, TRAINED)


class WaitForWorkersHook(tf.train.SessionRunHook):
    """Lets the chief end after every worker that trains has taken its last step.

    So the last checkpoint and the evaluation see parameters that nobody changes any more. In synchronous mode the chief
    hands out the tokens, so it must go last. For the chief only, and first in `chief_only_hooks`.
    """

    def __init__(self, roll_call: RollCall, task: Task):
        self._roll_call, self._task = roll_call, task

    def end(self, session: tf.Session) -> None:
        try:
            wait_until_nothing_is_missing(
                self._task, lambda: self._describe_training(session), GRACE_SECS, "ending without it"
            )
        except TimeoutError as error:
            logging.warning("%s", error)

    def _describe_training(self, session: tf.Session) -> str:
        words = self._roll_call.listen(session)
        others = (i for i, word in enumerate(words) if word == TRAINING and i != self._task.index)
        return ", ".join(f"worker {i} to take its last step" for i in others)
