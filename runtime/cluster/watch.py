"""The watch of a task over those that it cannot go on without; it waits for them, but not for ever."""

import dataclasses
import os
import sys
import threading
import time

from absl import logging

from runtime.cluster import probes
from runtime.cluster.task import Peer, Task
from runtime.cluster.waiting import POLL_SECS, Timeouts

LOOK_SECS = 1.0


@dataclasses.dataclass
class _Sighting:
    """What the watch last saw of a task."""

    missed_since: float | None
    was_there: bool = False
    is_lost: bool = False


class Watch:
    """Ends this process with status 1 when a ps, or the chief, stays away for too long.

    Code that waits for a task does not always find out that the task is gone. `server.join()`, a step that waits for a
    token of another ps, a session in the making, and whatever is behind a cut link would wait for ever.
    """

    def __init__(self, task: Task, timeouts: Timeouts):
        """Start to watch over the tasks that `task` needs, in a thread."""
        self.timeouts = timeouts
        self._task = task
        self._sightings = {peer: _Sighting(missed_since=time.monotonic()) for peer in task.needed}
        self._unreachable: dict[Peer, str] = {}
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def dead_ps(self) -> str:
        """Return each ps whose process has ended, as of the last look: its variables are gone with it."""
        dead = {p: reason for p, reason in self._unreachable.items() if p.job_name == "ps" and reason == probes.REFUSED}
        return probes.describe(dead)

    def _watch(self) -> None:
        while True:
            self._unreachable = probes.unreachable(self._task.needed)
            for peer in self._task.needed:
                self._update(peer, time.monotonic())
            # Look more often while somebody has not come yet, so that nobody comes and goes unseen.
            time.sleep(LOOK_SECS if all(seen.was_there for seen in self._sightings.values()) else POLL_SECS)

    def _update(self, peer: Peer, now: float) -> None:
        seen = self._sightings[peer]
        if peer not in self._unreachable:
            if seen.is_lost:
                logging.info("%s: %s is back", self._task, peer)
            self._sightings[peer] = _Sighting(missed_since=None, was_there=True)
        elif seen.missed_since is None:
            seen.missed_since = now  # lost if it is still away at the next look: at the end all tasks leave together
        else:
            if seen.was_there and not seen.is_lost:
                logging.warning("%s: lost %s (%s)", self._task, peer, self._unreachable[peer])
                seen.is_lost = True
            secs = now - seen.missed_since
            if secs > (self.timeouts.recovery_secs if seen.was_there else self.timeouts.startup_secs):
                self._give_up(secs)

    def _give_up(self, secs: float) -> None:
        missing = probes.describe(self._unreachable)
        remedy = "start what is missing, or correct --ps_hosts and --worker_hosts"
        print(f"error: {self._task} waited {secs:.0f} s for {missing}: {remedy}", file=sys.stderr)
        logging.flush()
        os._exit(1)  # the main thread may be inside TensorFlow, where nothing interrupts it
