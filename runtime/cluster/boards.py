"""The boards: each task puts its host lists up on its server, where others read them and leave word for it."""

import concurrent.futures
import contextlib
import itertools
import json
from collections.abc import Collection
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from runtime.cluster.lives import ANSWER_MS
from runtime.cluster.notes import Notes
from runtime.cluster.probes import probe
from runtime.cluster.roll_call import ROLL_CALL
from runtime.cluster.task import Peer, Task

PROTOCOL = 2  # what the tasks of one cluster must speak alike; raised when what crosses the network changes
UNKNOWN_PROTOCOL = 0  # that of a board which no version since protocol 2 has written
MAX_THREADS = 32


class HostLists(NamedTuple):
    """The host lists that one task was given."""

    task: str  # such as "worker 0"
    ps_hosts: tuple[str, ...]
    worker_hosts: tuple[str, ...]
    replication: str = "between_graph"
    is_settled: bool = False  # whether the cluster has begun to train, as far as the task knows
    protocol: int = PROTOCOL

    @classmethod
    def of(cls, task: Task) -> "HostLists":
        """Return those of this process, which is `task`."""
        return cls(str(task), task.ps_hosts, task.worker_hosts, task.replication)

    @classmethod
    def parse(cls, text: bytes, task: str) -> "HostLists":
        """Read what `to_json()` returned; anything else counts as lists of `task` in an unknown protocol."""
        try:
            values = json.loads(text)
            return cls(
                str(values["task"]),
                tuple(map(str, values["ps_hosts"])),
                tuple(map(str, values["worker_hosts"])),
                str(values["replication"]),
                bool(values["is_settled"]),
                int(values["protocol"]),
            )
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return cls(task, (), (), protocol=UNKNOWN_PROTOCOL)

    def to_json(self) -> str:
        """Return this as text. Later versions keep these names, so that each can say which one the other is."""
        return json.dumps(self._asdict())

    def is_stranger_to(self, other: "HostLists") -> bool:
        """Return whether these belong to two clusters that meet at one address: no other address is in both."""
        mine, theirs = ({*lists.ps_hosts, *lists.worker_hosts} for lists in (self, other))
        return other.protocol != UNKNOWN_PROTOCOL and len(mine & theirs) <= 1

    def describe_difference(self, other: "HostLists") -> str:
        """Return the first entry that differs, with both values and what to do, or "" if none does."""
        if self.protocol != other.protocol:
            theirs = f"protocol {other.protocol}" if other.protocol != UNKNOWN_PROTOCOL else "an older or unknown one"
            return (
                f"{self.task} speaks protocol {self.protocol}, but {other.task} speaks {theirs}: run the same version"
                " of this program everywhere"
            )
        for name in ("ps_hosts", "worker_hosts"):
            pairs = itertools.zip_longest(getattr(self, name), getattr(other, name), fillvalue="nothing")
            for index, (mine, theirs) in enumerate(pairs):
                if mine != theirs:
                    return self._describe(mine, f"{name}[{index}]", other, theirs)
        if self.replication != other.replication:
            return self._describe(self.replication, "replication", other, other.replication)
        return ""

    def _describe(self, mine: str, what: str, other: "HostLists", theirs: str) -> str:
        return f"{self.task} was given {mine} as {what}, but {other.task} was given {theirs}: give all tasks the same"


class Notice(NamedTuple):
    """What is on the board of a task."""

    lists: HostLists
    verdict: str  # why the cluster cannot go on, after the name of the task that found it out, or ""


class Board:
    """What a server holds for others to read: the lists that its task was given, and why this task shall end.

    A session with a whole cluster waits for all of its tasks, some of which may not be where they are looked for. So
    each session is with one server alone.
    """

    def __init__(self, target: str, owner: object = "another task"):
        """Open the board of the server at `target`, that of `owner`.

        Raises:
          OpError: it does not answer in time; other methods may raise that too.
        """
        self._owner = str(owner)
        config = tf.ConfigProto(device_filters=["/job:nobody"], operation_timeout_in_ms=ANSWER_MS)
        with tf.Graph().as_default() as graph:
            self._text = tf.placeholder(tf.string, [])
            self._given, self._verdict = (
                tf.get_variable(f"host_lists/{name}", [], tf.string, tf.constant_initializer(""), collections=[name])
                for name in ("given", "different")  # as before protocol 2, so that older tasks are told
            )
            self._num_words = Notes("", ROLL_CALL).count()
            self._put_given = [self._given.assign(self._text, read_value=False), self._verdict.initializer]
            self._put_verdict = self._verdict.assign(self._text, read_value=False)
        self._session = tf.Session(target, graph=graph, config=config)

    def read(self) -> Notice | None:
        """Return what is on it, or None before the task of this server has put up its lists."""
        try:
            given, verdict, num_words = self._session.run([self._given, self._verdict, self._num_words])
        except tf.errors.FailedPreconditionError:
            return None
        lists = HostLists.parse(given, self._owner)
        return Notice(lists._replace(is_settled=lists.is_settled or num_words > 0), verdict.decode(errors="replace"))

    def put_given(self, lists: HostLists) -> None:
        """Put up what the task of this server was given, and no verdict."""
        self._session.run(self._put_given, {self._text: lists.to_json()})

    def put_verdict(self, verdict: str) -> None:
        """Put up why the task of this server shall end."""
        self._session.run(self._put_verdict, {self._text: verdict})

    def __enter__(self) -> "Board":
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()


def read_board(peer: Peer) -> Notice | None:
    """Return what is on the board of another task, or None if that cannot be read yet."""
    with contextlib.suppress(tf.errors.OpError):
        if probe(peer.address) is None:
            with Board(f"grpc://{peer.address}", peer) as board:
                return board.read()
    return None


def read_boards(peers: Collection[Peer]) -> dict[Peer, Notice]:
    """Return what is on the boards that can be read, all of them at once: some tasks may be silent for long."""
    with concurrent.futures.ThreadPoolExecutor(MAX_THREADS) as pool:
        return {peer: notice for peer, notice in zip(peers, pool.map(read_board, peers), strict=True) if notice}


def tell(peer: Peer, verdict: str) -> None:
    """Put a verdict on the board of another task, if that answers."""
    with contextlib.suppress(tf.errors.OpError), Board(f"grpc://{peer.address}") as board:
        board.put_verdict(verdict)
