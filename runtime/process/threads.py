"""The threads that guard a promise: an error in one ends the process as one of the main thread does."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.process.end import end_process
from runtime.process.errors import reason

REMINDER_SECS = 10.0  # how often a wait repeats what it waits for

# What another attempt may not meet: a network that fails, a ps that ends, and memory that was short.
PASSING = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.ResourceExhaustedError,
)


def _end_unstarted(error: Exception) -> NoReturn:
    end_process(1, f"{reason(error)}; start this task again")


_end_by: Callable[[Exception], NoReturn] = _end_unstarted


def end_on_errors_by(end_by: Callable[[Exception], NoReturn]) -> None:
    """Let an error of a thread end this process as one of the main thread does, which `end_by(error)` ends."""
    global _end_by
    _end_by = end_by


def make_guard(name: str, guard: Callable[..., Any], *arguments: Any) -> threading.Thread:
    """Return a daemon thread for `guard(*arguments)`; an error that it does not handle ends this process."""

    def run() -> None:
        try:
            guard(*arguments)
        except Exception as error:  # else what it guards would silently lose its guard
            _end_by(error)

    return threading.Thread(target=run, name=name, daemon=True)


def start_guard(name: str, guard: Callable[..., Any], *arguments: Any) -> None:
    """Start what `make_guard()` makes."""
    make_guard(name, guard, *arguments).start()


def close_in_background(session: tf.Session) -> None:
    """Close a session of which nobody needs to wait for the end: that may take long where a network fails."""

    def close() -> None:
        with contextlib.suppress(tf.errors.OpError):  # a server that is gone does not answer
            session.close()

    start_guard("close_session", close)


def start_reminding(level: int, line: str, period_secs: float) -> threading.Event:
    """Log a line once in each period, until the event that this returns is set."""
    is_done = threading.Event()

    def remind() -> None:
        while not is_done.wait(period_secs):
            logging.log(level, "%s", line)

    start_guard("remind", remind)
    return is_done


@contextlib.contextmanager
def reminding(what: str, folder: str, where: str = "") -> Iterator[None]:
    """Log, as long as it goes on, `what` is done with a folder: a file server that is away may never answer."""
    is_done = start_reminding(logging.WARNING, f"{what}: check that {folder} responds{where}", REMINDER_SECS)
    try:
        yield
    finally:
        is_done.set()


class SessionThread(tf.train.SessionRunHook):
    """A thread beside the steps of each session, which acts once in a period, until `act()` returns True.

    It starts with the first step, since the workers may wait for each other before that, and ends with its session.
    TensorFlow drops a session of which a hook fails, and stops no coordinator then; so it must not start earlier.

    An error that may pass while the session goes on is logged after `failure`, such as "worker 0 could not save", once
    for as long as it lasts; then `act()` has another try. Any other error would be the same next time.
    """

    def __init__(
        self, name: str, act: Callable[[tf.Session, tf.train.Coordinator], bool], period_secs: float, failure: str
    ):
        self._name, self._act, self._period_secs, self._failure = name, act, period_secs, failure
        self._thread = threading.Thread()

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        if self._thread.ident:
            self._thread.join()  # what it runs is cancelled; but it must not act beside what comes now
        self._thread = make_guard(self._name, self._repeat, session, coord)

    def before_run(self, run_context: tf.train.SessionRunContext) -> None:
        if self._thread.ident is None:
            self._thread.start()

    def _repeat(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        is_failing = False
        while not coord.should_stop():
            start = time.monotonic()
            try:
                if self._act(session, coord):
                    return
                is_failing = False
            except (tf.errors.OpError, RuntimeError) as error:  # a RuntimeError is that of a session which is closed
                if coord.should_stop():
                    return
                if not isinstance(error, PASSING):
                    raise
                if not is_failing:
                    logging.warning("%s (%s): trying again", self._failure, reason(error))
                is_failing = True
            coord.wait_for_stop(max(0.0, start + self._period_secs - time.monotonic()))
