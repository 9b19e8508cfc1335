"""How a task waits for others: it says for whom it waits, and it does not wait for ever."""

import dataclasses
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from absl import logging

from runtime import events
from runtime.cluster.status import REFUSED, Status, describe, statuses_of
from runtime.cluster.task import Peer, Task
from runtime.process import end_process
from runtime.threads import REMINDER_SECS, start_guard

POLL_SECS = 0.2
MIN_POLL_SECS = 0.05  # at the beginning of a wait
LOOK_SECS = 1.0  # how often a watch looks


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
    error: type[Exception] = TimeoutError,
) -> None:
    """Poll until `describe_missing()` returns an empty text, and log what it returns whenever that changes.

    Most waits are over soon. So the pauses grow to `POLL_SECS` at once, and then with the wait, to `poll_secs` at most.

    Raises:
      TimeoutError, or another `error`: something was still missing after `timeout_secs`. It ends with `remedy`.
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


@dataclasses.dataclass
class _Sighting:
    """What a watch knows of a task."""

    missed_since: float | None
    status: Status = dataclasses.field(default_factory=Status)  # at the last look
    looked_at: float = -math.inf
    was_there: bool = False
    is_lost: bool = False


class Watch:
    """Ends this process with status 1 when a task that it needs, such as a ps or the chief, stays away for too long.

    Code that waits for a task does not always find out that the task is gone. `server.join()`, a step that waits for an
    update on another ps, a session in the making, and whatever is behind a cut link would wait for ever.
    """

    def __init__(self, task: Task, timeouts: Timeouts):
        """Start to watch over the tasks that `task` needs, in a thread."""
        self.timeouts = timeouts
        self._task = task
        self._sightings = {peer: _Sighting(missed_since=time.monotonic()) for peer in task.needed}
        self._is_over = threading.Event()
        start_guard("watch", self._watch)

    def stop(self) -> None:
        """Let the others leave: this task does not need them any more."""
        self._is_over.set()

    def ended_servers(self, incarnations: Mapping[Peer, str], since: float) -> str:
        """Return each server whose process has ended, as of the last look; what it held is gone.

        Args:
          incarnations: of the servers in a session.
          since: when they were asked for these; what was seen before is not of that session.
        """
        ended = {}
        for server, incarnation in incarnations.items():
            seen = self._sightings[server]
            if seen.looked_at > since and seen.status.reason == REFUSED:
                ended[server] = REFUSED
            elif seen.looked_at > since and seen.status.incarnation not in ("", incarnation):
                ended[server] = "another process answers there"
        return describe(ended)

    def _watch(self) -> None:
        secs = 0.0
        while not self._is_over.wait(secs):
            started_at, statuses = time.monotonic(), statuses_of(self._sightings)
            if self._is_over.is_set():  # they may have left meanwhile
                break
            for peer, status in statuses.items():
                self._update(peer, status, started_at)
            # Look more often while somebody has not come yet, so that nobody comes and goes unseen.
            secs = LOOK_SECS if all(seen.was_there for seen in self._sightings.values()) else POLL_SECS

    def _update(self, peer: Peer, status: Status, now: float) -> None:
        seen = self._sightings[peer]
        seen.looked_at, seen.status = now, status
        if not status.reason:
            if seen.is_lost:
                logging.info("%s: %s is back", self._task, peer)
                events.record("back", task=f"{peer.job_name} {peer.index}")
            seen.missed_since, seen.was_there, seen.is_lost = None, True, False
        elif seen.missed_since is None:
            seen.missed_since = now  # lost if it is still away at the next look: at the end all tasks leave together
        else:
            if seen.was_there and not seen.is_lost:
                logging.warning("%s: lost %s (%s)", self._task, peer, status.reason)
                events.record("lost", task=f"{peer.job_name} {peer.index}", reason=status.reason)
                seen.is_lost = True
            secs = now - seen.missed_since
            if secs > (self.timeouts.recovery_secs if seen.was_there else self.timeouts.startup_secs):
                self._give_up(secs)

    def _give_up(self, secs: float) -> None:
        latest = time.monotonic() - secs / 2  # others may have given up just now, for the same reason
        away = {peer: seen for peer, seen in self._sightings.items() if (seen.missed_since or math.inf) < latest}
        missing = describe({peer: seen.status.reason for peer, seen in away.items()})
        remedy = "start what is missing, or correct --ps_hosts and --worker_hosts"
        # The main thread may be inside TensorFlow, where nothing interrupts it.
        end_process(1, f"{self._task} waited {secs:.0f} s for {missing}: {remedy}")
