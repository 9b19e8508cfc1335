"""How the chief makes the train directory, and keeps other jobs out of it."""

import fcntl
import os
import socket
import uuid

from absl import logging

from runtime.cluster.task import Task
from runtime.process.errors import UnsavedError, UnusableError, check_folder
from runtime.records.folder import RunFolder


def open_train_dir(task: Task, train_dir: str) -> RunFolder:
    """Return the train directory. The chief makes and locks it, and warns if none is given.

    Raises:
      UnusableError: it cannot be written, or another job uses it.
    """
    check_folder("train_dir", train_dir)
    folder = RunFolder(os.path.abspath(train_dir) if train_dir else "")
    check_folder("train_dir", folder.path)
    if task.is_chief and not folder.is_given:
        logging.warning(
            "%s: nothing is saved, since --train_dir is not given: if a ps is lost, training begins again", task
        )
    elif task.is_chief:
        try:
            os.makedirs(folder.path, exist_ok=True)
            _lock(folder)
            os.makedirs(folder.events, exist_ok=True)  # else nobody would say that there can be none
            for path in (folder.result, folder.report):
                if os.path.isdir(path):
                    raise UnusableError(f"{path} is a folder, where this run writes a file: remove it")
        except OSError as error:
            raise UnusableError(
                f"--train_dir {error.filename or train_dir} cannot be written: {error.strerror}; give another one, or"
                " correct what is there"
            ) from error
    return folder


def keep_locked(folder: RunFolder) -> None:
    """Lock the folder of this chief anew if somebody has removed it, and made it again.

    Raises:
      UnsavedError: another job has it now.
    """
    if folder.path not in _locked or not os.path.isdir(folder.path):  # who writes there says so
        return
    try:
        is_there = os.path.samestat(os.stat(folder.lock), os.fstat(_locked[folder.path]))
    except FileNotFoundError:
        is_there = False
    except OSError:  # a file server that fails for a moment
        return
    if not is_there:
        logging.warning("--train_dir %s was removed and made again while this run trains", folder.path)
        try:
            _lock(folder)
            os.makedirs(folder.events, exist_ok=True)
        except (OSError, UnusableError) as error:
            raise UnsavedError(str(error)) from error


_locked: dict[str, int] = {}  # the descriptors of the locks of this process, by their folders


def _lock(folder: RunFolder) -> None:
    """Keep the chiefs of other jobs out for as long as this process lives."""
    descriptor = os.open(folder.lock, os.O_RDWR | os.O_CREAT)  # never closed
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(descriptor, 1000).decode(errors="replace").partition("\n")[0]
        raise UnusableError(
            f"--train_dir {folder.path} is in use by another job, whose chief is {holder}: end that job, or give"
            " another --train_dir"
        ) from error
    except OSError as error:  # some network file systems know no locks
        logging.warning("--train_dir %s cannot be locked (%s): let no other job use it", folder.path, error.strerror)
    # In containers, tasks of two runs may have the same numbers and names, and a UUID tells them apart. It is written
    # over what is there before that is cut: a full disk may have no room for more.
    content = f"process {os.getpid()} on {socket.gethostname()}\n{uuid.uuid4()}\n".encode()
    os.pwrite(descriptor, content, 0)
    os.ftruncate(descriptor, len(content))
    _locked[folder.path] = descriptor
