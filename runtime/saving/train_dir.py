"""How the chief makes the train directory, keeps other jobs out of it, and sees that every ps finds it."""

import contextlib
import fcntl
import os
import socket
import uuid
from collections.abc import Callable

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.host_lists import HostLists
from runtime.cluster.task import Peer, Task
from runtime.cluster.waiting import wait_until_nothing_is_missing
from runtime.process.errors import UnsavedError, UnusableError, check_folder, reason
from runtime.records.files import is_at
from runtime.records.folder import RunFolder

ON_EACH = ", here and on each ps"  # must the train directory answer
LEASE_SECS = 120.0  # how long a file server may keep the lock of a host that is gone: NFS does for 90 s


def open_train_dir(task: Task, train_dir: str) -> RunFolder:
    """Return the train directory. The chief makes and locks it, and warns if none is given.

    Raises:
      UnusableError: it cannot be written, or another job uses it, or an earlier chief of this one does not let it go.
    """
    check_folder("train_dir", train_dir)
    folder = RunFolder(os.path.abspath(train_dir) if train_dir else "")
    check_folder("train_dir", folder.path)
    if task.is_chief and not folder.is_given:
        logging.warning(
            "%s: nothing is saved, since --train_dir is not given: if a ps is lost, training starts over", task
        )
    elif task.is_chief:
        try:
            os.makedirs(folder.path, exist_ok=True)
            cluster = HostLists.of(task).digest_of(task)
            wait_until_nothing_is_missing(
                task, lambda: _lock(folder, cluster), LEASE_SECS, "end that process", error=UnusableError
            )
            os.makedirs(folder.events, exist_ok=True)  # else nobody would say that there can be none
            for path in (folder.result, folder.report):
                if os.path.isdir(path):
                    raise UnusableError(f"{path} is a folder, but this run writes a file there: remove it")
        except OSError as error:
            raise UnusableError(
                f"--train_dir {error.filename or train_dir} cannot be written: {error.strerror}; give another one, or"
                " fix that one"
            ) from error
    return folder


def keep_locked(folder: RunFolder) -> None:
    """Lock the folder of this chief anew if somebody has removed it, and made it again, or linked another one there.

    Raises:
      UnsavedError: another job has it now, or has left its model there.
    """
    if folder.path not in _locked or not os.path.isdir(folder.path):  # who writes there says so
        return
    try:
        descriptor, cluster = _locked[folder.path]
        is_there = is_at(folder.lock, descriptor)
    except FileNotFoundError:
        is_there = False
    except OSError:  # a file server that fails for a moment
        return
    if not is_there:
        has_model = any(map(os.path.exists, (folder.checkpoint_state, folder.result)))
        if has_model and _has_foreign_lock(folder, descriptor):
            raise UnsavedError(f"--train_dir {folder.path} now has the model of another run: move that somewhere else")
        logging.warning("--train_dir %s is another folder than when this run began", folder.path)
        try:
            if _lock(folder, cluster):
                raise UnusableError(
                    f"--train_dir {folder.path} is now used by another chief of this cluster: end one of them"
                )
            os.makedirs(folder.events, exist_ok=True)
        except (OSError, UnusableError) as error:
            raise UnsavedError(str(error)) from error


def _has_foreign_lock(folder: RunFolder, descriptor: int) -> bool:
    """Return whether a folder has the lock file of another chief: neither none, nor a copy of this descriptor's."""
    with contextlib.suppress(FileNotFoundError), open(folder.lock, "rb") as file:
        return file.read() != os.pread(descriptor, 1000, 0)
    return False


# The locks of this process by their folders: the descriptor, and which cluster this is.
_locked: dict[str, tuple[int, str]] = {}


def _lock(folder: RunFolder, cluster: str) -> str:
    """Keep other chiefs out for as long as this process lives; return which one of this `cluster` still does so itself.

    Its host may be gone, of which a file server hears late.

    Raises:
      UnusableError: the chief of another job does so.
    """
    descriptor = os.open(folder.lock, os.O_RDWR | os.O_CREAT)  # never closed
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder, *others = os.read(descriptor, 1000).decode(errors="replace").split("\n")
        os.close(descriptor)
        if cluster in others:
            return f"{holder}, an earlier chief of this cluster, to release --train_dir {folder.path}"
        raise UnusableError(
            f"--train_dir {folder.path} is in use by another job, whose chief is {holder}: end that job, or give"
            " another --train_dir"
        ) from error
    except OSError as error:  # some network file systems know no locks
        logging.warning("--train_dir %s cannot be locked (%s): let no other job use it", folder.path, error.strerror)
    # In containers, tasks of two runs may have the same numbers and names, and a UUID tells them apart. It is written
    # over what is there before that is cut: a full disk may have no room for more.
    content = f"process {os.getpid()} on {socket.gethostname()}\n{uuid.uuid4()}\n{cluster}\n".encode()
    os.pwrite(descriptor, content, 0)
    os.ftruncate(descriptor, len(content))
    _locked[folder.path] = descriptor, cluster
    return ""


class SharedFolder:
    """A train directory that all ps tasks must see, since each writes its own part of a checkpoint there."""

    def __init__(self, task: Task, folder: RunFolder):
        """Build the ops for `task`, the chief, in the default graph."""
        self._task, self._folder = task, folder
        self._file = tf.placeholder(tf.string, [], name="shared_file")  # a constant's content would be remembered
        self._content_on = {}
        for ps in task.others("ps"):
            with tf.device(f"{ps.device}/device:CPU:0"):
                self._content_on[ps] = tf.io.read_file(self._file)

    def check(self, session: tf.Session, ask_every_ps: Callable[[], object], timeout_secs: float) -> None:
        """Wait until every ps sees the lock of this process.

        Raises:
          OpError: a ps is lost, as `ask_every_ps()` says.
          UnusableError: a ps still did not after `timeout_secs`.
        """
        with open(self._folder.lock, "rb") as file:
            expected = file.read()

        def describe_blindness(ps: Peer) -> str:
            try:
                content = session.run(self._content_on[ps], {self._file: self._folder.lock})
                return "" if content == expected else "it has a different file"
            except tf.errors.OpError as error:
                if not (error.op and error.op.type == "ReadFile"):
                    raise
                ask_every_ps()
                return reason(error)

        def describe_blind() -> str:
            reasons = {ps: why for ps in self._content_on if (why := describe_blindness(ps))}
            return ", ".join(f"{ps} to see {self._folder.lock} ({why})" for ps, why in reasons.items())

        wait_until_nothing_is_missing(
            self._task,
            describe_blind,
            timeout_secs,
            "give all tasks the same shared folder as --train_dir, readable by all, since each ps writes its own part"
            " of a checkpoint; or give --checkpoints=chief, so that the chief writes all of it",
            error=UnusableError,
        )
