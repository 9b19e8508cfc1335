"""The digest of a trace: what tells the graph of one worker from that of another, though the names may be the same."""

import hashlib
from collections.abc import Iterator

import tensorflow.compat.v1 as tf

from runtime.model.template import find_ancestors
from runtime.model.trace import Trace
from runtime.process.phases import find_place_of, functions_in

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

        self._digests = []
        for op in self._ops:
            taken = [(numbers[tensor.op], tensor.value_index) for tensor in op.inputs]
            name = (op.name, str(op.get_attr("shape"))) if op.type == "VarHandleOp" else ""
            inside = [node for function in functions_in(op.node_def, functions) for node in function.node_def]
            parts = (
                [[*describe(node)] for node in (op.node_def, *inside)],
                name,
                taken,
                sorted(numbers[before] for before in op.control_inputs),
            )
            self._digests.append(hashlib.blake2b(repr(parts).encode(), digest_size=4).hexdigest())

    def __str__(self) -> str:
        return " ".join(self._digests)

    def describe_difference(self, other: str) -> str:
        """Return the first op that is another one for the worker whose digest is this text, and its place."""
        pairs = zip(self._ops, self._digests, [*other.split(), *self._digests], strict=False)
        op = next((op for op, own, of_other in pairs if own != of_other), self._ops[-1])
        return f"{find_place_of(op) or 'model.py'}: {op.type} {op.name}"
