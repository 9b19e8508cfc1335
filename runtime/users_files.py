"""The files of a user, `model.py` and `mnist_input.py`: where a mistake in them is, and what they say of themselves."""

import os
import pathlib
import re
import site
import sys
import traceback
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

from runtime.errors import UNUSABLE_STATUS, UnusableError, reason
from runtime.tables import MISTAKE

PROJECT = pathlib.Path(__file__).parents[1]
OURS = ("runtime", "benchmarks", "tests", ".venv", "distributed.py", "predict.py")  # all else there is the user's
LIBRARIES = (sys.prefix, *map(os.path.realpath, site.getsitepackages()))  # where an environment may lie in the project
OF_OPS = (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError, tf.errors.UnknownError)


# What a message of TensorFlow does not say: a part of it, and the remedy.
HINTS = {
    "Keras": "tf.layers, tf.nn.rnn_cell and tf.keras need the package tf_keras: pip install 'tf_keras<2.22'",
    "same graph": "each call of a function has a graph of its own: let it make its variables and layers itself, and"
    " keep no tensor for the next call",
}
FLAGS_HINT = "no flag can be read while the file is imported: read it in a function, as flags.FLAGS.name"


def describe_mistake(error: BaseException) -> str:
    """Return an error that comes from a user's file as a line that says where, or "" if it comes from elsewhere.

    It may have been raised there, while the file was imported too, or by an op that was made there.
    """
    if isinstance(error, tf.errors.OpError) and MISTAKE in error.message:
        return reason(error)
    if is_of_system(error):
        return ""
    if place := find_place(error):
        if isinstance(error, tf.errors.OpError):
            file = place.partition(",")[0]
            return f"{place}: {reason(error)}; correct {file}, or the examples that it gets"
        return tell_mistake(place, error)
    module = pathlib.Path(getattr(getattr(error, "obj", None), "__file__", None) or "")
    return f"{reason(error)}; correct {module.name}" if _is_users(module) else ""  # it lacks a name


def is_of_system(error: BaseException) -> bool:
    """Return whether the system refused something at this moment, such as memory, or a file on a distant server."""
    return isinstance(error, MemoryError | OSError) and not isinstance(error, FileNotFoundError | PermissionError)


def tell_mistake(place: str, error: BaseException) -> str:
    """Return the line about an error at a place such as "model.py, line 7"."""
    text = " ".join(str(error).split())
    hints = [
        hint for part, hint in HINTS.items() if part in text and not (part == "Keras" and "tf_keras" in sys.modules)
    ]
    is_argparse = isinstance(error, SystemExit) and error.code == UNUSABLE_STATUS
    if is_argparse or isinstance(error, flags.UnrecognizedFlagError | flags.UnparsedFlagAccessError):
        hints.append(FLAGS_HINT)
    text = text.partition(" (graphs are")[0] + "".join(f" ({hint})" for hint in hints)
    return f"{place}: {type(error).__name__}: {text}; correct {place.partition(',')[0]}"


def find_place(error: BaseException) -> str:
    """Return the file of a user and the line in it that an error comes from, or ""."""
    frames = list(traceback.extract_tb(error.__traceback__))
    if isinstance(error, SyntaxError) and error.filename:
        frames.append(traceback.FrameSummary(error.filename, error.lineno, ""))
    if isinstance(error, tf.errors.OpError):
        return find_place_of(error.op) if isinstance(error, OF_OPS) and error.op else ""
    return _find_users(frames)


def find_place_of(op: tf.Operation) -> str:
    """Return the file of a user and the line in it that have made an op, or the op that it is a copy of, or ""."""
    for prefix, traced in _copies.items():
        if op.name.startswith(prefix):
            name = re.sub(r"^gradients/(.*)_grad/.*", r"\1", op.name.removeprefix(prefix))
            try:
                op = traced.get_operation_by_name(name)
            except KeyError:  # a part of an op that only copies have
                return ""
    return _find_users(list(op.traceback))


_copies: dict[str, tf.Graph] = {}  # by the prefix of the names that a copy's ops have: what they are copies of


