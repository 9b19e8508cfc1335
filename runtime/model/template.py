"""Templates: some tensors of a traced graph as a function of others, of which any graph takes copies.

A copy has no variables. Where the traced graph reads one, the copy has whatever tensor it is given: what a ps has sent,
a worker's own copy, or what is fed. (`tf.compat.v1.wrap_function` keeps the variables; Haiku's `transform` is closer.)
"""

import itertools
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from runtime.model.ops import (
    LOOKUP_TABLES,
    control_flow_v2,
    has_functions,
    holds_state,
    is_change,
    is_large,
    refusal,
    value_of,
)
from runtime.process.errors import UnusableError
from runtime.process.phases import PYTHON, find_place_of, functions_in, note_copy

_numbers = itertools.count(1)


class Template:
    """Some outputs of a traced graph, and all that leads to them from what a copy is given."""

    def __init__(
        self,
        graph: tf.Graph,
        outputs: Sequence[Any],
        given: Sequence[tf.Tensor],
        kept: Iterable[Any] = (),
        found: Mapping[tf.Operation, tf.Tensor] | None = None,
    ):
        """Cut out what `outputs` need.

        Args:
          graph: the traced graph.
          outputs: tensors or operations of it.
          given: tensors that a copy replaces; nothing that leads to them is copied.
          kept: variables that the copies share, such as those of a metric; all others are replaced by values.
          found: what an op on a variable finds there, unless that is the value that a copy is given.

        Raises:
          UnusableError: the user's file has an op there that no copy can have.
        """
        self._graph, self._outputs, self._given = graph, list(outputs), [tensor.name for tensor in given]
        kept_handles = {variable.handle.op.name for variable in kept}
        self._definition = tf.GraphDef(versions=graph.graph_def_versions)
        self._names: set[str] = set()  # of the tensors that the copied nodes take
        self._users: dict[str, tf.Operation] = {}  # by the name of a variable: an op that takes its value
        self.large: list[tf.Operation] = []  # constants
        todo = [*dict.fromkeys(getattr(output, "op", output) for output in outputs if output.name not in self._given)]
        seen = set(todo)
        while todo:
            op = todo.pop()
            if is_large(op):
                self.large.append(op)
                continue
            node = self._definition.node.add()
            node.CopyFrom(op.node_def)
            _clean(node)
            inputs = [*op.inputs]
            handles = [t for t in inputs if t.op.type == "VarHandleOp" and t.op.name not in kept_handles]
            if handles:
                _take_value(op, node)
                if found and op in found:
                    inputs[0], node.input[0], handles = found[op], found[op].name, []
                self._users.update({handle.op.name: op for handle in handles})
                if op.type == "ResourceGather":
                    axis = self._definition.node.add(name=f"{op.name}/axis", op="Const")
                    axis.attr["dtype"].type = tf.int32.as_datatype_enum
                    axis.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(0))
            elif holds_state(op) and op.name not in kept_handles:
                raise refusal(op)
            befores = [b for b in op.control_inputs if not (is_change(b) and b.inputs[0].op.name not in kept_handles)]
            befores = [before for before in befores if not is_large(before)]
            del node.input[len(node.input) - len(op.control_inputs) :]
            node.input.extend(f"^{before.name}" for before in befores)
            self._names.update(tensor.name for tensor in inputs)
            needed = [tensor.op for tensor in inputs if tensor.name not in self._given and tensor not in handles]
            for before in (*needed, *befores):
                if before not in seen:
                    seen.add(before)
                    todo.append(before)
        if any(has_functions(node) for node in self._definition.node):
            self._definition.library.CopyFrom(graph.as_graph_def().library)
            for function in self._definition.library.function:
                for node in function.node_def:
                    node.attr.pop("_class", None)  # or copies on two tasks would have to lie where one op is

    def needs(self, name: str) -> bool:
        """Return whether a copy needs the value of the variable of that name."""
        return name in self._users

    def check_python(self, what: str) -> None:
        """Raise an UnusableError if a Python function is called; `what` says why none can be."""
        for op in self.find(PYTHON):
            raise UnusableError(f"{find_place_of(op) or 'model.py'}: a Python function is called here, but {what}")

    def find(self, op_types: Sequence[str]) -> Iterator[tf.Operation]:
        """Yield all ops of the traced graph that are, or have inside, one of these types."""
        library = {function.signature.name: function for function in self._definition.library.function}
        for node in self._definition.node:
            inside = [inner for function in functions_in(node, library) for inner in function.node_def]
            if any(inner.op in op_types for inner in (node, *inside)):
                yield self._graph.get_operation_by_name(node.name)

    def copy(
        self, given: Sequence[tf.Tensor], values: Mapping[str, tf.Tensor], name: str, stream: object = None
    ) -> list[Any]:
        """Build a copy.

        Args:
          given: what takes the places of those tensors, in their order.
          values: of the variables, by their names in the traced graph, and of large constants, which else come along.
          name: of the copy's scope.
          stream: tells the random numbers of this copy from those of others; None: they are as in the traced graph.

        Returns:
          What the copy has for each of the outputs.
        """
        replaced = dict(zip(self._given, given, strict=True))
        replaced |= {f"{variable}:0": value for variable, value in values.items()}
        for op in self.large:
            if op.outputs[0].name not in replaced:
                replaced[op.outputs[0].name] = tf.constant(value_of(op))
        for variable, op in self._users.items():
            if f"{variable}:0" not in replaced:
                raise UnusableError(f"{find_place_of(op)}: variable {variable} is in no collection of global variables")
        number = next(_numbers)
        definition = self._definition
        if stream is not None or definition.library.function:  # else it can be imported as it is
            definition = tf.GraphDef()
            definition.CopyFrom(self._definition)
            # TensorFlow changes the functions of a loop; those of another copy must not change with them.
            names = {f.signature.name: f"{f.signature.name}_{number}" for f in definition.library.function}
            salt = "" if stream is None else f"{stream} {number}"
            for function in definition.library.function:
                function.signature.name = names[function.signature.name]
                _adapt(function.node_def, names, salt)
            _adapt(definition.node, names, salt)
            del definition.library.gradient[:]
        copied = [output for output in self._outputs if output.name not in replaced]
        with control_flow_v2(), tf.name_scope(name) as scope:
            results = tf.import_graph_def(
                definition,
                input_map={name: tensor for name, tensor in replaced.items() if name in self._names},
                return_elements=[output.name for output in copied],
                name="copy",
            )
        note_copy(f"{scope}copy/", self._graph)
        by_name = dict(zip((output.name for output in copied), results, strict=True))
        return [replaced[o.name] if o.name in replaced else by_name[o.name] for o in self._outputs]


