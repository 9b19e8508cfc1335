"""Checkpoints: whether the last one can be used, and how new ones are written."""

import contextlib
import functools
import glob
import json
import math
import ntpath
import os
import re
import shutil
import threading
import time
from collections.abc import Mapping

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.task import Task
from runtime.process.errors import DIVERGED, UnsavedError, UnusableError, reason
from runtime.process.threads import reminding
from runtime.records import events
from runtime.records.files import read_json, replace_file
from runtime.records.folder import RunFolder
from runtime.saving.saver import NOT_FINITE, whole_variables
from runtime.saving.train_dir import keep_locked

ON_EACH = ", here and on each ps"  # must the train directory answer
# What a file server that fails for a moment is to TensorFlow: ESTALE, ECONNRESET, ETIMEDOUT and EIO, in this order. The
# first two look like a ps that is lost.
MOMENTARY = (
    tf.errors.AbortedError,
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnknownError,
)
OTHER_MODEL = "name an older one in {}, or give another --train_dir"
OWN_NAME = re.compile(r"model\.ckpt-\d+")  # of a checkpoint that a run has saved, and may delete


def list_checkpoints(folder: RunFolder) -> list[str]:
    """Return the paths of the checkpoints that the file for it names, the last one last; some may be missing.

    Only names count, in the folder itself: a state file that was copied or moved has the paths of other folders, whose
    checkpoints are not this run's to read or to delete.
    """
    with contextlib.suppress(tf.errors.OpError, ValueError):
        if state := tf.train.get_checkpoint_state(folder.path):
            paths = [*state.all_model_checkpoint_paths, state.model_checkpoint_path]
            names = [ntpath.basename(path) for path in reversed(paths)]  # of either system
            return [os.path.join(folder.path, name) for name in reversed(dict.fromkeys(names))]
    return []


def find_last_step(folder: RunFolder) -> int:
    """Return the global step in the name of the last checkpoint, or 0."""
    *_, path = list_checkpoints(folder) or [""]
    step = path.rpartition("-")[2]
    return int(step) if step.isdecimal() else 0


def find_last_checkpoint(folder: RunFolder) -> str | None:
    """Return the path of the last checkpoint, or None if there is none.

    Raises:
      OSError: a file server does not answer now whether there is one.
      UnusableError: the file that names it cannot be read, or names one that is not there. A new model would take the
        place of what somebody wants to go on with.
    """
    try:
        os.stat(folder.checkpoint_state)
    except FileNotFoundError:
        if unnamed := _find_unnamed(folder):
            raise UnusableError(
                f"{unnamed} is there, but no file {folder.checkpoint_state} that names it: to go on, write"
                f' model_checkpoint_path: "{os.path.basename(unnamed)}" into one; for a new model, give another'
                " --train_dir"
            ) from None
        return None
    *_, last = list_checkpoints(folder) or [""]
    if last and tf.train.checkpoint_exists(last):
        return last
    raise UnusableError(
        f"{folder.checkpoint_state} names no checkpoint that is there: let it name one that is, or give another"
        " --train_dir to begin with a new model"
    )


def _find_unnamed(folder: RunFolder) -> str:
    """Return the path of a checkpoint with steps which a new model would overwrite; "" if there is none."""
    indices = glob.glob(f"{glob.escape(folder.checkpoint)}-*.index") if folder.is_given else []
    paths = [path.removesuffix(".index") for path in indices if os.path.isfile(path)]
    steps = {path: int(step) for path in paths if (step := path.rpartition("-")[2]).isdecimal()}
    last = max(steps, key=steps.__getitem__, default="")
    return last if last and steps[last] else ""  # a process that is killed may leave one of step 0


def check_last_checkpoint(folder: RunFolder, uses: Mapping[str, str]) -> None:
    """Check the last checkpoint, if there is one, and say what it is good for: see `check_checkpoint()`.

    Args:
      folder: of the run.
      uses: of the variables, by name: see `digest_uses()`. They are kept beside the checkpoints.

    Raises:
      UnusableError: it has no such model, or has the weights of a variable under the name of another one.
    """
    if path := find_last_checkpoint(folder):
        unused = check_checkpoint(_widen_global_step(path, folder))
        before = read_json(folder.uses)
        moved = sorted(name for name in uses if uses[name] != before.get(name))
        if moved and sorted(uses.values()) == sorted(before.values()):  # else it is another model
            names = {use: name for name, use in before.items()}
            raise UnusableError(
                f"{path} has the weights of {moved[0]} under the name {names[uses[moved[0]]]}: give variables names of"
                " their own, or make them in one order, not in that of a set or a folder"
            )
        more = f"; these are not needed: {', '.join(unused)}" if unused else ""
        logging.info("%s has all variables of this model%s", path, more)
    if folder.is_given:
        with contextlib.suppress(OSError):  # the first checkpoint will say so
            replace_file(folder.uses, json.dumps(uses).encode())


