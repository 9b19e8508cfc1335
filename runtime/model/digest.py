"""The digest of a trace: what tells the graph of one worker from that of another, though the names may be the same."""

import hashlib
import itertools
import re

import numpy as np
import tensorflow.compat.v1 as tf

from runtime.model.template import find_ancestors
from runtime.model.trace import Trace
from runtime.process.phases import find_place_of

OF_A_PROCESS = ("shared_name", "container", "seed", "seed2", "token")  # attributes that mean nothing elsewhere
NUM_NUMBERS = 8  # of a constant that count by themselves


class Digest:
    """Digests of the ops of a step, each of what it is and of what it is computed from.

    Names count only where a checkpoint has them. What may differ between machines does not: text, such as the paths of
    files, the seeds of ops, and the last digits of numbers.
    """

    def __init__(self, made: Trace):
        """Take them of a trace, before there are gradients in it."""
        first_values = {v.handle.op: v.initial_value.op for v in made.variables.values()}
        added = [
            made.graph.get_collection(key) for key in (tf.GraphKeys.REGULARIZATION_LOSSES, tf.GraphKeys.UPDATE_OPS)
        ]
        outputs = itertools.chain([made.loss], made.losses, *added, first_values.values())
        needed = find_ancestors([getattr(output, "op", output) for output in outputs])
        self._library = {f.signature.name: f for f in made.graph.as_graph_def().library.function}
        self._of_functions: dict[str, str] = {}
        self._of_ops: dict[tf.Operation, str] = {}
        for op in made.graph.get_operations():  # what an op takes was made before it
            if op in needed:
                name, first = (op.name, first_values.get(op)) if op.type == "VarHandleOp" else ("", None)
                inputs = [f"{self._of_ops[tensor.op]}:{tensor.value_index}" for tensor in op.inputs]
                befores = sorted(self._of_ops[before] for before in op.control_inputs)
                parts = (self._describe(op.node_def), name, self._of_ops.get(first), inputs, befores)
                self._of_ops[op] = _hash(*parts)

    def __str__(self) -> str:
        return " ".join(sorted({*self._of_ops.values()}))

    def describe_difference(self, other: str) -> str:
        """Return the first op that another worker, whose digest is this text, does not have, and its place."""
        known = {*other.split()}
        *_, last = self._of_ops
        op = next((op for op, of_op in self._of_ops.items() if of_op not in known), last)
        return f"{find_place_of(op) or 'model.py'}: {op.type} {op.name}"

    def _describe(self, node: tf.NodeDef) -> str:
        texts = [self._of_function(node.op) if node.op in self._library else node.op]
        for name, value in sorted(node.attr.items()):
            if name.startswith("_") or name in OF_A_PROCESS:
                continue
            if value.HasField("tensor"):
                texts.append(_round(tf.make_ndarray(value.tensor)))
            elif functions := [*([value.func] if value.HasField("func") else []), *value.list.func]:
                texts.extend(self._of_function(function.name) for function in functions)
            else:
                texts.append(f"{name} {value.SerializeToString(deterministic=True)!r}")
        return _hash(*texts)

    def _of_function(self, name: str) -> str:
        """Return the digest of a loop's body, say; its name has a number that other functions have a part in."""
        if name not in self._of_functions and name in self._library:
            function = self._library[name]
            arguments = (argument.name for argument in function.signature.input_arg)
            places = {part: str(n) for n, part in enumerate((*arguments, *(node.name for node in function.node_def)))}
            taken = [
                [places.get(part, part) for i in n.input for part in re.split("[:^]", i)] for n in function.node_def
            ]
            self._of_functions[name] = _hash(*map(self._describe, function.node_def), taken)
        return self._of_functions.get(name, name)


def _round(values: np.ndarray) -> str:
    """Return what counts of a constant: machines compute the last digits of a sine, say, in ways of their own."""
    if values.dtype.kind in "OSU":
        return str(values.shape)
    some = values.ravel()[:: 1 + values.size // 1000]
    return str([values.shape, *(f"{value:.4g}" for value in (*some[:NUM_NUMBERS], np.abs(some).sum(dtype=np.float64)))])


def _hash(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=4).hexdigest()
