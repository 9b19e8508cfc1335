"""The digest of a trace: what tells the graph of one worker from that of another, though the names may be the same."""

import hashlib
from collections.abc import Iterator

import tensorflow.compat.v1 as tf

from runtime.model.template import find_ancestors
from runtime.model.trace import Trace
from runtime.process.phases import find_place_of, functions_in

SUMS = ("Add", "AddV2", "AddN")
NUM_NUMBERS = 8  # of a constant, at most; of a larger one the shape counts


class Digest:
    """A digest of each op of a step, in the order in which they were made: what it is, and which of them it takes.

    Names count only where a checkpoint has them. What may differ between machines does not: text, such as the paths of
    files, the seeds of ops, and the last digits of numbers.
    """

    def __init__(self, made: Trace):
        """Take it of a trace, before there are gradients in it."""
        outputs = [made.loss, *made.losses, *(variable.initial_value for variable in made.variables.values())]
        for key in (tf.GraphKeys.REGULARIZATION_LOSSES, tf.GraphKeys.UPDATE_OPS):
            outputs += made.graph.get_collection(key)
        needed = find_ancestors([getattr(output, "op", output) for output in outputs])
        self._ops = [op for op in made.graph.get_operations() if op in needed]
        numbers = {op: number for number, op in enumerate(self._ops)}
        functions = {function.signature.name: function for function in made.graph.as_graph_def().library.function}

        def describe(node: tf.NodeDef) -> Iterator[object]:
            yield "" if node.op in functions else node.op  # its name has a number
            if node.op == "Const":
                array = tf.make_ndarray(node.attr["value"].tensor)
                is_small = array.dtype.kind in "biuf" and array.size <= NUM_NUMBERS
                yield array.shape, *(f"{number:.4g}" for number in array.ravel() if is_small)

        self._digests, described = list[str](), dict[tf.Operation, object]()
        for op in self._ops:
            taken = [(numbers[tensor.op], tensor.value_index) for tensor in op.inputs]
            name = (op.name, str(op.get_attr("shape"))) if op.type == "VarHandleOp" else ""
            inside = [node for function in functions_in(op.node_def, functions) for node in function.node_def]
            described[op] = [[*describe(node)] for node in (op.node_def, *inside)]
            self._digests.append(
                _digest(described[op], name, taken, sorted(numbers[before] for before in op.control_inputs))
            )
        self.uses: dict[str, str] = {}  # of each variable: a digest of what comes of it, in which no name counts
        takers: dict[tf.Operation, list[str]] = {op: [] for op in self._ops}
        for op in reversed(self._ops):
            constants = [described[tensor.op] for tensor in op.inputs if tensor.op.type == "Const"]
            use = f"{op.type} {_digest(described[op], constants, sorted(takers[op]))}"
            if op.type in SUMS:  # in any order: a sum that another one takes is a part of that
                of_whole = takers[op] if len(takers[op]) == 1 and takers[op][0].startswith("sum ") else []
                use = (*of_whole, f"sum {_digest(sorted(takers[op]))}")[0]
            for number, tensor in enumerate(op.inputs):
                takers[tensor.op].append(use if op.type in SUMS else f"{use} {number} {tensor.value_index}")
            for before in op.control_inputs:
                takers[before].append(use)
            if op.type == "VarHandleOp":
                self.uses[op.name] = use

    def __str__(self) -> str:
        return " ".join(self._digests)

    def describe_difference(self, other: str) -> str:
        """Return the first op that is another one for the worker whose digest is this text, and its place."""
        pairs = zip(self._ops, self._digests, [*other.split(), *self._digests], strict=False)
        op = next((op for op, own, of_other in pairs if own != of_other), self._ops[-1])
        return f"{find_place_of(op) or 'model.py'}: {op.type} {op.name}"


def _digest(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=4).hexdigest()
