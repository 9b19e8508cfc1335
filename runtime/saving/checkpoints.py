"""The train directory and its checkpoints: whether they can be used, and how new ones are written."""

import contextlib
import fcntl
import glob
import math
import os
import re
import shutil
import socket
import threading
import time

import tensorflow.compat.v1 as tf
from absl import logging

from runtime import events
from runtime.cluster.task import Task
from runtime.errors import UnsavedError, UnusableError, reason, refuse_url

LOCK_FILE = "chief.lock"  # says which process trains there, and is locked while it does


def make_train_dir(task: Task, train_dir: str) -> str:
    """Return `train_dir` as an absolute path or, if it is empty, as it is.

    The chief makes the directory, and keeps other jobs out of it. It warns if there is none.

    Raises:
      UnusableError: it cannot be written, or another job uses it.
    """
    refuse_url("train_dir", train_dir)
    if re.search(r"[*?[\]\\]", os.path.abspath(train_dir)):
        raise UnusableError(
            f"--train_dir {train_dir} has one of the characters * ? [ ] \\ in its path, which TensorFlow takes for a"
            " pattern when it looks for checkpoints: use another folder"
        )
    if task.is_chief and not train_dir:
        logging.warning(
            "%s: nothing is saved, since --train_dir is not given: if a ps is lost, training begins again", task
        )
    elif task.is_chief:
        try:
            os.makedirs(train_dir, exist_ok=True)
            _lock(train_dir)
        except OSError as error:
            raise UnusableError(f"--train_dir {train_dir} cannot be written: {error.strerror}") from error
    return os.path.abspath(train_dir) if train_dir else ""


def _lock(train_dir: str) -> None:
    """Keep the chiefs of other jobs out of `train_dir` for as long as this process lives."""
    descriptor = os.open(os.path.join(train_dir, LOCK_FILE), os.O_RDWR | os.O_CREAT)  # never closed
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(descriptor, 1000).decode(errors="replace").strip()
        raise UnusableError(
            f"--train_dir {train_dir} is in use by another job, whose chief is {holder}: end that job, or give another"
            " --train_dir"
        ) from error
    except OSError as error:  # some network file systems know no locks
        logging.warning("--train_dir %s cannot be locked (%s): let no other job use it", train_dir, error.strerror)
    os.truncate(descriptor, 0)
    os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())


def find_last_checkpoint(train_dir: str) -> str | None:
    """Return the path of the last checkpoint in `train_dir`, or None if there is none.

    Raises:
      UnusableError: the file that names it cannot be read, or names one that is not there. A new model would take the
        place of what somebody wants to go on with.
    """
    state = os.path.join(train_dir, "checkpoint")
    if not train_dir or not os.path.exists(state):
        return None
    with contextlib.suppress(tf.errors.OpError, ValueError):
        if path := tf.train.latest_checkpoint(train_dir):
            return str(path)
    raise UnusableError(
        f"{state} names no checkpoint that is there: let it name one that is, remove it to begin with a new model, or"
        " give another --train_dir"
    )


def check_last_checkpoint(train_dir: str) -> None:
    """Check the last checkpoint in `train_dir`, if there is one: see `check_checkpoint()`."""
    if path := find_last_checkpoint(train_dir):
        check_checkpoint(path)


def check_checkpoint(path: str) -> None:
    """Check that every variable of the graph can be restored, since TensorFlow's message comes late and is long.

    Raises:
      UnusableError: the checkpoint is broken or incomplete, or lacks a variable, or has it in another shape.
    """
    state = os.path.join(os.path.dirname(path), "checkpoint")
    try:
        saved_shapes = dict(tf.train.list_variables(path))
    except (tf.errors.OpError, ValueError) as error:
        raise UnusableError(
            f"{path} cannot be read ({str(error).splitlines()[0]}): name an older one in {state}, or"
            " give another --train_dir"
        ) from error
    parts = glob.glob(f"{glob.escape(path)}.data-*-of-*")
    num_parts = int(parts[0].rpartition("-")[2]) if parts else 1
    if len(parts) < num_parts:
        raise UnusableError(
            f"{path} has {len(parts)} of its {num_parts} parts: copy the others from where they were written, or give"
            " another --train_dir"
        )
    remedy = "give the flags that it was made with, or another --train_dir"
    for name, shape in _whole_shapes().items():
        saved_shape = saved_shapes.get(name)
        if saved_shape is None:
            raise UnusableError(f"{path} has no variable {name}, expected shape {shape}: {remedy}")
        if saved_shape != shape:
            raise UnusableError(f"{path} has {name} of shape {saved_shape}, expected {shape}: {remedy}")


def _whole_shapes() -> dict[str, list[int]]:
    """Return the shapes of the graph's variables as checkpoints have them: a variable that is split by rows, whole."""
    shapes: dict[str, list[int]] = {}
    for variable in tf.global_variables():
        name, num_parts = re.subn(r"/part_\d+", "", variable.op.name)
        shape = variable.shape.as_list()
        if num_parts and name in shapes:
            shape[0] += shapes[name][0]
        shapes[name] = shape
    return shapes


