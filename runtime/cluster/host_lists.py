"""Whether all tasks were given the same host lists: each puts up its own on its server, and compares it with others."""

import collections
import concurrent.futures
import contextlib
import itertools
import json
import threading
import time
from typing import NamedTuple, NoReturn

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.connection import Connection
from runtime.cluster.probes import probe
from runtime.cluster.task import Peer, Task
from runtime.cluster.waiting import POLL_SECS
from runtime.errors import UNUSABLE_STATUS, reason
from runtime.process import end_process

ANSWER_MS = 5000  # how long to wait for the answer of another task's server
LINGER_SECS = 5.0  # how long a task that differs stays, so that tasks that start beside it hear of that too
SETTLE_SECS = 30.0  # how long a task must have agreed with all that it needs before it heeds no other lists any more


class HostLists(NamedTuple):
    """The host lists that one task was given."""

    task: str  # such as "worker 0"
    ps_hosts: tuple[str, ...]
    worker_hosts: tuple[str, ...]
    replication: str = "between_graph"
    is_settled: bool = False  # whether the cluster has agreed on them for long

    @classmethod
    def of(cls, task: Task) -> "HostLists":
        """Return those of this process, which is `task`."""
        return cls(str(task), task.ps_hosts, task.worker_hosts, task.replication)

    def describe_difference(self, other: "HostLists") -> str:
        """Return the first entry that differs, with both values, or "" if none does: the replication counts as one."""
        for name in ("ps_hosts", "worker_hosts"):
            pairs = itertools.zip_longest(getattr(self, name), getattr(other, name), fillvalue="nothing")
            for index, (mine, theirs) in enumerate(pairs):
                if mine != theirs:
                    return f"{self.task} was given {mine} as {name}[{index}], but {other.task} was given {theirs}"
        if self.replication != other.replication:
            mine, theirs = self.replication, other.replication
            return f"{self.task} was given {mine} as replication, but {other.task} was given {theirs}"
        return ""


class Board:
    """What a server holds for others to read: the lists that its task was given, and different ones that it knows of.

    A session with a whole cluster waits for all of its tasks, some of which may not be where they are looked for. So
    each session is with one server alone.
    """

    def __init__(self, target: str):
        """Open the board of the server at `target`.

        Raises:
          OpError: it does not answer in time; other methods may raise that too.
        """
        config = tf.ConfigProto(device_filters=["/job:nobody"], operation_timeout_in_ms=ANSWER_MS)
        with tf.Graph().as_default() as graph:
            self._text = tf.placeholder(tf.string, [])
            self._given, self._different = (
                tf.get_variable(f"host_lists/{name}", [], tf.string, tf.constant_initializer(""), collections=[name])
                for name in ("given", "different")
            )
            self._put_given = [self._given.assign(self._text, read_value=False), self._different.initializer]
            self._put_different = self._different.assign(self._text, read_value=False)
        self._session = tf.Session(target, graph=graph, config=config)

    def read(self) -> list[HostLists]:
        """Return what the task of this server was given, and different lists; nothing before the task has put it up."""
        try:
            texts = self._session.run([self._given, self._different])
        except tf.errors.FailedPreconditionError:
            return []
        found = (json.loads(text) for text in texts if text)
        return [HostLists(task, tuple(ps), tuple(workers), *others) for task, ps, workers, *others in found]

    def put_given(self, lists: HostLists) -> None:
        """Put up what the task of this server was given, and no different lists."""
        self._session.run(self._put_given, {self._text: json.dumps(lists)})

    def put_different(self, lists: HostLists) -> None:
        """Put up different lists."""
        self._session.run(self._put_different, {self._text: json.dumps(lists)})

    def __enter__(self) -> "Board":
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()


def read_board(peer: Peer) -> list[HostLists]:
    """Return what is on the board of another task: nothing if that cannot be read yet."""
    with contextlib.suppress(tf.errors.OpError):
        if probe(peer.address) is None:
            with Board(f"grpc://{peer.address}") as board:
                return board.read()
    return []


def describe_unconfirmed(task: Task) -> str:
    """Return for which ps to wait until it has the same host lists as `task`, or "" once it has.

    A ps takes two processes of one name for one that was restarted, and drops the session of the first. So a worker
    asks before it makes a session. The lists may never agree: then a `HostListsWatch` ends this process.
    """
    ps = task.others("ps")[0]
    lists = read_board(ps)
    is_confirmed = lists and not HostLists.of(task).describe_difference(lists[0])
    return "" if is_confirmed else f"the host lists of {ps} to be those of this task"


class HostListsWatch:
    """Ends this process with status 2 when another task was given other host lists, and names the entry that differs.

    A task compares its lists with those of the tasks that it needs, as soon as they answer. One that finds a difference
    tells all others, since nobody knows which side is wrong. But a task that comes late with other lists ends alone:
    tasks that have agreed for `SETTLE_SECS` pay it no heed.
    """

    def __init__(self, task: Task, connection: Connection):
        """Start to compare the lists of `task`, in a thread."""
        self._task, self._target = task, connection.target
        self._given, self._is_up = HostLists.of(task), False
        threading.Thread(target=self._keep_comparing, name="host_lists", daemon=True).start()

    def _keep_comparing(self) -> None:
        while True:
            try:
                return self._compare()
            except tf.errors.OpError as error:  # the server of this task is slow, on a machine that has much to do
                logging.info("%s: its own server did not answer (%s): asking again", self._given.task, reason(error))
                time.sleep(POLL_SECS)

    def _compare(self) -> None:
        strangers, agreed_at = collections.deque(self._task.needed), time.monotonic()
        with Board(self._target) as own:
            if not self._is_up:  # putting them up takes down what others have told
                own.put_given(self._given)
                self._is_up = True
            is_settled = False
            while not is_settled:
                found = read_board(strangers[0]) if strangers else []
                for other in [*found, *own.read()]:
                    if difference := self._given.describe_difference(other):
                        self._refuse(own, other, difference)
                if strangers:
                    agreed_at = time.monotonic()
                    strangers.rotate(-1)
                if found:
                    strangers.pop()
                else:
                    time.sleep(POLL_SECS)
                is_settled = any(other.is_settled for other in found) or time.monotonic() > agreed_at + SETTLE_SECS
            own.put_given(self._given._replace(is_settled=True))

    def _refuse(self, own: Board, other: HostLists, difference: str) -> NoReturn:
        """Tell the other tasks of this cluster, and end this process."""
        leave_at = time.monotonic() + LINGER_SECS
        own.put_different(other)
        peers = [*self._task.others("ps"), *self._task.others("worker")]
        with concurrent.futures.ThreadPoolExecutor(max_workers=32) as pool:  # at once: some may be silent for long
            pool.map(lambda peer: self._tell(peer, other), peers)
        time.sleep(max(0.0, leave_at - time.monotonic()))
        end_process(UNUSABLE_STATUS, f"{difference}: give all tasks the same")

    def _tell(self, peer: Peer, other: HostLists) -> None:
        """Put lists that differ from those of another task on its board, unless its cluster has settled."""
        with contextlib.suppress(tf.errors.OpError):
            if probe(peer.address) is None:
                with Board(f"grpc://{peer.address}") as board:
                    theirs = board.read()
                    if theirs and not theirs[0].is_settled:
                        board.put_different(self._given if theirs[0].describe_difference(self._given) else other)
