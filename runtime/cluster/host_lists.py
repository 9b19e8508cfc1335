"""Whether all tasks were given the same host lists, and can go on: one that cannot tells the others, and all end."""

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.status import ask_all, session_at
from runtime.cluster.task import Peer, Task
from runtime.cluster.waiting import LOOK_SECS, POLL_SECS
from runtime.errors import UNUSABLE_STATUS
from runtime.process import end_process
from runtime.threads import start_guard

PROTOCOL = 6  # what the tasks of one cluster must speak alike; raised when what crosses the network changes
TELLING_SECS = 5.0  # how long a task that cannot go on stays to tell the others, those too that come meanwhile


class HostLists(NamedTuple):
    """The host lists that one task was given, with what else all tasks must have alike."""

    task: str  # such as "worker 0"
    given: Mapping[str, str]  # by name, such as "ps_hosts[0]"; all versions have "protocol"
    is_settled: bool = False  # whether the cluster has begun to train, as far as the task knows

    @classmethod
    def of(cls, task: Task) -> "HostLists":
        """Return those of this process, which is `task`."""
        hosts = {f"{job}_hosts[{index}]": host for job in task.jobs for index, host in enumerate(task.jobs[job])}
        return cls(str(task), {"protocol": str(PROTOCOL), **hosts, "replication": task.replication})

    @classmethod
    def parse(cls, text: bytes, task: str) -> "HostLists":
        """Read what is on a board; what no version has written counts as that of `task`, which was given nothing."""
        try:
            values = dict(json.loads(text))
        except (ValueError, TypeError, RecursionError):
            values = {}
        owner, is_settled = values.pop("task", task), values.pop("is_settled", False)
        return cls(str(owner), {str(name): str(value) for name, value in values.items()}, is_settled is True)

    def write(self) -> str:
        """Return the text for a board."""
        return json.dumps({**self.given, "task": self.task, "is_settled": self.is_settled})

    def hosts(self) -> list[str]:
        """Return the addresses of all tasks."""
        return [host for name, host in self.given.items() if "_hosts[" in name]

    def is_stranger_to(self, other: "HostLists") -> bool:
        """Return whether these belong to two clusters that meet at one address: no other address is in both."""
        return len({*self.hosts()} & {*other.hosts()}) <= 1

    def describe_difference(self, peer: object, other: "HostLists") -> str:
        """Return why this task cannot go on with the one that it expects `peer` to be, and what to do, or ""."""
        names = [name for name in {**self.given, **other.given} if self.given.get(name) != other.given.get(name)]
        if not names:
            return ""
        if "protocol" not in names and self.is_stranger_to(other):
            return (
                f"{self.task} expects {peer}, but that address is used by another cluster, that of {other.task} with"
                f" {', '.join(other.hosts())}: give one of the two clusters another port, or all tasks of one the same"
                " host lists"
            )
        name = names[0]
        mine, theirs = self.given.get(name, "nothing"), other.given.get(name, "nothing")
        remedy = "run the same version of this program everywhere" if name == "protocol" else "give all tasks the same"
        return f"{self.task} was given {mine} as {name}, but {other.task} was given {theirs}: {remedy}"


# What a server holds for others to read, its board: the lists that its task was given, and why that task shall end.


def read_board(owner: Peer | Task) -> tuple[HostLists, str] | None:
    """Return the lists and the verdict, if any, or None if the server does not answer, or has no lists yet."""
    if not (contents := _run(owner, lambda given, verdict: [given, verdict])):
        return None
    return HostLists.parse(contents[0], str(owner)), contents[1].decode(errors="replace")


def put_given(owner: Peer | Task, lists: HostLists) -> None:
    """Put up what the task of this server was given, and no verdict."""
    _run(owner, lambda given, verdict: [given.assign(lists.write()), verdict.initializer])


def put_verdict(owner: Peer | Task, why: str) -> None:
    """Put up why the task of this server shall end."""
    _run(owner, lambda _, verdict: verdict.assign(why))


def _run(owner: Peer | Task, build: Callable[[tf.Variable, tf.Variable], Any]) -> Any:
    """Run what `build` makes of a board, or return None if the server is slow or gone, or has nothing there yet."""
    with tf.Graph().as_default() as graph:
        # These have their names since before protocol 2, so that older tasks are told.
        names = ("host_lists/given", "host_lists/different")
        fetches = build(*(tf.get_variable(name, [], tf.string, tf.constant_initializer("")) for name in names))
    with contextlib.suppress(tf.errors.OpError), session_at(owner.address, graph) as session:
        return session.run(fetches)
    return None


