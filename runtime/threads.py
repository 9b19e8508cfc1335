"""The threads that guard a promise: none of them ends because of an error without a word."""

import threading
import time
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.errors import UNUSABLE_STATUS, UnusableError, reason
from runtime.process import end_process


def start_guard(name: str, guard: Callable[..., Any], *arguments: Any) -> None:
    """Run `guard(*arguments)` in a daemon thread; an error that it does not handle ends this process with a status."""

    def run() -> None:
        try:
            guard(*arguments)
        except UnusableError as error:
            end_process(UNUSABLE_STATUS, str(error))
        except Exception as error:  # what it guards would not be guarded any more, and nobody would know
            logging.debug("unexpected error", exc_info=True)
            end_process(1, f"the thread {name} cannot go on ({reason(error)}); start this task again")

    threading.Thread(target=run, name=name, daemon=True).start()


def repeat_in_session(coord: tf.train.Coordinator, act: Callable[[], bool], period_secs: float, failure: str) -> None:
    """Call `act()` once in a period until it returns True, or the session of `coord` has an end.

    An error of TensorFlow while the session goes on is logged after `failure`, such as "worker 0 could not save", once
    for as long as it lasts; then `act()` has another try.
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
            if not is_failing:
                logging.warning("%s (%s): trying again", failure, reason(error))
            is_failing = True
        coord.wait_for_stop(max(0.0, start + period_secs - time.monotonic()))
