"""TensorFlow's ops: which kinds there are, what leads to one, and why some cannot be copied."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy.typing as npt
import tensorflow.compat.v1 as tf

from runtime.process.errors import UnusableError
from runtime.process.phases import find_place_of

LOOKUP_TABLES = ("HashTableV2", "MutableHashTableV2", "MutableDenseHashTableV2")
STATEFUL = ("While", "If", "Case", "StatefulPartitionedCall", "PyFunc", "EagerPyFunc")  # may draw random numbers inside
OF_ONE_RUN = ("TensorArrayV3", "StackV2")  # each copy has its own
LARGE_BYTES = 1 << 20  # of a constant: a message holds 2 GB, and copies of a graph take time


@contextlib.contextmanager
def control_flow_v2() -> Iterator[None]:
    """Build loops and conditions of version 2; within it, TensorFlow also puts up with a colocation it cannot see."""
    was_enabled = tf.control_flow_v2_enabled()
    tf.enable_control_flow_v2()
    try:
        yield
    finally:
        if not was_enabled:
            tf.disable_control_flow_v2()


def find_ancestors(
    ops: Sequence[tf.Operation], by_values: bool = False, values: Mapping[tf.Operation, tf.Tensor] | None = None
) -> set[tf.Operation]:
    """Return `ops` and all that must run before them; `by_values`, only that whose values they take.

    Of an op in `values`, that is what it finds in a variable: see `replay()`.
    """
    found, todo = set(ops), list(ops)
    while todo:
        op = todo.pop()
        taken = [*op.inputs, values[op]] if values and op in values else op.inputs
        for before in (*(tensor.op for tensor in taken), *(() if by_values else op.control_inputs)):
            if before not in found:
                found.add(before)
                todo.append(before)
    return found


def is_large(op: tf.Operation) -> bool:
    """Return whether an op is a constant of which a graph should have no copies."""
    if op.type != "Const" or op.outputs[0].dtype == tf.string:
        return False
    return op.outputs[0].shape.num_elements() * op.outputs[0].dtype.size > LARGE_BYTES


def value_of(constant: tf.Operation) -> npt.NDArray[Any]:
    """Return the value of a constant."""
    return tf.make_ndarray(constant.get_attr("value"))


def holds_state(op: tf.Operation) -> bool:
    """Return whether an op is, or has, something that its copies would have to share."""
    if op.type in ("Placeholder", "VariableV2", "Variable"):
        return True
    return op.type not in (*LOOKUP_TABLES, *OF_ONE_RUN) and any(output.dtype == tf.resource for output in op.outputs)


def is_change(op: tf.Operation) -> bool:
    """Return whether an op assigns to a variable."""
    kinds = ("Assign", "ResourceScatter", "ResourceStridedSliceAssign", "ResourceCountUpTo")
    return op.type.startswith(kinds) and bool(op.inputs)


def is_random(op: tf.Operation) -> bool:
    """Return whether an op has another result in each run."""
    return "seed2" in op.node_def.attr


def has_functions(node: tf.NodeDef) -> bool:
    """Return whether an op is a loop, a branch or a call: what is inside has no copy of its own."""
    return any(value.HasField("func") or value.list.func for value in node.attr.values())


def refusal(op: tf.Operation) -> UnusableError:
    """Return the error that says why an op cannot be copied."""
    text = f"TensorFlow's op {op.type} ({op.name}) cannot be copied into each step"
    if op.type == "Placeholder":
        text += ": nothing feeds it; use an argument of the function, is_training or a constant"
    if has_functions(op.node_def):
        text += (
            ": a loop, a branch or a tf.function looks up rows of a variable by embedding_lookup(), or assigns to it;"
            " pass it tf.identity(variable), and assign outside, with `if is_training:` as the branch"
        )
    return UnusableError(f"{find_place_of(op) or 'model.py'}: {text}")
