"""The threads that guard a promise: an error in one ends the process as one of the main thread does."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.errors import reason
from runtime.process import end_process

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
    """Return a daemon thread for `guard(*arguments)`; an error that it does not handle ends this process.

    A hook that guards a session makes it in `after_create_session()`, and starts it before the first step: TensorFlow
    drops a session of which a later hook fails, and stops no coordinator then.
    """

    def run() -> None:
        try:
            guard(*arguments)
        except Exception as error:  # what it guards would not be guarded any more, and nobody would know
            _end_by(error)

    return threading.Thread(target=run, name=name, daemon=True)


def start_guard(name: str, guard: Callable[..., Any], *arguments: Any) -> None:
    """Start what `make_guard()` makes."""
    make_guard(name, guard, *arguments).start()


@contextlib.contextmanager
def reminding(what: str, folder: str, where: str = "") -> Iterator[None]:
    """Log, as long as it goes on, `what` is done with a folder: a file server that is away may never answer."""
    is_done = threading.Event()

    def remind() -> None:
        while not is_done.wait(REMINDER_SECS):
            logging.warning("%s: see that %s answers%s", what, folder, where)

    start_guard("remind", remind)
    try:
        yield
    finally:
        is_done.set()


def repeat_in_session(coord: tf.train.Coordinator, act: Callable[[], bool], period_secs: float, failure: str) -> None:
    """Call `act()` once in a period until it returns True, or the session of `coord` has an end.

    An error that may pass while the session goes on is logged after `failure`, such as "worker 0 could not save", once
    for as long as it lasts; then `act()` has another try. Any other error would be the same next time.
    """
    is_failing = False
    while not coord.should_stop():
        start = time.monotonic()
        try:
            if act():
                return
            is_failing = False
        except (tf.errors.OpError, RuntimeError) as error:  # a RuntimeError is that of a session which is closed
            if coord.should_stop():
                return
            if not isinstance(error, PASSING):
                raise
            if not is_failing:
                logging.warning("%s (%s): trying again", failure, reason(error))
            is_failing = True
        coord.wait_for_stop(max(0.0, start + period_secs - time.monotonic()))
