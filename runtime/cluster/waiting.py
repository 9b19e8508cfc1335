"""How a task waits for others: it says for whom it waits, and it does not wait for ever."""

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from absl import logging

from runtime.cluster.task import Task
from runtime.process.errors import AwayError
from runtime.process.threads import REMINDER_SECS
from runtime.records import events

POLL_SECS = 0.2
MIN_POLL_SECS = 0.05  # at the beginning of a wait
LOOK_SECS = 1.0  # how often a task looks at what seldom changes
LOOKS_PER_SEC = 200  # at one server, of all workers together


def look_secs(num_workers: int, least_secs: float = LOOK_SECS) -> float:
    """Return how often a task of a cluster looks: less often in a large one, whose questions would keep a ps busy."""
    return max(least_secs, num_workers / LOOKS_PER_SEC)


class Timeouts(NamedTuple):
    """How long a task waits for those that it needs."""

    startup_secs: float  # for a ps or the chief that has never answered
    recovery_secs: float  # for one that was lost


def wait_until_nothing_is_missing(
    task: Task,
    describe_missing: Callable[[], str],
    timeout_secs: float = math.inf,
    remedy: str = "",
    poll_secs: float = POLL_SECS,
    error: type[Exception] = AwayError,
) -> None:
    """Poll until `describe_missing()` returns an empty text, and log what it returns whenever that changes.

    Most waits are over soon. So the pauses grow to `POLL_SECS` at once, and then with the wait, to `poll_secs` at most.

    Raises:
      AwayError, or another `error`: something was still missing after `timeout_secs`. It ends with `remedy`.
    """
    start = time.monotonic()
    last_logged, logged_at = "", start
    while missing := describe_missing():
        now = time.monotonic()
        if now > start + timeout_secs:
            raise error(f"{task} waited {timeout_secs:.0f} s for {missing}: {remedy}")
        if missing != last_logged or now > logged_at + REMINDER_SECS:
            logging.info("%s: waiting for %s", task, missing)
            events.record("waiting", missing=missing)
            last_logged, logged_at = missing, now
        waited_secs = now - start
        pause_secs = max(MIN_POLL_SECS, min(POLL_SECS, waited_secs / 4), waited_secs / 10)
        time.sleep(min(poll_secs, pause_secs))
    if last_logged:
        events.record("waited")
