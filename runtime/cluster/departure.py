"""How a task that only serves leaves: a ps, or in-graph a worker other than the chief."""

import contextlib
import signal
import time

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster import signals
from runtime.cluster.board import EVALUATED, TRAINED, TRAINING, Record, absent
from runtime.cluster.membership import Membership
from runtime.cluster.status import REFUSED, STARTING, ask
from runtime.cluster.waiting import MIN_POLL_SECS, POLL_SECS
from runtime.process.end import STOP_SECS, end_process
from runtime.records import events

LINGER_SECS = 0.5  # how long a task stays after the chief has dismissed it, until the chief has the answer of each


class Departure:
    """Ends the process of a task that only serves: with 0 once the chief dismisses it.

    After a signal, it stays until no client trains any more, so that each can finish its step, and the chief can save;
    then it ends with 128 + signal. The thread of the membership does that, since `server.join()` never returns, and
    nothing stops a server.
    """

    def __init__(self, membership: Membership, stop_secs: float = STOP_SECS):
        """Prepare to heed the records of the workers, which stop in `stop_secs`."""
        self._membership, self._task, self._stop_secs = membership, membership.task, stop_secs
        self._records = [Record()] * self._task.num_clients
        self._received: signal.Signals | None = None

    def start(self) -> None:
        """Begin to heed the workers, and signals."""
        signals.listen(self._note_signal)
        logging.info("%s: serving at %s", self._task, self._task.address)
        events.record("serving")
        self._membership.decisions.append(self._leave_if_dismissed)

    def _note_signal(self, number: signal.Signals) -> signals.Stop:
        secs = self._stop_secs + 2  # the chief needs its time to save
        told = "%s: %s: leaving after the workers, in %.0f s at the latest, or at once at a second signal"
        logging.info(told, self._task, number.name, secs)
        self._received = number
        return signals.Stop(secs)

    def _leave_if_dismissed(self) -> None:
        """Log what each client says whenever that changes; leave once none needs this task any more."""
        last_records, is_busy = self._records, True
        with contextlib.suppress(tf.errors.UnavailableError):  # its own server may be busy
            self._records, is_busy = self._membership.board.records(), False
        for worker, record in enumerate(self._records):
            if record != last_records[worker]:
                logging.info("%s: worker %d: %s", self._task, worker, record.state)
                events.record("heard", worker=worker, text=record.state)
        of_chief = self._records[0].state
        self._membership.pause_secs = MIN_POLL_SECS if of_chief == TRAINED else POLL_SECS
        number = None if of_chief == EVALUATED else self._received
        if of_chief != EVALUATED and not (number and self._is_free(is_busy)):
            return
        reason = f"{number.name}, and no worker is training" if number else "the chief has evaluated"
        logging.info("%s: %s: leaving", self._task, reason)
        chief, deadline = self._task.clients[0], time.monotonic() + LINGER_SECS
        while ask(chief.address).reason != REFUSED and time.monotonic() < deadline:
            time.sleep(MIN_POLL_SECS)
        end_process(128 + number if number else 0)

    def _is_free(self, is_busy: bool) -> bool:
        """Return whether every client has trained, and the chief has evaluated, but for those that do not answer.

        While the server of this task is busy, the records may be old.
        """
        states = [record.state for record in self._records]
        awaited = [of for of in self._task.clients if is_busy or states[of.index] == TRAINING]
        if states[0] == TRAINED and not is_busy:
            awaited.append(self._task.clients[0])
        gone = absent(awaited, self._records)
        return len(gone) == len(awaited) and not (is_busy and STARTING in gone.values())
