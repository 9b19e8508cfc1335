"""Who is there: one thread that looks each second, and decides whether this task, and its cluster, can go on."""

import dataclasses
import json
import threading
import time
from collections.abc import Callable, Collection, Mapping

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.agreement import Agreement
from runtime.cluster.status import (
    BUSY,
    NO_ANSWER,
    REFUSED,
    REPLACED,
    UNKNOWN_NAME,
    Answer,
    Status,
    ask,
    ask_all,
    describe,
    statuses_of,
)
from runtime.cluster.table import EVALUATED, Record, Table, parse_record
from runtime.cluster.task import Peer, Task
from runtime.cluster.waiting import LOOK_SECS, POLL_SECS, Timeouts, look_secs, wait_until_nothing_is_missing
from runtime.process.end import end_process
from runtime.process.errors import AwayError
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
        self._incarnation = ""

        owners: list[Peer | Task] = [task, *task.needed]
        self._tables = {owner: Table(owner.address) for owner in owners}
        self.agreement = Agreement(task, self._tables)
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

    # The records of the workers that train.

    def say(self, state: str) -> None:
        """Tell every server what this worker does.

        Raises:
          UnavailableError: one of them does not answer, or that of this task is too busy to say which process it is.
        """
        self._incarnation = self._incarnation or ask(self.task.address).incarnation
        if not self._incarnation:  # others would take the record for that of an earlier process
            raise tf.errors.UnavailableError(None, None, f"no answer from {self.task.address}")
        record = {self.task.index: json.dumps(Record(state, self._incarnation))}
        ask_all(self.task.servers, lambda server: self._tables[server].write(record))

    def records(self) -> list[Record]:
        """Return the records of all workers that train, the chief's first.

        A server that was restarted has forgotten everything. What a worker said before that counts as not said.

        Raises:
          UnavailableError: a server does not answer.
        """
        numbers = range(self.task.num_clients)
        servers: list[Peer | Task] = [self.task] if self.task.only_serves else [*self.task.servers]
        found = ask_all(servers, lambda server: self._tables[server].read(*numbers))
        return [parse_record(texts[0] if all(texts) else "") for texts in zip(*found.values(), strict=True)]

    def repeat_until_answered(self, ask_servers: Callable[[], Answer], timeout_secs: float | None = None) -> Answer:
        """Return what `say()` or `records()` returns once no server is silent: its process or its link may come back.

        If it does not, the thread of this object ends the process. So that thread itself must not wait here. But a
        server that is there may be beyond the reach of a new session: its name, say, is gone.

        Raises:
          AwayError: a server was still silent after `timeout_secs`, by default the recovery timeout.
          UnavailableError: the process of a server has ended.
        """
        start, secs = time.monotonic(), self.timeouts.recovery_secs if timeout_secs is None else timeout_secs
        while True:
            try:
                return ask_servers()
            except tf.errors.UnavailableError as error:
                statuses = self.look()
                if REFUSED in [statuses[server].reason for server in self.task.servers]:
                    raise
                if time.monotonic() > start + secs:
                    remedy = "start the missing task, or correct the host lists so that each address reaches its task"
                    raise AwayError(f"{self.task} waited {secs:.0f} s: {error.message}; {remedy}") from error
            time.sleep(POLL_SECS)

    def dismiss_servers(self) -> None:
        """Dismiss every server, as the chief, and stop looking at them: each leaves when it hears that.

        Raises:
          AwayError: a server has not heard it within the recovery timeout.
        """
        self._is_over.set()  # the thread would take those that leave for lost
        told: set[Peer] = set()  # they may have heard it, or will once they go on

        def tell(server: Peer) -> str:
            table = self._tables[server]
            num_begun = table.num_begun
            try:
                table.write({self.task.index: json.dumps(Record(EVALUATED))})
            except tf.errors.UnavailableError:
                reason = ask(server.address).reason
                if table.num_begun > num_begun or reason in ("", NO_ANSWER):  # else it is lost, and waits for the chief
                    told.add(server)
                if reason in (REFUSED, UNKNOWN_NAME) and server in told:
                    return ""
                return reason or BUSY
            return ""

        deaf: Collection[Peer] = self.task.servers

        def describe_deaf() -> str:
            nonlocal deaf
            reasons = {server: reason for server, reason in ask_all(deaf, tell).items() if reason}
            deaf = reasons.keys()
            return f"{describe(reasons)} to hear that the run has ended" if reasons else ""

        remedy = "the result is saved; resume, end or restart the task that does not answer, then restart this one"
        wait_until_nothing_is_missing(self.task, describe_deaf, self.timeouts.recovery_secs, remedy)


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
