"""Whether all tasks were given the same, and can go on: one that cannot tells the others, and all end."""

import contextlib
import json
import os
import threading
import time
from collections.abc import Mapping
from typing import NamedTuple, NoReturn

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.host_lists import HostLists
from runtime.cluster.status import ask_all, forget, hang_up_on_strangers
from runtime.cluster.table import ABORT_REASON, CLUSTER, DIGEST, FLAGS, FOLDER, IS_TRAINING, Table
from runtime.cluster.task import Peer, Task, has_name
from runtime.cluster.waiting import POLL_SECS
from runtime.process.end import end_process
from runtime.process.errors import UNUSABLE_STATUS, UnusableError
from runtime.process.threads import REMINDER_SECS

USES = "uses"  # of the variables, in JSON: see `digest_uses()`. They are compared like the flags
REMEDY = "give all workers the same{}, or restart the ps tasks"
STRANGER_SECS = 60.0  # how long a name may lead where its task was before; DNS remembers for up to half of that
TELLING_SECS = 5.0  # how long a task that cannot go on stays to tell the others, those too that come meanwhile


class _Found(NamedTuple):
    """What all tasks share, as it is on one server."""

    abort_reason: str
    is_training: bool
    difference: str = ""  # of the host lists that its task was given: why this one cannot go on with it
    use: str = ""  # who uses its address, if that is not the task that is expected there


