"""What each worker last said of itself, and who may leave because of it."""

import os
import threading
import time

import tensorflow.compat.v1 as tf
from absl import logging

from runtime import cluster

GRACE_SECS = 20.0  # how long to wait for a worker that took part before, and may come back

LINGER_SECS = 0.5  # how long a ps stays after the chief's last word, so that the chief gets its answer from all

# What a worker says of itself in the roll call.
TRAINING = "training"
TRAINED = "trained"
EVALUATED = "evaluated"  # the chief's last word: nobody needs the ps any more


class RollCall:
    """What each worker last said of itself, kept on every ps; a worker that said nothing is absent ("").

    The cure for a `server.join()` that never returns, after tensorflow/tensorflow#4713. Instead of a queue of "done"
    tokens it is a string variable per worker: reading it takes nothing away, so that the chief and every ps can watch
    it, and a restarted task can look again. An uninitialised variable means absent, so none needs to be initialised.
    """

    def __init__(self, task: cluster.Task):
        """Build the ops for `task` in the default graph: a worker speaks and listens to every ps, a ps to itself."""
        ps_indices = [task.index] if task.job_name == "ps" else range(len(task.ps_hosts))
        entries = [[_build_entry(ps, worker) for ps in ps_indices] for worker in range(len(task.worker_hosts))]
        self._entries = [of_worker[0] for of_worker in entries]
        with tf.device(task.device):
            self._is_heard = [tf.reduce_all([e.is_initialized() for e in of_worker]) for of_worker in entries]
        self._word = tf.placeholder(tf.string, [], name="roll_call/word")
        if task.job_name == "worker":
            self._say = [entry.assign(self._word, read_value=False) for entry in entries[task.index]]

    def say(self, session: tf.Session, word: str) -> None:
        """Let every ps know what this worker is doing."""
        session.run(self._say, {self._word: word})

    def listen(self, session: tf.Session) -> list[str]:
        """Return what each worker last said, by task index.

        What was said before a ps was lost counts as not said: that ps does not know it.
        """
        is_heard = session.run(self._is_heard)
        return [session.run(entry).decode() if is_heard[i] else "" for i, entry in enumerate(self._entries)]


def _build_entry(ps: int, worker: int) -> tf.Variable:
    """Build the variable on one ps that one worker writes; graphs of different tasks share it by its name."""
    with tf.device(f"/job:ps/task:{ps}"), tf.variable_scope("roll_call", reuse=tf.AUTO_REUSE):
        return tf.get_variable(
            f"ps_{ps}_worker_{worker}",
            shape=[],
            dtype=tf.string,
            initializer=tf.constant_initializer(""),
            trainable=False,
            collections=["roll_call"],  # neither initialised nor saved with the model
        )


def start_leaving_when_evaluated(task: cluster.Task, target: str, config: tf.ConfigProto) -> None:
    """Start a thread that logs what the workers say, and ends this ps with status 0 after the chief's last word.

    The process must be ended from a thread, since `server.join()` never returns and a server cannot be stopped.
    """

    def watch_and_leave() -> None:
        status = 1
        try:
            _watch_until_evaluated(task, target, config)
            status = 0
        except Exception:  # whatever it is: a ps that does not watch would stay for ever
            logging.exception("%s: cannot hear when the workers have finished; start it again", task)
        finally:
            logging.flush()
            os._exit(status)

    threading.Thread(target=watch_and_leave, name="watch_and_leave", daemon=True).start()


def _watch_until_evaluated(task: cluster.Task, target: str, config: tf.ConfigProto) -> None:
    """Log each worker's words as they change, and return soon after the chief's last one."""
    with tf.Graph().as_default() as graph:
        roll_call = RollCall(task)
    heard = [""] * len(task.worker_hosts)
    with tf.Session(target, graph=graph, config=config) as session:
        while heard[0] != EVALUATED:
            time.sleep(cluster.POLL_SECS)
            words = roll_call.listen(session)
            for worker, word in enumerate(words):
                if word != heard[worker]:
                    logging.info("%s: worker %d: %s", task, worker, word)
            heard = words
    unfinished = [worker for worker, word in enumerate(heard) if word in ("", TRAINING)]
    without = f", without the last word of {', '.join(f'worker {i}' for i in unfinished)}" if unfinished else ""
    logging.info("%s: the chief has evaluated: leaving%s", task, without)
    time.sleep(LINGER_SECS)


class RollCallHook(tf.train.SessionRunHook):
    """Says when this worker trains and when it has trained; synchronous workers wait for each other before.

    A new model waits for all of them, or fails; one that has trained already goes on without those that do not come
    back soon. `end()` is not called after an error, and then nothing is said.
    """

    def __init__(self, roll_call: RollCall, task: cluster.Task, wait_for_all: bool, startup_timeout_secs: float):
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
            cluster.wait_until_nothing_is_missing(self._task, lambda: self._absent(session), timeout_secs, remedy)
        except TimeoutError as error:
            if is_new:
                raise
            logging.warning("%s", error)

    def _absent(self, session: tf.Session) -> str:
        words = self._roll_call.listen(session)
        return ", ".join(f"worker {i} at {self._task.worker_hosts[i]}" for i, word in enumerate(words) if not word)

    def end(self, session: tf.Session) -> None:
        self._roll_call.say(session, TRAINED)


class WaitForWorkersHook(tf.train.SessionRunHook):
    """Lets the chief end after every worker that trains has taken its last step.

    So the last checkpoint and the evaluation see parameters that nobody changes any more, and in synchronous mode the
    chief, which hands out the tokens, goes last. For the chief only, and first in `chief_only_hooks`.
    """

    def __init__(self, roll_call: RollCall, task: cluster.Task):
        self._roll_call, self._task = roll_call, task

    def end(self, session: tf.Session) -> None:
        try:
            cluster.wait_until_nothing_is_missing(
                self._task, lambda: self._still_training(session), GRACE_SECS, "ending without it"
            )
        except TimeoutError as error:
            logging.warning("%s", error)

    def _still_training(self, session: tf.Session) -> str:
        words = self._roll_call.listen(session)
        others = (i for i, word in enumerate(words) if word == TRAINING and i != self._task.index)
        return ", ".join(f"worker {i} to take its last step" for i in others)