def make_saver(task: Task, written_by: str, keep_checkpoints: int) -> tf.train.Saver:
    """Return what saves and restores all variables of the graph; each way reads what the other has written.

    Args:
      task: this worker, which saves if it is the chief.
      written_by: "ps" if each ps writes and reads its own part, or "chief" if the chief writes and reads all of it.
      keep_checkpoints: how many of the last checkpoints remain.
    """

    def place(op: tf.Operation) -> str:
        uses_files = written_by == "chief" and op.type in ("SaveV2", "RestoreV2")
        return f"{task.device}/device:CPU:0" if uses_files else op.device

    with tf.device(place):  # the saver itself would restore each variable where it lies
        return tf.train.Saver(sharded=written_by == "ps", save_relative_paths=True, max_to_keep=keep_checkpoints)


def remove_unfinished(train_dir: str) -> None:
    """Remove what is left of checkpoints that could not be written."""
    pattern = os.path.join(glob.escape(train_dir), "model.ckpt-*")
    for folder in glob.glob(f"{pattern}_temp"):  # the parts of the ps tasks
        shutil.rmtree(folder, ignore_errors=True)
    for path in glob.glob(f"{pattern}.tempstate*"):
        with contextlib.suppress(OSError):
            os.remove(path)


def recover(saver: tf.train.Saver, train_dir: str) -> str | None:
    """Return the last checkpoint in `train_dir`, if there is one; `saver` learns of all, and deletes old ones.

    Raises:
      UnusableError: see `find_last_checkpoint()`.
    """
    path = find_last_checkpoint(train_dir)
    if path:
        saver.recover_last_checkpoints(tf.train.get_checkpoint_state(train_dir).all_model_checkpoint_paths)
    return path


def is_saved(train_dir: str, global_step: int) -> bool:
    """Return whether the last checkpoint in `train_dir` has the model of `global_step`."""
    state = tf.train.get_checkpoint_state(train_dir)
    path = state.model_checkpoint_path if state else ""
    return path.endswith(f"-{global_step}") and os.path.exists(f"{path}.index")


class CheckpointHook(tf.train.SessionRunHook):
    """Saves the model at the start of a session, from time to time and at the end, and trains on when that fails.

    The model lives on the ps tasks, and would be lost if a full disk ended the job. Only a new model, which has not
    trained yet, is refused when it cannot be saved. TensorFlow's own hook takes a step for saved when saving it fails.
    """

    def __init__(self, task: Task, train_dir: str, scaffold: tf.train.Scaffold, save_secs: float):
        """Save into `train_dir` every `save_secs`, unless that is empty, or `task` is not the chief."""
        self.is_needed = bool(task.is_chief and train_dir)
        self.failure = ""  # why the last checkpoint could not be written
        self._train_dir, self._scaffold, self._save_secs = train_dir, scaffold, save_secs
        self._due_at = math.inf  # a time of `time.monotonic()`
        self._saving = threading.Lock()  # a signal may stop the worker while it saves

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        is_new = session.run(tf.train.get_global_step(session.graph)) == 0
        self._save_or_log(session)
        if is_new and self.failure:
            raise UnusableError(f"no checkpoint can be written to --train_dir {self._train_dir}: {self.failure}")

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        if time.monotonic() >= self._due_at:
            self._save_or_log(run_context.session)

    def end(self, session: tf.Session) -> None:
        self._save_or_log(session)

    def has_saved(self, global_step: int) -> bool:
        """Return whether the last checkpoint has the model of this step, or nothing is to be saved."""
        return not self.is_needed or is_saved(self._train_dir, global_step)

    def save(self, session: tf.Session) -> None:
        """Save the model, unless the last checkpoint has it, perhaps with more in it: another optimizer's state, say.

        Raises:
          AbortedError, UnavailableError: a ps is lost, and the session with it.
          UnsavedError: the checkpoint cannot be written.
        """
        if not self.is_needed:
            return
        with self._saving:
            self._due_at = time.monotonic() + self._save_secs
            global_step = int(session.run(tf.train.get_global_step(session.graph)))
            try:
                if not self.has_saved(global_step):
                    self._write(session, global_step)
                self.failure = ""
            except (tf.errors.AbortedError, tf.errors.UnavailableError):
                raise
            except (tf.errors.OpError, ValueError) as error:  # a ValueError: the folder is gone
                remove_unfinished(self._train_dir)
                why = reason(error) if isinstance(error, tf.errors.OpError) else str(error)
                self.failure = re.sub(r"\S+\.tempstate\d+; ", "", why)  # the same text whenever it is tried again
                where = f"global step {global_step} could not be saved in {self._train_dir}"
                raise UnsavedError(f"the model of {where}: {self.failure}") from error

    def _write(self, session: tf.Session, global_step: int) -> None:
        started_at = time.time()
        path = os.path.join(self._train_dir, "model.ckpt")
        self._scaffold.saver.save(session, path, global_step, write_meta_graph=False)
        events.record("checkpoint", global_step=global_step, secs_taken=round(time.time() - started_at, 3))

    def _save_or_log(self, session: tf.Session) -> None:
        try:
            self.save(session)
        except UnsavedError as error:
            logging.error("no checkpoint could be written: %s; make that possible", error)
