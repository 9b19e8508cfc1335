"""The SavedModel of a run: a graph of its own with the values that were measured, for programs that serve it."""

import errno
import filecmp
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.task import Task
from runtime.model.computation import GLOBAL_STEP
from runtime.model.function import Model
from runtime.model.variables import make_variables
from runtime.process.errors import UnsavedError, UnusableError, check_folder, reason
from runtime.process.threads import reminding

TEMPORARY = "tmp-"  # begins the name of a folder that is being written
NAMES = os.path.join("assets", "class_names.txt")  # one in a line
FILES = ("saved_model.pb", os.path.join("variables", "variables.data-00000-of-00001"))  # of the graph, of the values


def check_export_dir(task: Task, export_dir: str) -> None:
    """Make `export_dir`, unless it is empty, and check that the chief can write there.

    If its disk is full now, training goes on: there may be room at the end.

    Raises:
      UnusableError: it cannot.
    """
    if not (export_dir and task.is_chief):
        return
    check_folder("export_dir", export_dir)
    try:
        os.makedirs(export_dir, exist_ok=True)
        tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=export_dir).cleanup()
    except OSError as error:
        problem = f"--export_dir {export_dir} cannot be written: {error.strerror}"
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not os.path.isdir(export_dir):
            raise UnusableError(problem) from error
        logging.warning("%s: %s; free disk space before training ends", task, problem)


def export(export_dir: str, model: Model, read_values: Callable[[], Mapping[str, Any]]) -> None:
    """Write a SavedModel into a new numbered folder of `export_dir`, unless that is empty or its newest is this model.

    TensorFlow Serving takes the highest number. A folder appears there whole, and none is ever replaced. A chief that
    is started again may have exported the model before.

    Args:
      export_dir: the folder of all versions.
      model: what is served.
      read_values: returns the values of its parameters, arrays by name, and the global step.

    Raises:
      UnsavedError: it cannot be written, or another job has just taken its number.
      UnusableError: its graph fails, as it would again.
    """
    if not export_dir:
        return
    values = read_values()
    try:
        with (
            reminding("still exporting the model", export_dir),
            tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=export_dir) as temporary,
        ):
            folder = os.path.join(temporary, "model")
            _save(folder, model, values)
            newest = max((int(name) for name in os.listdir(export_dir) if name.isascii() and name.isdigit()), default=0)
            path = os.path.join(export_dir, str(newest))
            assets = os.path.join(folder, "assets")  # such as the words of a lookup table
            names = os.listdir(assets) if os.path.isdir(assets) else []
            files = [*FILES, *(os.path.join("assets", name) for name in names)]
            if len(filecmp.cmpfiles(folder, path, files, shallow=False)[0]) == len(files):
                logging.info("%s already has this model", path)
            else:
                os.rename(folder, os.path.join(export_dir, str(newest + 1)))
    except OSError as error:
        raise UnsavedError(f"the model could not be exported to {export_dir}: {error.strerror}") from error
    except tf.errors.OpError as error:
        why = re.sub(rf"\b{TEMPORARY}\w+", f"{TEMPORARY}…", reason(error))  # it has another name at each attempt
        problem = f"the model could not be exported to {export_dir}: {why}"
        if error.op is None or error.op.type in ("SaveV2", "MergeV2Checkpoints"):  # they write files
            raise UnsavedError(problem) from error
        raise UnusableError(f"{problem}: correct model.py") from error


def check_serving(model: Model) -> None:
    """Check that a model can be exported, before it is trained: build what is served.

    Raises:
      UnusableError: it cannot.
    """
    with tf.Graph().as_default():
        try:
            variables = make_variables(model.test)
            model.build_serving({name: tf.convert_to_tensor(variable) for name, variable in variables.items()})
        except (TypeError, ValueError) as error:
            raise UnusableError(f"the model cannot be exported: {error}; correct INPUT in mnist_input.py") from error


def _save(folder: str, model: Model, values: Mapping[str, Any]) -> None:
    config = tf.ConfigProto(device_count={"GPU": 0})  # those of this process belong to its server
    with tf.Graph().as_default(), tf.Session(config=config) as session:
        variables = make_variables(model.test)
        parameters = {name: tf.convert_to_tensor(variable) for name, variable in variables.items()}
        parameters[GLOBAL_STEP] = tf.constant(values.get(GLOBAL_STEP, 0), tf.int64)
        serving = model.build_serving(parameters)
        for name, variable in variables.items():
            variable.load(values[name], session)
        tf.saved_model.simple_save(session, folder, serving.inputs, serving.outputs, tf.tables_initializer())
        if serving.class_names:
            os.makedirs(os.path.join(folder, "assets"), exist_ok=True)
            with open(os.path.join(folder, NAMES), "x", encoding="utf-8", errors="surrogateescape") as file:
                file.writelines(f"{name}\n" for name in serving.class_names)
