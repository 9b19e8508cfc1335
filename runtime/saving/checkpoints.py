"""Checkpoints: whether the last one can be used, and how new ones are written."""

import contextlib
import glob
import math
import os
import re
import shutil
import threading
import time

import tensorflow.compat.v1 as tf
from absl import logging

from runtime import events
from runtime.cluster.task import Task
from runtime.cluster.waiting import reminding
from runtime.errors import UnsavedError, UnusableError, reason
from runtime.folder import RunFolder


def find_last_checkpoint(folder: RunFolder) -> str | None:
    """Return the path of the last checkpoint, or None if there is none.

    Raises:
      UnusableError: the file that names it cannot be read, or names one that is not there. A new model would take the
        place of what somebody wants to go on with.
    """
    if not os.path.exists(folder.checkpoint_state):
        return None
    with contextlib.suppress(tf.errors.OpError, ValueError):
        if path := tf.train.latest_checkpoint(folder.path):
            return str(path)
    raise UnusableError(
        f"{folder.checkpoint_state} names no checkpoint that is there: let it name one that is, remove it to begin with"
        " a new model, or give another --train_dir"
    )


def check_last_checkpoint(folder: RunFolder) -> None:
    """Check the last checkpoint, if there is one: see `check_checkpoint()`."""
    if path := find_last_checkpoint(folder):
        check_checkpoint(path)


def check_checkpoint(path: str) -> None:
    """Check that every variable of the graph can be restored, since TensorFlow's message comes late and is long.

    Raises:
      UnusableError: the checkpoint is broken or incomplete, or lacks a variable, or has it in another shape or type.
    """
    try:
        reader = tf.train.load_checkpoint(path)
        types, shapes = reader.get_variable_to_dtype_map(), reader.get_variable_to_shape_map()
    except (tf.errors.OpError, ValueError) as error:
        raise _unreadable(path, str(error).splitlines()[0]) from error
    parts = glob.glob(f"{glob.escape(path)}.data-*-of-*")
    num_parts = int(parts[0].rpartition("-")[2]) if parts else 1
    if len(parts) < num_parts:
        raise UnusableError(
            f"{path} has {len(parts)} of its {num_parts} parts: copy the others from where they were written, or give"
            " another --train_dir"
        )
    remedy = "give the flags that it was made with, or another --train_dir"
    for name, (dtype, shape) in _whole_variables().items():
        if name not in shapes:
            raise UnusableError(f"{path} has no variable {name}, expected shape {shape}: {remedy}")
        if shapes[name] != shape:
            raise UnusableError(f"{path} has {name} of shape {shapes[name]}, expected {shape}: {remedy}")
        if types[name] != dtype:
            raise UnusableError(f"{path} has {name} of type {types[name].name}, expected {dtype.name}: {remedy}")


def restore(saver: tf.train.Saver, session: tf.Session, path: str) -> None:
    """Restore the model of a checkpoint.

    Raises:
      UnusableError: its data is damaged, which `check_checkpoint()` does not read.
    """
    try:
        saver.restore(session, path)
    except (tf.errors.DataLossError, tf.errors.OutOfRangeError) as error:
        raise _unreadable(path, reason(error)) from error


def _unreadable(path: str, why: str) -> UnusableError:
    state = RunFolder(os.path.dirname(path)).checkpoint_state
    return UnusableError(f"{path} cannot be read ({why}): name an older one in {state}, or give another --train_dir")


def _whole_variables() -> dict[str, tuple[tf.DType, list[int]]]:
    """Return the graph's variables, types and shapes, as checkpoints have them: one that is split by rows, whole."""
    variables: dict[str, tuple[tf.DType, list[int]]] = {}
    for variable in tf.global_variables():
        name, num_parts = re.subn(r"/part_\d+", "", variable.op.name)
        shape = variable.shape.as_list()
        if num_parts and name in variables:
            shape[0] += variables[name][1][0]
        variables[name] = variable.dtype, shape
    return variables


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


