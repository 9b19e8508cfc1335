"""Whose mistake an error is: the phase decides. What fails before the first step would fail at every attempt."""

import contextlib
import errno
import inspect
import os
import re
import ssl
import sys
import traceback
import urllib.error
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow.compat.v1 as tf
from absl import flags

import runtime
from runtime.process.errors import UNUSABLE, UNUSABLE_STATUS, DataLostError, UnusableError, reason
from runtime.process.threads import PASSING
from runtime.records import events

RUNTIME = os.path.dirname(os.path.abspath(runtime.__file__))
PROJECT = os.path.dirname(RUNTIME) + os.sep
# Frames that no user can correct: of this program, of Python itself, of what is installed beside TensorFlow, and those
# that Python makes up, as in "<frozen importlib._bootstrap>".
OTHERS = (
    RUNTIME + os.sep,
    PROJECT + "distributed.py",
    os.path.dirname(os.__file__) + os.sep,
    os.path.dirname(os.path.dirname(sys.modules["tensorflow"].__file__ or "")) + os.sep,
    "<",
)
NETWORK_ERRORS = (ConnectionError, TimeoutError, ssl.SSLError, urllib.error.URLError)
LASTING = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.EEXIST)
FORMATS = ("builtins", "gzip", "PIL")  # packages whose OSError without a number tells of a file of the wrong format
OF_DATA = (EOFError, KeyError, OSError, ValueError, zipfile.BadZipFile)  # as readers of files raise them
REPEATED = (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError)  # the same values cause them again
PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")  # ops that call a Python function
IN_GRAPH = (
    "each call of a function builds a graph of its own: create variables and layers inside it, and keep no tensor for"
    " the next call"
)
NO_VALUES = (
    "a function builds a graph, once, before there are examples: use TensorFlow's ops, and tf.print() to see values"
)
# What a message of TensorFlow does not say: a part of it, and the remedy.
HINTS = {
    "Keras": "tf.layers, tf.nn.rnn_cell and tf.keras.layers need the package tf_keras: pip install 'tf_keras<2.22'; for"
    " optimizers and rates, use those of tf.train",
    "Iterating over a symbolic": "a variable is not split here, since a partitioner splits it only on the ps tasks: use"
    " it as it is, or tf.unstack() its rows",
    "positional argument: 'step'": "call a schedule with the step, such as tf.train.get_global_step()",
    "Python bool": "is_training is a Python bool: use `if is_training:`, not tf.cond()",
    "same graph": IN_GRAPH,
    "an EagerTensor": IN_GRAPH,
    "with eager execution": IN_GRAPH,
    "must feed a value": NO_VALUES,
    "evaluate tensor": NO_VALUES,
    "SymbolicTensor": NO_VALUES,
    "to a numpy array": NO_VALUES,
    "'labels' has DataType string": "a label must be a number: let decode() in mnist_input.py return the index of the"
    " word among the classes, and drop rows without one",
    "MemoryError": "run fewer tasks on this machine, or let TFRecord files or build_dataset() read what does not fit",
    "known parent package": "write `import name`, without a dot: the folder is not a package",
}
IN_FUNCTION = re.compile(r"{{function_node (\S+?)(?:_\d+)?}}")  # copies of a function have a number of their own
FLAGS_HINT = "no flag can be read while the file is imported: read it in a function, as flags.FLAGS.name"
SCRIPT_HINT = 'the file is imported: write `if __name__ == "__main__":` before what it does as a script'

_has_stepped = False
_copies: dict[str, tf.Graph] = {}  # by the prefix of the names that a copy's ops have: what they are copies of


