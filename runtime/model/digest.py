"""What becomes of each variable of a model: by that its uses are told from those of another one."""

import contextlib
import hashlib
import os
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from runtime.model.ops import find_ancestors, value_of
from runtime.model.trace import Trace
from runtime.process.phases import functions_in

SUMS = ("Add", "AddV2", "AddN")
JOINS = (*SUMS, "ConcatV2", "Pack")
NUM_NUMBERS = 8  # of a constant, at most; of a larger one the shape counts


def digest_uses(made: Trace, in_any_order: Sequence[str] = SUMS) -> dict[str, str]:
    """Return, by name, a digest of what becomes of each variable and column: of all ops that it leads to.

    What lookup tables have in them counts. No name does, nor the order of what ops `in_any_order` take, nor what may
    differ between machines: the paths of files, the seeds of ops, and the last digits of numbers. It is taken before
    there are gradients.
    """
    outputs = [made.loss, *made.losses]
    for key in (tf.GraphKeys.REGULARIZATION_LOSSES, tf.GraphKeys.UPDATE_OPS):
        outputs += made.graph.get_collection(key)
    needed = find_ancestors([getattr(output, "op", output) for output in outputs])
    library = {function.signature.name: function for function in made.graph.as_graph_def().library.function}
    ops = [op for op in made.graph.get_operations() if op in needed]  # each after those that it takes
    contents = dict(map(_read_table, made.graph.get_collection(tf.GraphKeys.TABLE_INITIALIZERS)))

    def describe(node: tf.NodeDef) -> Iterator[object]:
        yield "" if node.op in library else node.op  # its name has a number
        if node.op == "Const":
            value = node.attr["value"].tensor
            shape = tf.TensorShape(value.tensor_shape)
            array = tf.make_ndarray(value).ravel() if shape.num_elements() <= NUM_NUMBERS else np.zeros(0)
            yield shape.as_list(), *(f"{number:.4g}" for number in array if array.dtype.kind in "biuf")
            if value.dtype == tf.string and not any(os.sep.encode() in text for text in value.string_val):
                yield [*value.string_val]

    results, terms = dict[tf.Operation, str](), dict[tf.Operation, list[str]]()  # what leads to each op
    for op in ops:
        if op.type in in_any_order:
            terms[op] = sorted(term for tensor in op.inputs for term in terms.get(tensor.op, [results[tensor.op]]))
            results[op] = _digest(terms[op])
            continue
        inside = [inner for function in functions_in(op.node_def, library) for inner in function.node_def]
        shape = str(op.get_attr("shape")) if op.type in ("VarHandleOp", "Placeholder") else ""
        taken = [(results[tensor.op], tensor.value_index) for tensor in op.inputs]
        results[op] = _digest([[*describe(node)] for node in (op.node_def, *inside)], shape, taken, contents.get(op))
    uses, takers = dict[str, str](), {op: list[str]() for op in ops}
    for op in reversed(ops):
        use = _digest(results[op], sorted(takers[op]))
        if op.type in in_any_order:  # a sum that another one takes is a part of that
            of_whole = takers[op] if len(takers[op]) == 1 and takers[op][0].startswith("sum ") else []
            use = (*of_whole, f"sum {_digest(sorted(takers[op]))}")[0]
        for number, tensor in enumerate(op.inputs):
            takers[tensor.op].append(use if op.type in in_any_order else f"{use} {number} {tensor.value_index}")
        for before in op.control_inputs:
            takers[before].append(use)
        if op.type in ("VarHandleOp", "Placeholder"):
            uses[op.name] = use
    return {op.name: uses[op.name] for kind in ("VarHandleOp", "Placeholder") for op in ops if op.type == kind}


def _read_table(initializer: tf.Operation) -> tuple[tf.Operation | None, list[str]]:
    """Return a lookup table, and digests of what its initializer puts into it: constants, or a file."""
    table, *given = [tensor.op for tensor in initializer.inputs] or [None]
    values = [value_of(op).tolist() for op in given if op.type == "Const"]
    if initializer.type.startswith("InitializeTableFromTextFile"):
        with contextlib.suppress(OSError):  # TensorFlow will say so
            values = [pathlib.Path(os.fsdecode(path)).read_bytes() for path in values]
    return table, [*map(_digest, values)]


def _digest(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=4).hexdigest()
