"""Whether all tasks were given the same host lists, and can go on: one that cannot tells the others, and all end."""

import itertools
import threading
import time

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.boards import UNKNOWN_PROTOCOL, Board, HostLists, Notice, read_board, read_boards, tell
from runtime.cluster.connection import Connection
from runtime.cluster.task import Peer, Task
from runtime.cluster.waiting import LOOK_SECS, POLL_SECS
from runtime.errors import UNUSABLE_STATUS, reason
from runtime.process import end_process
from runtime.threads import start_guard

TELLING_SECS = 5.0  # how long a task that cannot go on stays to tell those that have not come yet

_watch: "HostListsWatch | None" = None  # of this process, once its server is up


def start_watch(task: Task, connection: Connection) -> None:
    """Start the `HostListsWatch` of this process, which is `task`."""
    global _watch
    _watch = HostListsWatch(task, connection)


def tell_others(message: str) -> None:
    """Let the other tasks end too, with status 2, unless they train: this one has found its input unusable."""
    if _watch:
        _watch.tell_others(message)


def describe_unconfirmed(task: Task) -> str:
    """Return for which servers to wait until they have the same host lists as `task`, or "" once they have.

    A ps takes two processes of one name for one that was restarted, and drops the session of the first. So a worker
    asks before it makes a session. The lists may never agree: then a `HostListsWatch` ends this process.
    """
    given, notices = HostLists.of(task), read_boards(task.servers)
    unconfirmed = [
        server for server in task.servers if server not in notices or given.describe_difference(notices[server].lists)
    ]
    return f"the host lists of {', '.join(map(str, unconfirmed))} to be those of this task" if unconfirmed else ""


class HostListsWatch:
    """Ends this process with status 2 when the cluster cannot go on, with the line that says why.

    A task compares its lists with those of the tasks that it needs, as soon as they answer. One that finds a difference
    tells all others, since nobody knows which side is wrong, and so does one that finds its own input unusable; each
    looks at its own board for such a verdict. But nobody ends a cluster that trains: from its first step on, a task
    that comes late with other lists, or cannot go on, ends alone. So does a task that meets another cluster.
    """

    def __init__(self, task: Task, connection: Connection):
        """Start to compare the lists of `task`, in a thread."""
        self._task, self._target = task, connection.target
        self._given, self._is_up = HostLists.of(task), False
        self._is_settled = False
        self._telling = threading.Lock()  # whoever takes it, this watch or the main thread, ends the process
        start_guard("host_lists", self._keep_comparing)

    def tell_others(self, message: str) -> None:
        """Tell the others what is wrong with this task."""
        self._tell(f"{self._task} has ended: {message}", TELLING_SECS)

    def _keep_comparing(self) -> None:
        while True:
            try:
                return self._compare()
            except tf.errors.OpError as error:  # the server of this task is slow, on a machine that has much to do
                logging.info("%s: its own server did not answer (%s): asking again", self._task, reason(error))
                time.sleep(POLL_SECS)

    def _compare(self) -> None:
        """Look at the boards of this task and of those that it needs until the cluster trains."""
        unseen = set(self._task.needed)
        with Board(self._target) as own:
            if not self._is_up:  # putting them up takes down what others have told
                own.put_given(self._given)
                self._is_up = True
            for peer in itertools.cycle(self._task.needed):
                on_own = own.read()
                if on_own and on_own.verdict:
                    self._end(on_own.verdict, telling_secs=0)
                found = read_board(peer)
                if found:
                    self._judge(peer, found)
                    unseen.discard(peer)
                self._is_settled = any(notice and notice.lists.is_settled for notice in (on_own, found))
                if self._is_settled:
                    return own.put_given(self._given._replace(is_settled=True))
                time.sleep(POLL_SECS if unseen else LOOK_SECS)

    def _judge(self, peer: Peer, notice: Notice) -> None:
        """End this process if it cannot go on with what the board of a task says that it needs."""
        theirs = notice.lists
        if self._given.is_stranger_to(theirs):
            self._end(
                f"{self._task} expects {peer}, but that address is used by another cluster, in which {theirs.task} was"
                f" given --ps_hosts={','.join(theirs.ps_hosts)} and --worker_hosts={','.join(theirs.worker_hosts)}:"
                " give one of the two clusters another port, or all tasks of one the same host lists",
                TELLING_SECS,
            )
        if difference := self._given.describe_difference(theirs):
            self._end(difference, TELLING_SECS)
        if notice.verdict and not _is_of(notice.verdict, self._task):  # that of its last process may still be there
            self._end(notice.verdict, telling_secs=0)

    def _end(self, verdict: str, telling_secs: float) -> None:
        self._tell(verdict, telling_secs)
        end_process(UNUSABLE_STATUS, verdict)

    def _tell(self, verdict: str, telling_secs: float) -> None:
        """Tell the other tasks, unless one says that the cluster trains, those too that come within `telling_secs`."""
        self._telling.acquire()
        if self._is_settled:
            return
        logging.info("%s: telling the other tasks: %s", self._task, verdict)
        deadline = time.monotonic() + telling_secs
        untold = {peer for job in self._task.jobs for peer in self._task.others(job) if not _is_of(verdict, peer)}
        while True:
            notices = read_boards(untold)
            untold -= notices.keys()
            members = {peer: notice for peer, notice in notices.items() if self._has_member(notice)}
            if any(notice.lists.is_settled for notice in members.values()):
                return
            for peer, notice in members.items():
                if not notice.verdict:
                    tell(peer, verdict)
            if not untold or time.monotonic() > deadline:
                return
            time.sleep(POLL_SECS)

    def _has_member(self, notice: Notice) -> bool:
        """Return whether a board is that of a task of this cluster that understands a verdict."""
        return notice.lists.protocol != UNKNOWN_PROTOCOL and not self._given.is_stranger_to(notice.lists)


def _is_of(verdict: str, task: Task | Peer) -> bool:
    """Return whether this task has found out what a verdict says: its name stands first."""
    return verdict.startswith(f"{task.job_name} {task.index} ")