def note_copy(prefix: str, traced: tf.Graph) -> None:
    """Note that the ops of this prefix are copies of those in a traced graph, for `find_place_of()`."""
    _copies[prefix] = traced


def _find_users(frames: Sequence[traceback.FrameSummary]) -> str:
    for frame in reversed(frames):
        path = pathlib.Path(frame.filename)
        if _is_users(path):
            return f"{path.relative_to(PROJECT)}, line {frame.lineno}"
    return ""


def _is_users(path: pathlib.Path) -> bool:
    if not path.is_relative_to(PROJECT) or any(path.is_relative_to(folder) for folder in LIBRARIES):
        return False
    return path.relative_to(PROJECT).parts[0] not in OURS


def _tell_mistake(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Tell what is wrong in one line, where `program` does not: while the files are imported."""
    place = find_place(error) if isinstance(error, Exception | SystemExit) else ""
    if place or isinstance(error, UnusableError):
        mistake = str(error) if isinstance(error, UnusableError) else describe_mistake(error)
        print(f"error: {mistake or f'{place}: {reason(error)}; start this task again'}", file=sys.stderr, flush=True)
        os._exit(UNUSABLE_STATUS if mistake else 1)
    sys.__excepthook__(kind, error, trace)


sys.excepthook = _tell_mistake


def users_flags() -> list[str]:
    """Return the names of the flags that a user's files, and what they import, have defined."""
    return list(_users_flags)


_users_flags: list[str] = []


def note_flags() -> None:
    """Note which flags there are once a user's files are imported, and this program has defined none yet."""
    for module, of_module in flags.FLAGS.flags_by_module_dict().items():
        if not module.startswith(("absl.", "tensorflow.")):
            _users_flags.extend(flag.name for flag in of_module)


def inputs_of(spec: Any) -> dict[str, tf.TensorSpec]:
    """Return the inputs of a model by name, as `INPUT` has them: a `tf.TensorSpec` with a name, or a dict of them.

    Raises:
      UnusableError: it is something else.
    """
    inputs: dict[Any, Any] = dict(spec) if isinstance(spec, Mapping) else {getattr(spec, "name", None): spec}
    for name, of_name in inputs.items():
        is_spec = isinstance(of_name, tf.TensorSpec) and of_name.shape.is_fully_defined()
        if not (is_spec and isinstance(name, str) and INPUT_NAME.fullmatch(name)):
            raise UnusableError(
                f"mnist_input.py: INPUT is {spec!r:.100}, expected a tf.TensorSpec of a whole shape, with a name of"
                " letters, digits and _, or a dict of such by name"
            )
    return inputs


INPUT_NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)


def check_examples(examples: Any, spec: Any, where: str) -> None:
    """Check examples: their first columns are as `INPUT`, `spec`, says, and all have the same length.

    Raises:
      UnusableError: they are not; `where` says which ones.
    """

    def check(is_so: bool, what: str, found: str) -> None:
        if not is_so:
            remedy = "correct mnist_input.py, or what it reads"
            raise UnusableError(f"{where} cannot be used: expected {what}, found {found}; {remedy}")

    inputs = inputs_of(spec)
    are_columns = hasattr(examples, "_fields") and all(isinstance(part, np.ndarray) for part in examples)
    check(are_columns, "a named tuple of arrays", type(examples).__name__)
    what = f"a named tuple of {len(inputs)} or more arrays, one for each input and those that labels are made of"
    check(len(examples) >= len(inputs), what, f"{len(examples)}")
    shapes = [list(column.shape) for column in examples]
    are_as_long = all(shape[:1] == shapes[0][:1] and shape[:1] > [0] for shape in shapes)
    check(are_as_long, "one example at least, and as many in each array", f"arrays of the shapes {shapes}")
    for (name, spec), column in zip(inputs.items(), examples, strict=False):
        size = spec.shape.num_elements()
        what, found = f"{spec.dtype.name} [n, {size}], as INPUT says", f"{column.dtype} {list(column.shape)}"
        is_right = column.size == len(column) * size
        is_text = spec.dtype == tf.string and column.dtype.kind in "OSU"
        check(is_right and (is_text or column.dtype == spec.dtype.as_numpy_dtype), f"{what} for {name}", found)