class Agreement:
    """What this task and the others write on their servers before they train, to end together if one cannot go on.

    A task looks at its own server, and at those of the tasks that it needs: every ps and the chief. If one of these was
    given other host lists, or if this task's own input is unusable, the reason to abort is written on these servers,
    where the others find it. But a cluster that trains is never ended: once a worker has begun, a task that comes late
    with other lists, or cannot go on, ends alone. So does a task that meets another cluster; but where that has
    taken the old address of a task that was restarted, its name is looked up anew for `STRANGER_SECS`.
    """

    def __init__(self, task: Task, tables: Mapping[Peer | Task, Table]):
        """Prepare to compare what `task` was given with what is in the `tables` of these servers."""
        self._task, self._tables = task, tables
        self._lists, self._is_training = HostLists.of(task), False
        # Where another cluster answers, and since when, a time of `time.monotonic()`.
        self._strangers = dict[Peer | Task, float]()
        self._is_published = False  # its own server may be too busy to take the lists at once
        self._ending = threading.Lock()  # the thread that takes it ends the process

    def publish(self) -> None:
        """Write the host lists of this task on its server."""
        self._write(self._task, {CLUSTER: self._lists.write(), DIGEST: self._lists.digest_of(self._task)})

    def end_if_lists_differ(self) -> None:
        """Look at all servers, until the cluster trains; end this process if it cannot go on with what is there."""
        if self._is_training and self._is_published:
            return
        for owner, found in ask_all(self._tables, self._read).items():
            if found:
                self._heed(owner, found)
                self._is_published |= owner is self._task
            elif owner is self._task:
                self.publish()
        if self._is_training and self._is_published:
            self._note_training()

    def heed(self, peer: Peer) -> bool:
        """Return whether a task that this one does not need has host lists, which are then compared with its own."""
        table = Table(peer.address)
        found = self._read(peer, table)
        table.close()
        return found is not None and self._heed(peer, found)

    def _read(self, owner: Peer | Task, table: Table | None = None) -> _Found | None:
        """Return what is on a server, or None if that does not answer, or has nothing yet."""
        table = table or self._tables[owner]
        with contextlib.suppress(tf.errors.UnavailableError):
            digest, abort_reason, is_training = table.read(DIGEST, ABORT_REASON, IS_TRAINING)
            if digest:
                found = _Found(abort_reason, bool(is_training))
                if digest == self._lists.digest_of(owner):
                    return found
                lists = HostLists.parse(table.read(CLUSTER)[0], owner)
                found = found._replace(difference=self._lists.describe_difference(owner, lists))
                if not self._lists.is_elsewhere(owner, lists):
                    return found
                table.close()  # the next look goes where the name of its host leads then
                forget(owner.address)
                self._strangers.setdefault(owner, time.monotonic())
                return found._replace(use=self._lists.describe_use(lists))
        return None

    def _write(self, owner: Peer | Task, texts: Mapping[int, str]) -> None:
        with contextlib.suppress(tf.errors.UnavailableError):
            self._tables[owner].write(texts)

    def _heed(self, owner: Peer | Task, found: _Found) -> bool:
        """Take in what is on a server; return whether it is of this cluster. This process ends if it cannot go on."""
        if found.difference:
            now = time.monotonic()
            may_pass = found.use and has_name(owner.address)
            if not may_pass or now > self._strangers.get(owner, now) + STRANGER_SECS:
                self._end(found.difference)
            told = "%s; resolving the name again"
            logging.log_every_n_seconds(logging.WARNING, told, REMINDER_SECS, found.difference)
            return False
        self._is_training |= found.is_training
        if found.abort_reason and not self._is_training:  # who wrote it there may have reached no other server
            self._end(found.abort_reason)
        return True

    def _end(self, why: str) -> NoReturn:
        self._ending.acquire()  # before this says why: the other thread may have said so, and be telling the others
        end_process(UNUSABLE_STATUS, why, self._tell)

    def describe_unconfirmed(self) -> str:
        """Return for which servers to wait until they have the same host lists as this task, or "" once they have.

        A ps takes two processes of one name for one that was restarted, and drops the session of the first. So a worker
        asks before it makes a session.

        Raises:
          UnusableError: a server has others, and will keep them. Before training, the thread ends this process.
        """
        unconfirmed = []
        for owner, found in ask_all(self._task.servers, self._read).items():
            if found and found.difference and not found.use:
                raise UnusableError(found.difference)
            if not found or found.difference:
                unconfirmed.append(f"{owner} ({found.use})" if found else str(owner))
        if self._strangers and not unconfirmed:
            hang_up_on_strangers([owner.address for owner in self._tables])
            self._strangers.clear()
        return f"the host lists of {', '.join(unconfirmed)} to match those of this task" if unconfirmed else ""

    def begin_training(self) -> None:
        """Obey a reason to abort that is on a server; else say there that the cluster trains."""

        def settle(server: Peer) -> None:
            if (found := self._read(server)) and self._heed(server, found):
                self._write(server, {IS_TRAINING: "yes"})

        ask_all(self._task.servers, settle)
        self._note_training()

    def _note_training(self) -> None:
        self._is_training = True
        self._write(self._task, {IS_TRAINING: "yes"})
        for table in self._tables.values():
            table.close()  # until this task has something to say

    def tell_to_end(self, why: str) -> None:
        """Write on the servers of this cluster why it must end, within `TELLING_SECS`, unless it trains already."""
        self._ending.acquire()
        self._tell(why)

    def _tell(self, why: str) -> None:
        deadline = time.monotonic() + TELLING_SECS
        while not self._is_training:
            found = ask_all(self._tables, self._read)
            mine = {owner: on for owner, on in found.items() if on and not on.use}
            self._is_training = any(on.is_training for on in mine.values())
            untold = [owner for owner, on in mine.items() if not on.abort_reason and not self._is_training]
            for owner in untold:
                if owner is not self._task:
                    logging.info("%s: telling %s", self._task, owner)
                self._write(owner, {ABORT_REASON: why})
            are_all_told = len(mine) == len(self._tables)
            # Those that serve stay for the others, which look there.
            if time.monotonic() > deadline or (are_all_told and not self._task.only_serves):
                return
            time.sleep(POLL_SECS)

    def check_flags(self, flags: Mapping[str, object]) -> None:
        """Compare flags, checksums of files and graphs with those that the chief has published; then it publishes its.

        They are on ps 0: a model lives only as long as every ps does.

        Raises:
          UnavailableError: the ps does not answer.
          UnusableError: flags or graphs differ. For files, there is only a warning.
        """
        own, table = {name: str(value) for name, value in flags.items()}, self._tables[self._task.servers[0]]
        published = json.loads(table.read(FLAGS)[0] or "{}")
        differing = [name for name, value in own.items() if published.get(name, value) != value]
        if files := [name for name in differing if name.endswith(".py")]:  # perhaps in a comment alone
            told = "%s has a different %s than the model on the ps tasks is trained with: %s"
            logging.log_first_n(logging.WARNING, told, 1, self._task, " and ".join(files), REMEDY.format(""))
        for name in differing:
            if name == USES:
                uses, others = json.loads(own[name]), json.loads(published[name])
                first = next((of for of in uses if uses[of] != others.get(of)), "another variable")
                alike = " and ".join(files) or "packages"
                raise UnusableError(
                    f"{self._task} has a different graph than the model on the ps tasks: it uses {first} differently;"
                    " build it in a fixed order, such as sorted(os.listdir()), from what is the same on all hosts;"
                    f" {REMEDY.format(f' {alike}')}"
                )
            if name not in files:
                # The CRC-32 of data is of the examples in their order.
                order = " examples in the same order (sort the files, seed the shuffle)" if name == "data_dir" else ""
                raise UnusableError(
                    f"{self._task} has --{name}={own[name]}, but the model on the ps tasks is trained with"
                    f" --{name}={published[name]}: {REMEDY.format(order)}"
                )
        if self._task.is_chief:
            table.write({FLAGS: json.dumps(own)})

    def claim_model(self, folder: str, would_lose: str) -> None:
        """Note on ps 0 that the model there is saved in `folder`; "" if it is not saved.

        Args:
          folder: that of the run.
          would_lose: the checkpoint there whose place this model takes; "" if it was made from that, or there is none.

        Raises:
          UnavailableError: the ps does not answer.
          UnusableError: the model is saved elsewhere, and the checkpoint is that of another run.
        """
        table, own = self._tables[self._task.servers[0]], folder or "no --train_dir"
        (other,) = table.read(FOLDER)
        is_same = other in ("", own) or (os.path.isdir(other) and os.path.isdir(own) and os.path.samefile(other, own))
        if would_lose and not is_same:
            raise UnusableError(
                f"the ps tasks hold the model of another run, with {other}, which would take the place of {would_lose}:"
                " restart the ps tasks, or give that --train_dir"
            )
        table.write({FOLDER: own})
