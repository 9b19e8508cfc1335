"""How a task waits: it says what it waits for, and not for ever."""

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from absl import logging

from runtime.cluster import probes
from runtime.cluster.task import Task

POLL_SECS = 0.2
REMINDER_SECS = 10.0  # how often a wait repeats what it waits for


class Timeouts(NamedTuple):
    """How long a task waits for those that it needs."""

    startup_secs: float  # for a ps or the chief that has never answered
    recovery_secs: float  # for one that was lost


def wait_until_nothing_is_missing(
    task: Task, describe_missing: Callable[[], str], timeout_secs: float = math.inf, remedy: str = ""
) -> None:
    """Poll until `describe_missing()` returns an empty text, and log what it returns whenever that changes.

    Raises:
      TimeoutError: something was still missing after `timeout_secs`; the message ends with `remedy`.
    """
    start = time.monotonic()
    last_logged, logged_at = "", start
    while missing := describe_missing():
        now = time.monotonic()
        if now > start + timeout_secs:
            raise TimeoutError(f"{task} waited {timeout_secs:.0f} s for {missing}: {remedy}")
        if missing != last_logged or now > logged_at + REMINDER_SECS:
            logging.info("%s: waiting for %s", task, missing)
            last_logged, logged_at = missing, now
        time.sleep(POLL_SECS)


def wait_for_ps(task: Task) -> None:
    """Wait until every ps answers; `Watch` ends the process when that takes too long."""
    wait_until_nothing_is_missing(task, lambda: probes.describe(probes.unreachable(task.others("ps"))))