@contextlib.contextmanager
def preparing(where: str = "") -> Iterator[None]:
    """Import a user's files, read data or build the graph: an unexpected error here would come at every attempt.

    Python's traceback is printed, cut to the frames of the user's files, if it has any.

    Args:
      where: names what is called, such as "model.py, line 7: build_loss()", for an error without a line of its own.

    Raises:
      UnusableError: in the place of the error.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, (*UNUSABLE, *PASSING)) or _is_of_system(error):
            raise
        told = traceback.TracebackException.from_exception(error)
        if (own := _find_users(told.stack)) or isinstance(error, SyntaxError):  # which has a place of its own
            told.stack = traceback.StackSummary.from_list(own)
        lines = list(told.format(chain=False))
        if isinstance(error, tf.errors.OpError):  # whose message has the stack of this program for each op
            lines = [lines[0], *told.stack.format(), f"{reason(error)}\n"]
        print("".join(lines), end="", file=sys.stderr)
        raise UnusableError(describe_mistake(error, where)) from error


def note_step() -> None:
    """Note that a step was taken: from now on, an error may be one of the moment."""
    global _has_stepped
    _has_stepped = True


def describe_failure(error: BaseException) -> tuple[int, str]:
    """Return the status and the line of an unexpected error outside of `preparing()`."""
    line, is_of_model = explain(error)
    message = f"{line}; start this task again"
    is_known = events.has_recorded("ended", message=message)
    if is_of_model and (not _has_stepped or is_known):
        return UNUSABLE_STATUS, f"{line}; correct model.py, or the examples that it gets"
    return (UNUSABLE_STATUS, line) if is_known and isinstance(error, DataLostError) else (1, message)


def explain(error: BaseException) -> tuple[str, bool]:
    """Return the line of an error, with its place in a user's file, and whether the same values cause it there again.

    That is no error of the moment, or of a device; all that a user's Python function raises is one of the values.
    """
    op = (error.op or _find_caller(error)) if isinstance(error, tf.errors.OpError) else None
    place = find_place_of(op) if op else ""
    line = f"{place}: {reason(error)}" if place else reason(error)
    is_repeated = isinstance(error, REPEATED) or (op is not None and op.type in PYTHON)
    return line, is_repeated and bool(place or "model.py: " in line)  # the latter is a lookup's own check


def describe_mistake(error: BaseException, where: str = "") -> str:
    """Return an error as a line that says where it comes from, `where` by default, and what to do."""
    stack = traceback.extract_tb(error.__traceback__)
    frames = _find_users(stack)
    if isinstance(error, SyntaxError) and error.filename:
        frames.append(traceback.FrameSummary(error.filename, error.lineno, ""))
    place = _name_last(frames) or where
    what = reason(error) if isinstance(error, tf.errors.OpError) else f"{type(error).__name__}: {error}"
    what = " ".join(what.removesuffix(": ").split()).partition(" (graphs are")[0]
    hints = [
        hint for part, hint in HINTS.items() if part in what and not (part == "Keras" and "tf_keras" in sys.modules)
    ]
    is_argparse = isinstance(error, SystemExit) and error.code == UNUSABLE_STATUS
    if is_argparse or isinstance(error, flags.UnrecognizedFlagError | flags.UnparsedFlagAccessError):
        hints.append(FLAGS_HINT)
    elif isinstance(error, SystemExit) or any(frame.filename.endswith("/absl/app.py") for frame in stack):
        hints.append(SCRIPT_HINT)
    line = "".join([f"{place}: " * bool(place), what, *(f" ({hint})" for hint in hints)])
    remedy = f"correct {place.partition(',')[0] or 'model.py or mnist_input.py'}"
    remedy += ", --data_dir, or the data there" * ("mnist_input.py" in place and isinstance(error, OF_DATA))
    if isinstance(error, ModuleNotFoundError) and (name := str(error.name).partition(".")[0]) not in sys.modules:
        remedy += f", or install its package, for example with {sys.executable} -m pip install {name}"
    return line if _is_of_system(error) else f"{line}; {remedy}"


def _is_of_system(error: BaseException) -> bool:
    """Return whether the system refused something at this moment, such as a file on a distant server."""
    if isinstance(error, OSError) and not isinstance(error, NETWORK_ERRORS):
        return error.errno not in LASTING if error.errno else type(error).__module__.partition(".")[0] not in FORMATS
    return isinstance(error, OSError)


def find_place_of(op: tf.Operation) -> str:
    """Return the file of a user and the line in it that have made an op, or the op that it is a copy of, or ""."""
    for prefix, traced in _copies.items():
        if op.name.startswith(prefix):
            name = re.sub(r"^gradients/(.*)_grad/.*", r"\1", op.name.removeprefix(prefix))
            try:
                op = traced.get_operation_by_name(name)
            except KeyError:  # a part of an op that only copies have
                return ""
    return _name_last(_find_users(op.traceback))


def find_beginning(function: Any) -> str:
    """Return the file of a user and the line in it where a function begins, or ""."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return _name_last([traceback.FrameSummary(code.co_filename, code.co_firstlineno, "")]) if code else ""


def _find_caller(error: tf.errors.OpError) -> tf.Operation | None:
    """Return the loop or the branch in a traced graph inside of which an error came, as TensorFlow's message has it."""
    names = IN_FUNCTION.findall(f"{error.__context__}")
    for graph in {*_copies.values()} if names else ():
        library = {function.signature.name: function for function in graph.as_graph_def().library.function}
        for op in graph.get_operations():
            if any(function.signature.name in names for function in functions_in(op.node_def, library)):
                return op
    return None


def functions_in(node: tf.NodeDef, library: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the functions of a node, such as a loop, with those that are inside of these."""
    for value in (node.attr[key] for key in sorted(node.attr)):  # a map has another order in each process
        for function in (value.func, *value.list.func):
            if function.name in library:
                yield library[function.name]
                for inner in library[function.name].node_def:
                    yield from functions_in(inner, library)


def note_copy(prefix: str, traced: tf.Graph) -> None:
    """Note that the ops of this prefix are copies of those in a traced graph, for `find_place_of()`."""
    _copies[prefix] = traced


def _find_users(frames: Iterable[Any]) -> list[Any]:
    """Return those of what a user has written."""
    return [frame for frame in frames if is_users(frame.filename)]


def is_users(path: str) -> bool:
    """Return whether a user has written this file of Python."""
    return not path.startswith(OTHERS)


def _name_last(frames: list[Any]) -> str:
    """Return where the last of the frames is, such as "model.py, line 7", or ""."""
    return f"{frames[-1].filename.removeprefix(PROJECT)}, line {frames[-1].lineno}" if frames else ""