def _widen_global_step(path: str, folder: RunFolder) -> str:
    """Return the path of a checkpoint or, where its global step is int32, of a copy with int64, the new last one.

    A script of TensorFlow 1 that made its step with `tf.Variable(0)` has left such a checkpoint, which stays.
    """
    name = tf.GraphKeys.GLOBAL_STEP
    try:
        reader = tf.train.load_checkpoint(path)
        if reader.get_variable_to_dtype_map().get(name) != tf.int32:
            return path
        values = {variable: reader.get_tensor(variable) for variable in reader.get_variable_to_shape_map()}
    except (tf.errors.OpError, ValueError):  # `check_checkpoint()` says why
        return path
    values[name] = values[name].astype(np.int64)
    copy = os.path.join(folder.path, f"with_int64_step.ckpt-{values[name]}")
    with tf.Graph().as_default(), tf.Session(config=tf.ConfigProto(device_count={"GPU": 0})) as session:
        fed = [tf.placeholder(value.dtype, value.shape) for value in values.values()]
        save = tf.raw_ops.SaveV2(prefix=copy, tensor_names=[*values], shape_and_slices=[""] * len(fed), tensors=fed)
        session.run(save, dict(zip(fed, values.values(), strict=True)))
    tf.train.update_checkpoint_state(folder.path, copy, [*list_checkpoints(folder), copy])
    logging.info("%s has an int32 global_step: going on from a copy with int64, %s", path, copy)
    return copy