def _clean(node: tf.NodeDef) -> None:
    """Take away where a node lies, but for the kind of the device, and give a lookup table a name for all copies."""
    device = tf.DeviceSpec.from_string(node.device)
    node.device = tf.DeviceSpec(device_type=device.device_type, device_index=device.device_index).to_string()
    node.attr.pop("_class", None)
    if node.op in LOOKUP_TABLES and not node.attr["shared_name"].s:
        node.attr["shared_name"].s = f"lookup_table_{node.name}".encode()


def _take_value(op: tf.Operation, node: tf.NodeDef) -> None:
    """Turn an op on a variable's handle into one on its value.

    Raises:
      UnusableError: it does something else with the variable.
    """
    attributes = dict(node.attr)
    node.ClearField("attr")
    if op.type == "ReadVariableOp":
        node.op = "Identity"
        node.attr["T"].CopyFrom(attributes["dtype"])
    elif op.type in ("ResourceGather", "ResourceGatherNd"):
        node.op = "GatherV2" if op.type == "ResourceGather" else "GatherNd"
        node.attr["Tparams"].CopyFrom(attributes["dtype"])
        node.attr["Tindices"].CopyFrom(attributes["Tindices"])
        if op.type == "ResourceGather":
            node.input.insert(2, f"{node.name}/axis")
            node.attr["Taxis"].type = tf.int32.as_datatype_enum
            node.attr["batch_dims"].i = attributes["batch_dims"].i
    elif op.type == "VariableShape":
        node.op = "Shape"
        node.attr["T"].type = op.inputs[0].op.get_attr("dtype").as_datatype_enum
        node.attr["out_type"].CopyFrom(attributes["out_type"])
    else:
        raise refusal(op)


def _adapt(nodes: Iterable[tf.NodeDef], names: Mapping[str, str], salt: str) -> None:
    """Give nodes the new names of functions, and random ops other seeds, unless `salt` is empty."""
    for node in nodes:
        node.op = names.get(node.op, node.op)
        for value in node.attr.values():
            for function in (*([value.func] if value.HasField("func") else []), *value.list.func):
                function.name = names.get(function.name, function.name)
        if salt and "seed2" in node.attr:
            node.attr["seed2"].i = zlib.crc32(f"{node.attr['seed2'].i} {salt}".encode()) % 2**31
