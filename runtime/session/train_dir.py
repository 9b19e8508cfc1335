"""The train directory: it is there, it can be written, and it belongs to one job."""

import fcntl
import os
import socket
import tempfile

from absl import logging

from runtime.cluster.task import Task

NEEDED_BYTES = 2**20  # free space that it must have: a checkpoint of the default model
LOCK_FILE = "chief.lock"  # says which process trains there, and is locked while it does


class TrainDirError(Exception):
    """The train directory cannot be used."""


def make_train_dir(task: Task, train_dir: str) -> str:
    """Return `train_dir` as an absolute path or, if it is empty, as it is.

    The chief makes the directory, and keeps other jobs out of it. It warns if there is none.

    Raises:
      TrainDirError: it cannot be written, or another job uses it.
    """
    if task.is_chief and not train_dir:
        logging.warning(
            "%s: nothing is saved, since --train_dir is not given: if a ps is lost, training begins again", task
        )
    elif task.is_chief:
        try:
            os.makedirs(train_dir, exist_ok=True)
            _lock(train_dir)
            with tempfile.TemporaryFile(dir=train_dir) as file:
                file.write(bytes(NEEDED_BYTES))
                os.fsync(file)  # or some file systems notice only later that they are full
        except OSError as error:
            raise TrainDirError(f"--train_dir {train_dir} cannot be written: {error.strerror}") from error
    return os.path.abspath(train_dir) if train_dir else ""


def _lock(train_dir: str) -> None:
    """Keep the chiefs of other jobs out of `train_dir` for as long as this process lives."""
    descriptor = os.open(os.path.join(train_dir, LOCK_FILE), os.O_RDWR | os.O_CREAT)  # never closed
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(descriptor, 1000).decode(errors="replace").strip()
        raise TrainDirError(
            f"--train_dir {train_dir} is in use by another job, whose chief is {holder}: end that job, or give another"
            " --train_dir"
        ) from error
    except OSError as error:  # some network file systems know no locks
        logging.warning("--train_dir %s cannot be locked (%s): let no other job use it", train_dir, error.strerror)
    os.truncate(descriptor, 0)
    os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
