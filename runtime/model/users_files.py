"""What a user's files, `model.py` and `mnist_input.py`, say of themselves: their flags, their input, their examples."""

import pathlib
import re
import sys
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

from runtime.process.errors import UnusableError


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
    """Return a CRC-32 of each of a user's files by its name, the same with the line ends of any system."""
    paths = {f"{name}.py": sys.modules[name].__file__ for name in ("model", "mnist_input") if name in sys.modules}
    contents = {name: pathlib.Path(path).read_bytes() for name, path in paths.items() if path}
    return {name: zlib.crc32(content.replace(b"\r\n", b"\n")) for name, content in contents.items()}


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


def check_order(names: Sequence[str], inputs: Mapping[str, Any], where: str) -> None:
    """Check that columns called like the inputs come in the order of `INPUT`: an exported model takes them by name.

    Raises:
      UnusableError: they do not; `where` says which columns.
    """
    first = list(names[: len(inputs)])
    if set(first) == inputs.keys() and first != list(inputs):
        found = f"expected the inputs in the order of INPUT, {', '.join(inputs)}, found {', '.join(first)}"
        raise UnusableError(f"{where} cannot be used: {found}; correct mnist_input.py")


def check_examples(examples: Any, spec: Any, where: str) -> None:
    """Check examples: their first columns are as `INPUT`, `spec`, says, and all have the same length.

    Raises:
      UnusableError: they are not; `where` says which ones.
    """

    def require(condition: bool, expected: str, found: str) -> None:
        if not condition:
            remedy = "correct mnist_input.py, or what it reads"
            raise UnusableError(f"{where} cannot be used: expected {expected}, found {found}; {remedy}")

    inputs = inputs_of(spec)
    require(hasattr(examples, "_fields"), "a named tuple of arrays", type(examples).__name__)
    for name, part in zip(examples._fields, examples, strict=True):
        require(isinstance(part, np.ndarray), f"an array for {name}", type(part).__name__)
        # None or NaN, say, where a table has nothing
        others = [value for value in part.flat if not isinstance(value, str | bytes)] if part.dtype == object else []
        require(not others, f"text in each row of {name}", ", ".join(f"{value!r:.50}" for value in others[:3]))
    check_order(examples._fields, inputs, where)
    expected = f"a named tuple of {len(inputs)} or more arrays, one for each input and those that labels are made of"
    require(len(examples) >= len(inputs), expected, f"{len(examples)}")
    shapes = [list(column.shape) for column in examples]
    are_as_long = all(shape[:1] == shapes[0][:1] and shape[:1] > [0] for shape in shapes)
    require(are_as_long, "one example at least, and as many in each array", f"arrays of the shapes {shapes}")
    for (name, spec), column in zip(inputs.items(), examples, strict=False):
        size = spec.shape.num_elements()
        what, found = f"{spec.dtype.name} [n, {size}], as INPUT says", f"{column.dtype} {list(column.shape)}"
        is_right = column.size == len(column) * size
        is_text = spec.dtype == tf.string and column.dtype.kind in "OSU"
        require(is_right and (is_text or column.dtype == spec.dtype.as_numpy_dtype), f"{what} for {name}", found)


def check_signature(columns: Sequence[tf.TensorSpec], spec: Any, where: str) -> None:
    """Check the columns of one example as `check_examples()` does those of many."""
    if len(columns) < len(inputs := inputs_of(spec)):
        raise UnusableError(
            f"{where} have {len(columns)} columns, expected one for each of {', '.join(inputs)} at least"
        )
    for (name, expected), found in zip(inputs.items(), columns, strict=False):
        sizes = found.shape.num_elements(), expected.shape.num_elements()
        are_alike = sizes[0] == sizes[1] if sizes[0] else found.shape.is_compatible_with(expected.shape)
        if found.dtype != expected.dtype or not are_alike:
            raise UnusableError(
                f"{where} cannot be used: expected {expected.dtype.name} {expected.shape}, as INPUT says for {name},"
                f" found {found.dtype.name} {found.shape}; correct mnist_input.py, or what it reads"
            )