def describe_unconfirmed(task: Task) -> str:
    """Return for which servers to wait until they have the same host lists as `task`, or "" once they have.

    A ps takes two processes of one name for one that was restarted, and drops the session of the first. So a worker
    asks before it makes a session. The lists may never agree: then a `HostListsWatch` ends this process.
    """
    given = HostLists.of(task)
    boards = ask_all(task.servers, read_board)
    unconfirmed = [str(owner) for owner, on in boards.items() if not on or given.describe_difference(owner, on[0])]
    return f"the host lists of {', '.join(unconfirmed)} to be those of this task" if unconfirmed else ""


class HostListsWatch:
    """Ends this process with status 2 when the cluster cannot go on, with the line that says why.

    A task looks at its own board, and at those of the tasks that it needs: every ps and the chief. One that finds other
    lists there, or its own input unusable, puts a verdict on these boards, where the others find it. But nobody ends a
    cluster that trains: once a worker has begun, a task that comes late with other lists, or cannot go on, ends alone.
    So does a task that meets another cluster.
    """

    def __init__(self, task: Task):
        """Start to compare the lists of `task`, in a thread."""
        self.task, self._given = task, HostLists.of(task)
        self._boards: list[Peer | Task] = [task, *task.needed]  # by whose they are
        self._is_settled = False
        self._ending = threading.Lock()  # whoever takes it, this watch or the main thread, ends the process
        start_guard("host_lists", self._watch)

    def _watch(self) -> None:
        """Look at one board after the other until the cluster trains."""
        unseen, start = set(self._boards), time.monotonic()
        for board in itertools.cycle(self._boards):
            if found := read_board(board):
                unseen.discard(board)
                self._heed(board, *found)
            elif board is self.task:
                put_given(self.task, self._given)
            if self._is_settled:
                return put_given(self.task, self._given._replace(is_settled=True))
            time.sleep(max(POLL_SECS, min(LOOK_SECS, (time.monotonic() - start) / 10)) if unseen else LOOK_SECS)

    def _heed(self, board: Peer | Task, theirs: HostLists, verdict: str) -> None:
        if difference := self._given.describe_difference(board, theirs):
            end_process(UNUSABLE_STATUS, difference, self.tell)
        self._is_settled |= theirs.is_settled
        if verdict and not self._is_settled:
            if board is self.task:  # who put it there may have reached no other board
                end_process(UNUSABLE_STATUS, verdict, self.tell)
            self._ending.acquire()
            end_process(UNUSABLE_STATUS, verdict)

    def begin_training(self) -> None:
        """Obey a verdict that is on the board of a server; else say there that the cluster trains."""

        def settle(server: Peer) -> None:
            if found := read_board(server):
                self._heed(server, *found)
                put_given(server, found[0]._replace(is_settled=True))

        ask_all(self.task.servers, settle)
        self._is_settled = True

    def tell(self, verdict: str) -> None:
        """Put a verdict on the boards of this cluster, within `TELLING_SECS`, unless one says that training goes on."""
        self._ending.acquire()
        if self._is_settled:
            return
        deadline = time.monotonic() + TELLING_SECS
        while True:
            found = ask_all(self._boards, read_board)
            mine = {board: on for board, on in found.items() if on and not self._given.is_stranger_to(on[0])}
            if any(lists.is_settled for lists, _ in mine.values()):
                return
            untold = [board for board, (_, earlier_verdict) in mine.items() if not earlier_verdict]
            if others := [str(board) for board in untold if board is not self.task]:
                logging.info("%s: telling %s", self.task, ", ".join(others))
            for board in untold:
                put_verdict(board, verdict)
            are_all_told = len(mine) == len(self._boards)
            # Those that serve stay for the others, which look there.
            if time.monotonic() > deadline or (are_all_told and not self.task.only_serves):
                return
            time.sleep(POLL_SECS)


_watch: HostListsWatch | None = None  # of this process, once its server is up


def start_watch(task: Task) -> None:
    """Start the `HostListsWatch` of this process, which is `task`."""
    global _watch
    _watch = HostListsWatch(task)


def begin_training() -> None:
    """Let this process, a worker, train with its cluster: see `HostListsWatch`."""
    if _watch:
        _watch.begin_training()


def tell_others(message: str) -> None:
    """Let the other tasks end too, with status 2, unless they train: this one has found its input unusable."""
    if _watch:
        _watch.tell(f"{_watch.task} has ended: {message}")
