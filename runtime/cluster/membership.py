"""Who is there: one thread that looks each second, and decides whether this task, and its cluster, can go on."""

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping

from absl import logging

from runtime.cluster.agreement import Agreement
from runtime.cluster.board import Board
from runtime.cluster.status import BUSY, REFUSED, REPLACED, Status, describe, statuses_of
from runtime.cluster.table import Table
from runtime.cluster.task import Peer, Task
from runtime.cluster.waiting import LOOK_SECS, POLL_SECS, Timeouts, look_secs
from runtime.process.end import end_process
from runtime.process.threads import REMINDER_SECS, start_guard
from runtime.records import events


@dataclasses.dataclass
class _Sighting:
    """What this task knows of another one that it needs."""

    missed_since: float | None  # None: it is there
    busy_since: float | None = None  # None: it has said which process it is, or does not answer at all
    status: Status = dataclasses.field(default_factory=Status)  # at the last look
    incarnation: str = ""  # of the last process that has answered
    was_there: bool = False
    is_lost: bool = False


class Membership:
    """What this task knows of the others, and tells them. Its thread ends the process if that cannot go on.

    Code that waits for a task does not always find out that the task is gone. `server.join()`, a step that waits for an
    update on another ps, a session in the making, and whatever is behind a cut link would wait for ever.
    """

    def __init__(self, task: Task, timeouts: Timeouts):
        """Prepare to look around as `task`, whose server is up."""
        self.task, self.timeouts = task, timeouts
        self.describe_result: Callable[[], str] = str  # says where a finished run has left its result, if one has
        self.decisions: list[Callable[[], None]] = [self._end_if_this_cannot_go_on]
        self.pause_secs = POLL_SECS  # from one time that all of them are taken to the next

        owners: list[Peer | Task] = [task, *task.needed]
        tables = {owner: Table(owner.address) for owner in owners}
        self.agreement = Agreement(task, tables)
        self.board = Board(task, tables, self.look, timeouts.recovery_secs)
        self._start = self._due_at = time.monotonic()
        self._sightings = {peer: _Sighting(missed_since=self._start) for peer in task.needed}
        self._is_over = threading.Event()
        self._looking = threading.Lock()  # so that a later look comes after an earlier one

    def start(self) -> None:
        """Start to take the `decisions`, in their order, a few times a second."""
        start_guard("membership", self._keep_deciding)

    def _keep_deciding(self) -> None:
        pause_secs = 0.0
        while not self._is_over.wait(pause_secs):
            for decide in self.decisions:
                if not self._is_over.is_set():
                    decide()
            pause_secs = self.pause_secs

    # Those without which this task cannot go on.

    def _end_if_this_cannot_go_on(self) -> None:
        if (now := time.monotonic()) < self._due_at:
            return
        self.agreement.end_if_lists_differ()
        self.look()
        self._end_if_somebody_stays_away(now)
        # Look more often while somebody has not come yet: then a run starts soon.
        are_all_there = all(seen.was_there for seen in self._sightings.values())
        secs = look_secs(len(self.task.worker_hosts))
        self._due_at = now + (secs if are_all_there else min(secs, (now - self._start) / 10))

    def _end_if_somebody_stays_away(self, now: float) -> None:
        since = {peer: seen.missed_since or seen.busy_since for peer, seen in self._sightings.items()}
        missed = {peer: now - start for peer, start in since.items() if start}
        self._say_who_is_missed(missed)
        startup_secs, recovery_secs = self.timeouts
        limits = {peer: recovery_secs if self._sightings[peer].was_there else startup_secs for peer in missed}
        late = [secs for peer, secs in missed.items() if secs > limits[peer]]
        if self._is_over.is_set() or not late:
            return
        # Others may have given up just now, for the same reason.
        away = {peer: self._sightings[peer].status.silence for peer in missed if missed[peer] > max(late) / 2}
        if finished := self.describe_end_without(away):
            end_process(0, finished, is_error=False)
        remedy = "start the missing task, or correct --ps_hosts and --worker_hosts"
        if BUSY in away.values():
            remedy = "check what it computes or writes; restart it, or raise --recovery_timeout_secs"
        # The main thread may be inside TensorFlow, where nothing interrupts it.
        end_process(1, f"{self.task} waited {max(late):.0f} s for {describe(away)}: {remedy}")

    def _say_who_is_missed(self, missed: Mapping[Peer, float]) -> None:
        """Say it from time to time; the training of a worker says itself who does not answer."""
        reasons = {peer: self._sightings[peer].status.reason for peer in missed}
        if awaited := {
            peer: reasons[peer] or f"busy for {secs:.0f} s"
            for peer, secs in missed.items()
            if secs > REMINDER_SECS and (self.task.only_serves or not reasons[peer])
        }:
            logging.log_every_n_seconds(logging.INFO, "%s: waiting for %s", REMINDER_SECS, self.task, describe(awaited))

    def describe_end_without(self, away: Mapping[Peer, str]) -> str:
        """Return that nothing is left to do, and that these are away, if a run has ended; else ""."""
        left = self.describe_result()
        return f"{self.task}: {left}; missing: {describe(away)}" if left else ""

    def look(self) -> dict[Peer, Status]:
        """Ask the tasks that this one needs which processes they are, and log who is lost, and who is back."""
        with self._looking:
            now, statuses = time.monotonic(), statuses_of(self._sightings)
            for peer, status in statuses.items():
                if not self._is_over.is_set():  # else they may have left meanwhile
                    self._note_status(peer, status, now)
        return statuses

    def _note_status(self, peer: Peer, status: Status, now: float) -> None:
        seen = self._sightings[peer]
        seen.status = status
        if not status.reason:
            last, seen.incarnation = seen.incarnation, status.incarnation or seen.incarnation
            if last not in ("", seen.incarnation):  # the launcher restarts a task faster than two looks see it away
                self._note_loss(peer, REPLACED)
            if seen.is_lost:
                logging.info("%s: %s is back", self.task, peer)
                events.record("back", task=f"{peer.job_name} {peer.index}")
            seen.missed_since, seen.was_there, seen.is_lost = None, True, False
            seen.busy_since = None if status.incarnation else seen.busy_since or now
        elif seen.missed_since is None:
            seen.missed_since = now  # lost if it is still away a look later: at the end all tasks leave together
        elif seen.was_there and now > seen.missed_since + LOOK_SECS / 2:
            self._note_loss(peer, status.reason)

    def _note_loss(self, peer: Peer, reason: str) -> None:
        if not self._sightings[peer].is_lost:
            logging.warning("%s: lost %s (%s)", self.task, peer, reason)
            events.record("lost", task=f"{peer.job_name} {peer.index}", reason=reason)
            self._sightings[peer].is_lost = True

    def describe_silent_ps(self) -> str:
        """Return which ps tasks did not answer at the last look, and why; "" if all did."""
        reasons = {peer: seen.status.reason for peer, seen in self._sightings.items() if peer.job_name == "ps"}
        return describe({peer: reason for peer, reason in reasons.items() if reason})

    def ended_servers(self, incarnations: Mapping[Peer, str]) -> str:
        """Return each server whose process, of this incarnation, had ended at the last look, with what it held."""
        ended = {}
        for server, incarnation in incarnations.items():
            status = self._sightings[server].status
            if status.reason == REFUSED:
                ended[server] = REFUSED
            elif status.incarnation not in ("", incarnation):
                ended[server] = REPLACED
        return describe(ended)

    def dismiss_servers(self) -> None:
        """Dismiss every server, as the chief, and stop looking at them: see `Board.dismiss_servers()`."""
        self._is_over.set()  # the thread would take those that leave for lost
        self.board.dismiss_servers()


_membership: Membership | None = None  # of this process, once its server is up


def start_membership(task: Task, timeouts: Timeouts) -> Membership:
    """Return the `Membership` of this process, which is `task`; `tell_others()` uses it from then on."""
    global _membership
    _membership = Membership(task, timeouts)
    _membership.start()
    return _membership


def tell_others(message: str) -> None:
    """Let the other tasks end too, with status 2, unless they train: this one has found its input unusable."""
    if _membership:
        _membership.agreement.tell_to_end(f"{_membership.task} has ended: {message}")
