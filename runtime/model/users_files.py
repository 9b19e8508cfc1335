"""What a user's files, `model.py` and `mnist_input.py`, say of themselves: their flags, their input, their examples."""

import inspect
import os
import pathlib
import re
import sys
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

from runtime.model import user_dir
from runtime.process.errors import UnusableError
from runtime.process.phases import find_beginning, is_users, preparing


def users_flags() -> list[str]:
    """Return the names of the flags that a user's files, and what they import, have defined."""
    return list(_users_flags)


_users_flags: list[str] = []


def note_flags() -> None:
    """Note which flags there are once a user's files are imported, and this program has defined none yet."""
    for module, of_module in flags.FLAGS.flags_by_module_dict().items():
        if not module.startswith(("absl.", "tensorflow.")):
            _users_flags.extend(flag.name for flag in of_module)


def checksums() -> dict[str, int]:
    """Return a CRC-32 of each of a user's files, and of what they import from their folder, by its path there.

    It is the same with the line ends of any system.
    """
    folder = user_dir.find()
    # Not by getattr(): a module that TensorFlow loads when it is used would be loaded.
    paths = [str(getattr(module, "__dict__", {}).get("__file__")) for module in list(sys.modules.values())]
    own = [path for path in paths if path.startswith(folder + os.sep) and path.endswith(".py") and is_users(path)]
    contents = {os.path.relpath(path, folder): pathlib.Path(path).read_bytes() for path in own}
    return {name: zlib.crc32(content.replace(b"\r\n", b"\n")) for name, content in contents.items()}


def call(module: Any, name: str, *arguments: Any) -> Any:
    """Call a function of one of the modules.

    Raises:
      UnusableError: there is none, or one that takes other arguments, or it fails: with its place.
    """
    if not hasattr(module, name):
        raise UnusableError(f"{_file_of(module)} has no {name}(): see docs/your-own.md")
    function, where = getattr(module, name), place_of(module, name)
    with preparing(where):
        try:
            inspect.signature(function, follow_wrapped=False).bind(*arguments)
        except ValueError:  # it does not tell
            pass
        except TypeError as error:
            takes = f"takes {inspect.signature(function)}" if callable(function) else f"is {function!r:.50}"
            count = f"{len(arguments)} argument{'s' * (len(arguments) != 1)}"
            expected = f"expected a function of {count}: see docs/your-own.md"
            raise UnusableError(f"{where} {takes}, {expected}") from error
        return function(*arguments)


def place_of(module: Any, name: str) -> str:
    """Return where a function of one of the modules begins, and its name, such as "model.py, line 7: build_loss()"."""
    place = find_beginning(getattr(module, name))
    return f"{place}: {name}()" if place else f"{_file_of(module)}, {name}()"


def _file_of(module: Any) -> str:
    return f"{getattr(module, '__name__', 'mnist_input')}.py"


def describe(found: Any) -> str:
    """Return what a function has returned, for a message."""
    if isinstance(found, tuple | list):
        return f"a {type(found).__name__} of {len(found)}: {', '.join(map(describe, found[:3]))}"
    if isinstance(found, tf.Tensor):
        return f"{found.dtype.name} {found.shape}"
    return re.sub(r" at 0x\w+", "", f"{found!r:.100}")


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
                f"mnist_input.py: INPUT is {spec!r:.100}, expected a tf.TensorSpec with a fully defined shape and"
                " a name of letters, digits and _, or a dict of them by name"
            )
    return inputs


INPUT_NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)


def check_examples(examples: Any, where: str) -> None:
    """Check that examples are a named tuple of arrays, of numbers or texts, which all have the same length.

    Raises:
      UnusableError: they are not; `where` says which ones.
    """
    _require(hasattr(examples, "_fields"), where, "a named tuple of arrays", type(examples).__name__)
    for name, part in zip(examples._fields, examples, strict=True):
        _require(isinstance(part, np.ndarray), where, f"an array for {name}", type(part).__name__)
        num_masked = int(np.sum(getattr(part, "mask", False)))
        _require(not num_masked, where, f"a value in each row of {name}", f"{num_masked} masked")
        is_of_tensorflow = part.dtype.kind in "biufcSUO" and part.dtype != np.longdouble
        _require(is_of_tensorflow, where, f"numbers or text as {name}", f"{part.dtype}")
        # None or NaN, say, where a table has nothing, or rows of unlike length
        rows = part if part.dtype == object and part.ndim else []
        others = [row for row, value in enumerate(rows) if not _is_text(value)]
        found = f"objects, such as {part[others[0]]!r:.50} in row {others[0]}" if others else ""
        _require(not others, where, f"numbers of one type and shape, or text, as {name}", found)
    shapes = [list(column.shape) for column in examples]
    are_as_long = all(shape[:1] == shapes[0][:1] and shape[:1] > [0] for shape in shapes)
    expected = "at least one example, and the same number in each array"
    _require(are_as_long, where, expected, f"arrays of the shapes {shapes}")


def _is_text(value: Any) -> bool:
    parts = value.flat if isinstance(value, np.ndarray) else [value]
    return all(isinstance(part, str | bytes) for part in parts)


def check_columns(columns: Sequence[tf.TensorSpec], spec: Any, where: str, names: Sequence[str] = ()) -> None:
    """Check the columns of one example: the first ones are what `INPUT`, `spec`, says, in any shape of that size.

    An exported model takes the inputs by name. So columns that are called like them must come in their order.

    Raises:
      UnusableError: they are not; `where` says of which examples.
    """
    inputs = inputs_of(spec)
    first = list(names[: len(inputs)])
    are_in_order = set(first) != inputs.keys() or first == list(inputs)
    _require(are_in_order, where, f"the inputs in the order of INPUT, {', '.join(inputs)}", ", ".join(first))
    _require(len(columns) >= len(inputs), where, f"a column for each of {', '.join(inputs)}", f"{len(columns)}")
    for (name, expected), found in zip(inputs.items(), columns, strict=False):
        sizes = found.shape.num_elements(), expected.shape.num_elements()
        are_alike = sizes[0] == sizes[1] if sizes[0] else found.shape.is_compatible_with(expected.shape)
        wanted = f"{expected.dtype.name} {expected.shape}, as INPUT says for {name}"
        is_right = are_alike and found.dtype == expected.dtype
        _require(is_right, where, wanted, f"{found.dtype.name} {found.shape}")


def _require(condition: bool, where: str, expected: str, found: str) -> None:
    if not condition:
        remedy = "correct mnist_input.py, or what it reads"
        raise UnusableError(f"{where} cannot be used: expected {expected}, found {found}; {remedy}")
