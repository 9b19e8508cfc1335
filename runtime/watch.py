"""Are the tasks there that this one cannot go on without? If not, wait for them, but not for ever."""

import dataclasses
import os
import sys
import threading
import time

from absl import logging

from runtime import cluster

LOOK_SECS = 1.0


def start_watching(task: cluster.Task, startup_timeout_secs: float, recovery_timeout_secs: float) -> None:
    """Start a thread that ends this process with status 1 when a ps, or the chief, stays away for too long.

    What waits for a task does not always find out that it is gone: `server.join()`, a step that waits for a token of
    another ps, a session in the making, or anything at all behind a link that was cut, would wait for ever.

    Args:
      task: this one.
      startup_timeout_secs: how long a task that has never answered may stay away.
      recovery_timeout_secs: how long one that has been there may.
    """
    arguments = (task, startup_timeout_secs, recovery_timeout_secs)
    threading.Thread(target=_watch, args=arguments, name="watch", daemon=True).start()


@dataclasses.dataclass
class _Sight:
    """What was last seen of a task."""

    missed_since: float | None
    was_there: bool = False
    is_lost: bool = False


def _watch(task: cluster.Task, startup_timeout_secs: float, recovery_timeout_secs: float) -> None:
    start = time.monotonic()
    sights = {peer: _Sight(missed_since=start) for peer in task.needed}
    while True:
        missing, now = cluster.missing(task.needed), time.monotonic()
        for peer, sight in sights.items():
            if peer not in missing:
                if sight.is_lost:
                    logging.info("%s: %s is back", task, peer)
                sights[peer] = _Sight(missed_since=None, was_there=True)
            elif sight.missed_since is None:
                sight.missed_since = now  # and at the next look it is lost; at the end, the others go just before us
            else:
                if sight.was_there and not sight.is_lost:
                    logging.warning("%s: lost %s (%s)", task, peer, missing[peer])
                    sight.is_lost = True
                secs = now - sight.missed_since
                if secs > (recovery_timeout_secs if sight.was_there else startup_timeout_secs):
                    _end(task, missing, secs)
        time.sleep(LOOK_SECS)


def _end(task: cluster.Task, missing: dict[cluster.Peer, str], secs: float) -> None:
    what = cluster.describe(missing)
    remedy = "start what is missing, or correct --ps_hosts and --worker_hosts"
    print(f"error: {task} waited {secs:.0f} s for {what}: {remedy}", file=sys.stderr)
    logging.flush()
    os._exit(1)  # the main thread may be inside TensorFlow, where nothing interrupts it