def check_checkpoint(path: str) -> list[str]:
    """Check that every variable of the graph can be restored, since TensorFlow's message comes late and is long.

    Returns:
      The names of what is not needed.

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
        missing = f"{len(parts)} of its {num_parts} parts" if parts else "none of its parts, .data-00000 and so on"
        raise UnusableError(
            f"{path} has {missing}: copy the others from where they were written, {OTHER_MODEL.format(_state_of(path))}"
        )
    problems, wanted = [], whole_variables()
    for name, (dtype, shape) in wanted.items():
        if name not in shapes:
            problems.append(f"no variable {name}, expected shape {shape}")
        elif shapes[name] != shape:
            problems.append(f"{name} of shape {shapes[name]}, expected {shape}")
        elif types[name] != dtype:
            problems.append(f"{name} of type {types[name].name}, expected {dtype.name}")
    unused = sorted(shapes.keys() - wanted.keys())
    if problems:
        remedy = "give the flags that it was made with, or another --train_dir"
        more = f" (it also has {', '.join(unused)})" if unused else ""
        raise UnusableError(f"{path} has {'; '.join(problems)}{more}: {remedy}")
    return unused


def restore(saver: tf.train.Saver, session: tf.Session, path: str) -> None:
    """Restore the model of a checkpoint.

    Raises:
      UnavailableError: a ps is lost, or a file server fails: a new session may do.
      UnusableError: its data is damaged, which `check_checkpoint()` does not read.
    """
    try:
        saver.restore(session, path)
    except MOMENTARY as error:
        logging.warning("%s could not be restored (%s): trying again", path, reason(error))
        raise tf.errors.UnavailableError(None, None, "") from error
    except (tf.errors.DataLossError, tf.errors.OutOfRangeError) as error:
        raise _unreadable(path, reason(error)) from error
    except tf.errors.NotFoundError:
        check_checkpoint(path)  # somebody may have removed a part
        raise


def _unreadable(path: str, why: str) -> UnusableError:
    return UnusableError(f"{path} cannot be read ({why}): {OTHER_MODEL.format(_state_of(path))}")


def _state_of(path: str) -> str:
    return RunFolder(os.path.dirname(path)).checkpoint_state


def remove_unfinished(folder: RunFolder) -> None:
    """Remove what is left of checkpoints that could not be written, or whose writing was cut off."""
    pattern = f"{glob.escape(folder.checkpoint)}-*"
    for parts in glob.glob(f"{pattern}_temp"):  # those of the ps tasks
        shutil.rmtree(parts, ignore_errors=True)
    for path in glob.glob(f"{pattern}.tempstate*"):
        with contextlib.suppress(OSError):
            os.remove(path)


def recover(saver: tf.train.Saver, folder: RunFolder) -> str | None:
    """Return the last checkpoint, if there is one; `saver` learns of all that runs have saved here, to delete old ones.

    It raises what `find_last_checkpoint()` does.
    """
    path = find_last_checkpoint(folder)
    if path and not saver.last_checkpoints:  # else it knows of one, too, that this process could not name
        own = [path for path in list_checkpoints(folder) if OWN_NAME.fullmatch(os.path.basename(path))]
        saver.recover_last_checkpoints(own)
    return path


def _remove(path: str) -> bool:
    """Remove a checkpoint; return whether it is gone: another user may have written it, say."""
    try:
        tf.train.remove_checkpoint(path)
        return True
    except tf.errors.OpError as error:
        _tell_of_left(path, reason(error))
        return False


@functools.cache  # once for each
def _tell_of_left(path: str, why: str) -> None:
    logging.warning("%s cannot be deleted (%s): each save tries again to delete old checkpoints", path, why)


def is_saved(folder: RunFolder, global_step: int) -> bool:
    """Return whether the last checkpoint has the model of `global_step`."""
    *_, path = list_checkpoints(folder) or [""]
    return path.endswith(f"-{global_step}") and os.path.exists(f"{path}.index")


class CheckpointHook(tf.train.SessionRunHook):
    """Saves the model at the start of a session, from time to time and at the end, and trains on when that fails.

    The model lives on the ps tasks, and would be lost if a full disk ended the job. Only a new model, which has not
    trained yet, is refused when it cannot be saved, unless that may pass. TensorFlow's own hook takes a step for saved
    when saving it fails, and some errors of a file server for the loss of a ps.
    """

    def __init__(self, task: Task, folder: RunFolder, scaffold: tf.train.Scaffold, save_secs: float):
        """Save into `folder`, if that is given, every `save_secs`, if `task` is the chief."""
        self.is_needed = task.is_chief and folder.is_given
        self.saved_step = 0  # the global step of the last checkpoint that this process knows to be written
        self.failure = ""  # why the last checkpoint could not be written
        self._task, self._folder, self._scaffold, self._save_secs = task, folder, scaffold, save_secs
        self._due_at = math.inf  # a time of `time.monotonic()`
        self._saving = threading.Lock()  # a signal may stop the worker while it saves

    @property
    def remedy(self) -> str:
        """What to do where a checkpoint cannot be written."""
        return self._folder.remedy

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        if self.is_needed:
            with self._saving:
                remove_unfinished(self._folder)  # of a process that was ended while it saved
        is_new = session.run(tf.train.get_global_step(session.graph)) == 0
        error = self._save_or_log(session)
        if is_new and error and not isinstance(error.__cause__, MOMENTARY):
            problem = f"no checkpoint can be written to --train_dir {self._folder.path}: {self.failure}"
            raise UnusableError(f"{problem}; {self._folder.remedy}{ON_EACH}")

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
          OpError: a ps is lost, and the session with it.
          UnsavedError: the checkpoint cannot be written.
          UnusableError: a parameter is not finite: nothing is written, and the checkpoints that are good stay.
        """
        if not self.is_needed:
            return
        with self._saving:
            self._due_at = time.monotonic() + self._save_secs
            global_step = int(session.run(tf.train.get_global_step(session.graph)))
            try:
                keep_locked(self._folder)
                start, saving = time.monotonic(), f"{self._task}: still saving global step {global_step}"
                with reminding(saving, self._folder.path, ON_EACH):
                    if not self.has_saved(global_step):
                        self._write(session, global_step)
                        secs = round(time.monotonic() - start, 3)
                        events.record("checkpoint", global_step=global_step, secs_taken=secs)
                self.saved_step, self.failure = global_step, ""
            except UnsavedError as error:
                self.failure = str(error)
                raise
            except (tf.errors.OpError, ValueError) as error:  # a ValueError: the folder is gone
                self._remove_parts(global_step)
                why = reason(error) if isinstance(error, tf.errors.OpError) else str(error)
                if what := NOT_FINITE.search(why):
                    problem = f"global step {global_step} is not saved, since {what[0]}"
                    raise UnusableError(f"{problem}: {DIVERGED}") from error
                session.run(
                    self._scaffold.ready_op.name
                )  # fails if a ps is lost; by name, since the graph may be another
                self.failure = why
                where = f"global step {global_step} could not be saved in {self._folder.path}"
                raise UnsavedError(f"the model of {where}: {self.failure}") from error

    def _write(self, session: tf.Session, global_step: int) -> None:
        """Save, name the last checkpoints, and delete the others: all that are known, as of runs that have kept more.

        TensorFlow's saver would never delete one of them if a checkpoint could not be named.
        """
        saver = self._scaffold.saver
        num_kept = saver.saver_def.max_to_keep
        path = saver.save(session, self._folder.checkpoint, global_step, write_meta_graph=False, write_state=False)
        known = [*(other for other in saver.last_checkpoints if other != path), path]
        saver.recover_last_checkpoints(known)
        names = [os.path.basename(kept) for kept in known[-num_kept:]]
        tf.train.update_checkpoint_state(self._folder.path, names[-1], names)
        left = [old for old in known[:-num_kept] if not _remove(old)]
        saver.recover_last_checkpoints([*left, *known[-num_kept:]])

    def _remove_parts(self, global_step: int) -> None:
        """Remove what is left of a checkpoint, unless it is whole: then it is named, or deleted, with the next one."""
        remove_unfinished(self._folder)
        path = f"{self._folder.checkpoint}-{global_step}"
        if path not in self._scaffold.saver.last_checkpoints:
            _remove(path)

    def _save_or_log(self, session: tf.Session) -> UnsavedError | None:
        """Save; return why that failed, if it did."""
        try:
            self.save(session)
        except UnsavedError as error:
            remedy = f"{self._folder.remedy}: the next attempt follows"
            logging.error("no checkpoint could be written: %s; %s", error, remedy)
            return error
        return None
