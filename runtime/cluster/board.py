"""The board: what each worker that trains says of itself on every server, for as long as its process answers."""

import functools
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from runtime.cluster.status import (
    BUSY,
    NO_ANSWER,
    NO_NAME_SERVER,
    REFUSED,
    STARTING,
    UNKNOWN_NAME,
    Answer,
    Status,
    ask,
    ask_all,
    describe,
    statuses_of,
)
from runtime.cluster.table import Table
from runtime.cluster.task import Peer, Task
from runtime.cluster.waiting import wait_until_nothing_is_missing

# What it says that it does: its state.
TRAINING = "training"
TRAINED = "trained"
STOPPED = "stopped"  # by a signal, before the end
EVALUATED = "evaluated"  # of the chief, at the end: the servers may leave


class Record(NamedTuple):
    """What a worker says of itself."""

    state: str = ""  # "" if it has said nothing
    incarnation: str = ""  # of the process that said so


@functools.lru_cache(maxsize=10_000)  # a ps looks at the same ones again and again
def parse_record(text: str) -> Record:
    """Return the record that `json.dumps()` has made a text of; "" if there is none."""
    return Record(*json.loads(text)) if text else Record()


def absent(workers: Collection[Peer], records: Sequence[Record]) -> dict[Peer, str]:
    """Return those of the workers that are not there to do what their `records`, by index, say, each with the reason.

    A record counts while the process that wrote it answers, or is too busy to say which one it is. One that was started
    in its place may read its data for long.
    """
    reasons = {
        worker: status.reason or (STARTING if status.incarnation not in ("", records[worker.index].incarnation) else "")
        for worker, status in statuses_of(workers).items()
    }
    return {worker: reason for worker, reason in reasons.items() if reason}


class Board:
    """What the workers that train say of themselves in the tables of all servers."""

    def __init__(
        self,
        task: Task,
        tables: Mapping[Peer | Task, Table],
        look: Callable[[], Mapping[Peer, Status]],
        recovery_secs: float,
    ):
        """Prepare to read and write as `task`, which must `look()` where a server is silent."""
        self._task, self._tables, self._look, self._recovery_secs = task, tables, look, recovery_secs
        self._incarnation = ""

    def say(self, state: str) -> None:
        """Tell every server what this worker does.

        Raises:
          UnavailableError: one of them does not answer, or that of this task is too busy to say which process it is.
        """
        self._incarnation = self._incarnation or ask(self._task.address).incarnation
        if not self._incarnation:  # others would take the record for that of an earlier process
            raise tf.errors.UnavailableError(None, None, f"no answer from {self._task.address}")
        record = {self._task.index: json.dumps(Record(state, self._incarnation))}
        ask_all(self._task.servers, lambda server: self._tables[server].write(record))

    def records(self) -> list[Record]:
        """Return the records of all workers that train, the chief's first.

        A server that was restarted has forgotten everything. What a worker said before that counts as not said.

        Raises:
          UnavailableError: a server does not answer.
        """
        numbers = range(self._task.num_clients)
        servers: list[Peer | Task] = [self._task] if self._task.only_serves else [*self._task.servers]
        found = ask_all(servers, lambda server: self._tables[server].read(*numbers))
        return [parse_record(texts[0] if all(texts) else "") for texts in zip(*found.values(), strict=True)]

    def repeat_until_answered(self, ask_servers: Callable[[], Answer], timeout_secs: float | None = None) -> Answer:
        """Return what `say()` or `records()` returns once no server is silent: its process or its link may come back.

        If it does not, the thread of the membership ends the process. So that thread itself must not wait here. But a
        server that is there may be beyond the reach of a new session: its name, say, is gone.

        Raises:
          AwayError: a server was still silent after `timeout_secs`, by default the recovery timeout.
          UnavailableError: the process of a server has ended.
        """
        answers = list[Answer]()

        def describe_silent() -> str:
            try:
                answers.append(ask_servers())
            except tf.errors.UnavailableError as error:
                statuses = self._look()
                if REFUSED in [statuses[server].reason for server in self._task.servers]:
                    raise
                return f"its servers: {error.message}"
            return ""

        secs = self._recovery_secs if timeout_secs is None else timeout_secs
        remedy = "start the missing task, or correct the host lists so that each address reaches its task"
        wait_until_nothing_is_missing(self._task, describe_silent, secs, remedy)
        return answers[0]

    def dismiss_servers(self) -> None:
        """Dismiss every server, as the chief: each leaves when it hears that.

        Raises:
          AwayError: a server has not heard it within the recovery timeout.
        """
        told: set[Peer] = set()  # they may have heard it, or will once they go on

        def tell(server: Peer) -> str:
            table = self._tables[server]
            num_begun = table.num_begun
            try:
                table.write({self._task.index: json.dumps(Record(EVALUATED))})
            except tf.errors.UnavailableError:
                reason = ask(server.address).reason
                # Else it is lost, and waits for the chief.
                if table.num_begun > num_begun or reason in ("", NO_ANSWER, NO_NAME_SERVER):
                    told.add(server)
                if reason in (REFUSED, UNKNOWN_NAME) and server in told:
                    return ""
                return reason or BUSY
            return ""

        deaf: Collection[Peer] = self._task.servers

        def describe_deaf() -> str:
            nonlocal deaf
            reasons = {server: reason for server, reason in ask_all(deaf, tell).items() if reason}
            deaf = reasons.keys()
            return f"{describe(reasons)} to hear that the run has ended" if reasons else ""

        remedy = "the result is saved; resume, end or restart the task that does not answer, then restart this one"
        wait_until_nothing_is_missing(self._task, describe_deaf, self._recovery_secs, remedy)