def remove_unfinished(folder: RunFolder) -> None:
    """Remove what is left of checkpoints that could not be written."""
    pattern = f"{glob.escape(folder.checkpoint)}-*"
    for parts in glob.glob(f"{pattern}_temp"):  # those of the ps tasks
        shutil.rmtree(parts, ignore_errors=True)
    for path in glob.glob(f"{pattern}.tempstate*"):
        with contextlib.suppress(OSError):
            os.remove(path)


def recover(saver: tf.train.Saver, folder: RunFolder) -> str | None:
    """Return the last checkpoint, if there is one; `saver` learns of all, and deletes old ones.

    Raises:
      UnusableError: see `find_last_checkpoint()`.
    """
    path = find_last_checkpoint(folder)
    if path:
        saver.recover_last_checkpoints(tf.train.get_checkpoint_state(folder.path).all_model_checkpoint_paths)
    return path


def is_saved(folder: RunFolder, global_step: int) -> bool:
    """Return whether the last checkpoint has the model of `global_step`."""
    state = tf.train.get_checkpoint_state(folder.path)
    path = state.model_checkpoint_path if state else ""
    return path.endswith(f"-{global_step}") and os.path.exists(f"{path}.index")


class CheckpointHook(tf.train.SessionRunHook):
    """Saves the model at the start of a session, from time to time and at the end, and trains on when that fails.

    The model lives on the ps tasks, and would be lost if a full disk ended the job. Only a new model, which has not
    trained yet, is refused when it cannot be saved. TensorFlow's own hook takes a step for saved when saving it fails.
    """

    def __init__(self, task: Task, folder: RunFolder, scaffold: tf.train.Scaffold, save_secs: float):
        """Save into `folder`, if that is given, every `save_secs`, if `task` is the chief."""
        self.is_needed = task.is_chief and folder.is_given
        self.saved_step = 0  # the global step of the last checkpoint that this process knows to be written
        self.failure = ""  # why the last checkpoint could not be written
        self._task, self._folder, self._scaffold, self._save_secs = task, folder, scaffold, save_secs
        self._due_at = math.inf  # a time of `time.monotonic()`
        self._saving = threading.Lock()  # a signal may stop the worker while it saves

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        is_new = session.run(tf.train.get_global_step(session.graph)) == 0
        self._save_or_log(session)
        if is_new and self.failure:
            raise UnusableError(f"no checkpoint can be written to --train_dir {self._folder.path}: {self.failure}")

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        if time.monotonic() >= self._due_at:
            self._save_or_log(run_context.session)

    def end(self, session: tf.Session) -> None:
        self._save_or_log(session)

    def has_saved(self, global_step: int) -> bool:
        """Return whether the last checkpoint has the model of this step, or nothing is to be saved."""
        return not self.is_needed or is_saved(self._folder, global_step)

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
                    started_at = time.time()
                    with reminding(self._task, f"saving global step {global_step}", self._folder.path):
                        self._scaffold.saver.save(session, self._folder.checkpoint, global_step, write_meta_graph=False)
                    events.record("checkpoint", global_step=global_step, secs_taken=round(time.time() - started_at, 3))
                self.saved_step, self.failure = global_step, ""
            except (tf.errors.AbortedError, tf.errors.UnavailableError):
                raise
            except (tf.errors.OpError, ValueError) as error:  # a ValueError: the folder is gone
                remove_unfinished(self._folder)
                why = reason(error) if isinstance(error, tf.errors.OpError) else str(error)
                self.failure = re.sub(r"\S+\.tempstate\d+; ", "", why)  # the same text whenever it is tried again
                where = f"global step {global_step} could not be saved in {self._folder.path}"
                raise UnsavedError(f"the model of {where}: {self.failure}") from error

    def _save_or_log(self, session: tf.Session) -> None:
        try:
            self.save(session)
        except UnsavedError as error:
            logging.error("no checkpoint could be written: %s; make that possible", error)
