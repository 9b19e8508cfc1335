"""The files of a user, `model.py` and `mnist_input.py`: what they must return, and where a mistake in them is."""

import os
import pathlib
import sys
import traceback
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Literal

import numpy as np
import tensorflow.compat.v1 as tf

from runtime.errors import UNUSABLE_STATUS, UnusableError, reason
from runtime.tables import MISTAKE, Table

PROJECT = pathlib.Path(__file__).parents[1]
OURS = ("runtime", "benchmarks", "tests", ".venv", "distributed.py", "predict.py")  # all else there is the user's
OF_OPS = (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError, tf.errors.UnknownError)


def describe_mistake(error: BaseException) -> str:
    """Return an error that comes from a user's file as a line that says where, or "" if it comes from elsewhere.

    It may have been raised there, while the file was imported too, or by an op that was made there. What the system
    refused at this moment, such as memory or a file on a server that is away, is no mistake.
    """
    if isinstance(error, tf.errors.OpError) and MISTAKE in error.message:
        return reason(error)
    if isinstance(error, MemoryError | OSError) and not isinstance(error, FileNotFoundError | PermissionError):
        return ""
    if place := find_place(error):
        file = place.partition(",")[0]
        if isinstance(error, tf.errors.OpError):
            return f"{place}: {reason(error)}; correct {file}, or the examples that it gets"
        return f"{place}: {type(error).__name__}: {' '.join(str(error).split())}; correct {file}"
    module = pathlib.Path(getattr(getattr(error, "obj", None), "__file__", None) or "")
    return f"{reason(error)}; correct {module.name}" if _is_users(module) else ""  # it lacks a name


def find_place(error: BaseException) -> str:
    """Return the file of a user and the line in it that an error comes from, or ""."""
    frames = list(traceback.extract_tb(error.__traceback__))
    if isinstance(error, SyntaxError) and error.filename:
        frames.append(traceback.FrameSummary(error.filename, error.lineno, ""))
    if isinstance(error, tf.errors.OpError):
        frames = [*error.op.traceback] if isinstance(error, OF_OPS) and error.op else []
    for frame in reversed(frames):
        path = pathlib.Path(frame.filename)
        if _is_users(path):
            return f"{path.relative_to(PROJECT)}, line {frame.lineno}"
    return ""


def _is_users(path: pathlib.Path) -> bool:
    return path.is_relative_to(PROJECT) and path.relative_to(PROJECT).parts[0] not in OURS


def _tell_mistake(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Tell what is wrong in one line, where `program` does not: while the files are imported."""
    if isinstance(error, Exception | SystemExit) and (place := find_place(error)):
        mistake = describe_mistake(error)
        print(f"error: {mistake or f'{place}: {reason(error)}; start this task again'}", file=sys.stderr, flush=True)
        os._exit(UNUSABLE_STATUS if mistake else 1)
    sys.__excepthook__(kind, error, trace)


sys.excepthook = _tell_mistake


def build_parameters(model: Any, name: str, hidden_units: int) -> dict[str, Any]:
    """Make the variables of one of a model's `MODELS`; for each table there is a `Table` yet.

    Raises:
      UnusableError: the model returns something else.
    """
    parameters = model.build_parameters(name, hidden_units)
    if not isinstance(parameters, Mapping):
        found = type(parameters).__name__
        raise UnusableError(f"model.py: build_parameters() must return a dict of variables by name, found {found}")
    for parameter_name, parameter in parameters.items():
        is_one = isinstance(parameter, Table | tf.compat.v2.Variable | tf.Tensor) or not isinstance(parameter, Iterable)
        if not all(isinstance(v, Table | tf.compat.v2.Variable) for v in ([parameter] if is_one else parameter)):
            found = type(parameter).__name__
            raise UnusableError(
                f"model.py: build_parameters() must return variables, found {found} for {parameter_name}"
            )
    return dict(parameters)


def check_result(function: str, value: Any, shape: Literal["[]", "[b, classes]"]) -> tf.Tensor:
    """Return what a function of a model has returned; raise an UnusableError unless it is float32 of that shape."""
    rank = 2 if shape == "[b, classes]" else 0
    if not (isinstance(value, tf.Tensor) and value.dtype == tf.float32 and value.shape.rank in (rank, None)):
        found = f"{value.dtype.name} {value.shape}" if isinstance(value, tf.Tensor) else type(value).__name__
        raise UnusableError(f"model.py: {function}() must return float32 {shape}, found {found}")
    return value


def check_examples(examples: Any, expected: Any, where: str) -> None:
    """Check examples: each is as `expected`, a `tf.TensorSpec`, says, and has a label, an integer from 0 on.

    The model says later how many classes there are.

    Raises:
      UnusableError: they are not; `where` says which ones.
    """

    def check(is_so: bool, what: str, found: str) -> None:
        if not is_so:
            remedy = "correct mnist_input.py, or what it reads"
            raise UnusableError(f"{where} cannot be used: expected {what}, found {found}; {remedy}")

    are_columns = hasattr(examples, "_fields") and all(isinstance(part, np.ndarray) for part in examples)
    check(are_columns, "a named tuple of arrays", type(examples).__name__)
    inputs, labels = examples[0], examples[-1]
    found = f"{len(inputs)} examples and labels of the shape {list(labels.shape)}"
    check(labels.shape == (len(inputs) or 1,), "one example at least, and a label for each", found)
    check(np.issubdtype(labels.dtype, np.integer), "integers as labels", str(labels.dtype))
    check(labels.min() >= 0, "labels from 0 on", f"label {labels.argmin()} is {labels.min()}")
    size = expected.shape.num_elements()
    what, found = f"{expected.dtype.name} [n, {size}], as INPUT says", f"{inputs.dtype} {list(inputs.shape)}"
    check(inputs.shape[1:] == (size,) and inputs.dtype == expected.dtype.as_numpy_dtype, what, found)
