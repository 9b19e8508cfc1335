"""Checkpoints: which there are, and whether the last one can be used."""

import contextlib
import errno
import glob
import json
import ntpath
import os
import re
from collections.abc import Mapping

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging

from runtime.process.errors import UnusableError, reason
from runtime.records.files import read_json, replace_file
from runtime.records.folder import RunFolder
from runtime.saving.saver import whole_variables

# What a file server that fails for a moment is to TensorFlow: ESTALE, ECONNRESET, ETIMEDOUT and EIO, in this order. The
# first two look like a ps that is lost.
MOMENTARY = (
    tf.errors.AbortedError,
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnknownError,
)
OTHER_MODEL = "name an older one in {}, or give another --train_dir"
DENIED = os.strerror(errno.EACCES)
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


def is_saved(folder: RunFolder, global_step: int) -> bool:
    """Return whether the last checkpoint has the model of `global_step`."""
    *_, path = list_checkpoints(folder) or [""]
    return path.endswith(f"-{global_step}") and os.path.exists(f"{path}.index")


def find_last_checkpoint(folder: RunFolder) -> str | None:
    """Return the path of the last checkpoint, or None if there is none.

    A process that is killed while it saves the first one may leave that without the file that names it.

    Raises:
      OSError: a file server does not answer now whether there is one.
      UnusableError: the file that names it cannot be read, or names one that is not there. A new model would take the
        place of what somebody wants to go on with.
    """
    if not is_there(folder.checkpoint_state):
        *older, unnamed = _find_unnamed(folder) or [""]
        name = os.path.basename(unnamed)
        if older:
            raise UnusableError(
                f"{unnamed} exists, but {folder.checkpoint_state}, which should name it, does not: to resume, write"
                f' model_checkpoint_path: "{name}" into it; to start over, give another --train_dir'
            )
        if not unnamed:
            return None
        logging.warning("%s, which should name the only checkpoint, %s, was missing", folder.checkpoint_state, name)
        tf.train.update_checkpoint_state(folder.path, name, [name])
    *_, last = list_checkpoints(folder) or [""]
    if last and tf.train.checkpoint_exists(last):
        return last
    raise UnusableError(
        f"{folder.checkpoint_state} names no existing checkpoint: name one in it or, to start over, give another"
        " --train_dir"
    )


def is_there(path: str) -> bool:
    """Return whether there is something at a path.

    Raises:
      OSError: a file server does not answer now.
      UnusableError: this user may not read it.
    """
    try:
        open(path, "rb").close()
    except FileNotFoundError:
        return False
    except IsADirectoryError:
        pass  # who reads it says so
    except PermissionError as error:
        raise _unreadable(path, DENIED) from error
    return True


def _find_unnamed(folder: RunFolder) -> list[str]:
    """Return the paths of checkpoints with steps, which a new model would overwrite, the last one last."""
    indices = glob.glob(f"{glob.escape(folder.checkpoint)}-*.index") if folder.is_given else []
    paths = [path.removesuffix(".index") for path in indices if os.path.isfile(path)]
    steps = {path: int(step) for path in paths if (step := path.rpartition("-")[2]).isdecimal()}
    return sorted(filter(steps.get, steps), key=steps.__getitem__)  # a process that is killed may leave one of step 0


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
        if not before and os.path.exists(folder.uses):  # after the loss of power, say
            told = "%s cannot be read: whether %s has all under the right names is not checked"
            logging.warning(told, folder.uses, path)
        moved = sorted(name for name in uses if uses[name] != before.get(name))
        if moved and sorted(uses.values()) == sorted(before.values()):  # else it is another model
            names = {use: name for name, use in before.items()}
            raise UnusableError(
                f"{path} has the weights of {moved[0]} under the name {names[uses[moved[0]]]}: name the"
                " variables, or create them in a fixed order, not in that of a set or a folder"
            )
        more = f"; not needed: {', '.join(unused)}" if unused else ""
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
    logging.info("%s has an int32 global_step: resuming from a copy with int64, %s", path, copy)
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
    parts = [part for part in parts if is_there(part)]  # a link may lead to nothing
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
        remedy = "give the flags that it was trained with, or another --train_dir"
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
    except (tf.errors.DataLossError, tf.errors.OutOfRangeError, tf.errors.PermissionDeniedError) as error:
        raise _unreadable(path, reason(error)) from error
    except tf.errors.NotFoundError:
        check_checkpoint(path)  # somebody may have removed a part
        raise


def _unreadable(path: str, why: str) -> UnusableError:
    remedy = "fix its permissions" if DENIED in why else OTHER_MODEL.format(_state_of(path))
    return UnusableError(f"{path} cannot be read ({why}): {remedy}")


def _state_of(path: str) -> str:
    return RunFolder(os.path.dirname(path)).checkpoint_state


def recover(saver: tf.train.Saver, folder: RunFolder) -> str | None:
    """Return the last checkpoint, if there is one; `saver` learns of all that runs have saved here, to delete old ones.

    It raises what `find_last_checkpoint()` does.
    """
    path = find_last_checkpoint(folder)
    if path and not saver.last_checkpoints:  # else it knows of one, too, that this process could not name
        own = [path for path in list_checkpoints(folder) if OWN_NAME.fullmatch(os.path.basename(path))]
        saver.recover_last_checkpoints(own)
    return path
