"""Are the tasks there that this one cannot go on without? If not, wait for them, but not for ever."""

import dataclasses
import os
import sys
import threading
import time

import tensorflow.compat.v1 as tf
from absl import logging

from runtime import cluster

LOOK_SECS = 1.0


@dataclasses.dataclass
class _Sight:
    """What was last seen of a task."""

    missed_since: float | None
    was_there: bool = False
    is_lost: bool = False


class Watch:
    """Ends this process with status 1 when a ps, or the chief, stays away for too long.

    What waits for a task does not always find out that it is gone: `server.join()`, a step that waits for a token of
    another ps, a session in the making, or anything at all behind a link that was cut, would wait for ever.
    """

    def __init__(self, task: cluster.Task, startup_timeout_secs: float, recovery_timeout_secs: float):
        """Start to watch, in a thread.

        Args:
          task: this one.
          startup_timeout_secs: how long a task that has never answered may stay away.
          recovery_timeout_secs: how long one that has been there may.
        """
        self._task = task
        self._startup_timeout_secs, self._recovery_timeout_secs = startup_timeout_secs, recovery_timeout_secs
        self._sights = {peer: _Sight(missed_since=time.monotonic()) for peer in task.needed}
        self._missing: dict[cluster.Peer, str] = {}
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def gone_ps(self) -> str:
        """Return each ps whose process has ended, as of the last look, and with it the variables that it held."""
        gone = {peer: why for peer, why in self._missing.items() if peer.job_name == "ps" and why == cluster.REFUSED}
        return cluster.describe(gone)

    def _watch(self) -> None:
        while True:
            self._missing = cluster.missing(self._task.needed)
            for peer in self._task.needed:
                self._note(peer, time.monotonic())
            # Who has not come yet is looked for more often, so that nobody comes and goes unseen.
            time.sleep(LOOK_SECS if all(sight.was_there for sight in self._sights.values()) else cluster.POLL_SECS)

    def _note(self, peer: cluster.Peer, now: float) -> None:
        sight = self._sights[peer]
        if peer not in self._missing:
            if sight.is_lost:
                logging.info("%s: %s is back", self._task, peer)
            self._sights[peer] = _Sight(missed_since=None, was_there=True)
        elif sight.missed_since is None:
            sight.missed_since = now  # and if it still is at the next look, it is lost: at the end all leave together
        else:
            if sight.was_there and not sight.is_lost:
                logging.warning("%s: lost %s (%s)", self._task, peer, self._missing[peer])
                sight.is_lost = True
            secs = now - sight.missed_since
            if secs > (self._recovery_timeout_secs if sight.was_there else self._startup_timeout_secs):
                self._end(secs)

    def _end(self, secs: float) -> None:
        what = cluster.describe(self._missing)
        remedy = "start what is missing, or correct --ps_hosts and --worker_hosts"
        print(f"error: {self._task} waited {secs:.0f} s for {what}: {remedy}", file=sys.stderr)
        logging.flush()
        os._exit(1)  # the main thread may be inside TensorFlow, where nothing interrupts it


class AbandonSessionHook(tf.train.SessionRunHook):
    """Closes a session that has lost a ps, or one of its threads, so that the worker makes itself a new one.

    A step of it may wait for a token, say, of another ps, and for a chief that would hand it out when the step is over.
    """

    def __init__(self, watch: Watch):
        self._watch = watch

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        threading.Thread(target=self._abandon, args=(session, coord), name="abandon_session", daemon=True).start()

    def _abandon(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        try:
            with coord.stop_on_exception():
                while not coord.wait_for_stop(LOOK_SECS):
                    if gone := self._watch.gone_ps():
                        raise tf.errors.UnavailableError(None, None, f"{gone} is gone")
            coord.raise_requested_exception()
        except tf.errors.OpError:
            session.close()
