"""The roles of a model's variables, found in its traces, and what a step does to each.

Of the variables that a user's functions make, a *parameter* is one that the loss has a gradient for. A *table* is a
parameter of which rows are looked up, and nothing else. *State* is what only assignments change, such as the moving
averages of a batch normalisation: what a step does to it travels with the gradients. All else is *frozen*.

A copy of a model has no variables. So the changes of a step are replayed on values, in the order in which the user's
functions have made their ops: a change makes a new value of what the one before has left, and whoever reads the
variable later gets that one. A session may run the ops in this order, and must where control dependencies say so.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.model.computation import gathers_of
from runtime.model.files import Files
from runtime.model.ops import STATEFUL, control_flow_v2, find_ancestors, has_functions, is_change, is_random, refusal
from runtime.model.trace import Trace, build_total_loss
from runtime.process.errors import UnusableError

CHANGES_OF_TABLES = ("LookupTableInsertV2", "LookupTableRemoveV2", "LookupTableImportV2")
CHANGES = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "ResourceScatterAdd", "ResourceScatterSub")

# How the changes that several workers make come together, as on a variable that they share.
SET = "set"  # an assignment: the last one counts
SUM = "sum"  # what is added or subtracted adds up
AVERAGE = "average"  # a sum of changes that depend on the value, as of a moving average


class Roles(NamedTuple):
    """The names of the variables by their role, and what a step computes."""

    parameters: list[str]
    tables: list[str]
    state: dict[str, str]  # with how the changes of several workers come together: see `state.Change`
    frozen: list[str]
    outputs: list[tf.Tensor]  # the loss, the gradients of parameters, those of lookups in tables, `Change.value`s
    training: Trace
    test: Trace


def find_roles(files: Files, training: Trace, test: Trace, may_have_tables: bool, is_stepwise: bool) -> Roles:
    """Find the roles of all variables, and build the gradients in the trace for training.

    Raises:
      UnusableError: a variable has none that workers could do.
    """
    total = build_total_loss(training)
    of_graph = training.graph.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES)
    trainable = [v.op.name for v in of_graph if v.op.name in training.variables]
    tables = [name for name in trainable if _is_table(name, training, test, total, is_stepwise)]
    if tables and not may_have_tables:
        logging.warning("%s: sent as a whole, since only plain SGD takes local steps on rows", ", ".join(tables))
        tables = []
    gradients, of_rows = _build_gradients(files, training, total, trainable, tables)
    updates = training.graph.get_collection(tf.GraphKeys.UPDATE_OPS)
    training, changes = replay(files, training, [getattr(update, "op", update) for update in [*updates, total]])
    test, _ = replay(files, test, [])
    if trained := changes.keys() & {*gradients, *tables}:
        place, name = files.place_of(changes[min(trained)].op), min(trained)
        raise UnusableError(f"{place}: {name} is trained, so no other assignment may change it")
    frozen = [name for name in training.variables if name not in {*gradients, *tables, *changes}]
    outputs = [total, *gradients.values(), *of_rows, *(change.value for change in changes.values())]
    state = {name: change.kind for name, change in changes.items()}
    return Roles(list(gradients), tables, state, frozen, outputs, training, test)


def _is_table(name: str, training: Trace, test: Trace, total: tf.Tensor, is_stepwise: bool) -> bool:
    """Return whether rows of a variable are looked up, and nothing else is done with it."""
    variable = training.variables[name]
    is_matrix = variable.shape.rank == 2 and variable.dtype.base_dtype == tf.float32
    if not (is_matrix and gathers_of(training, name)):
        return False
    for made, results in ((training, [total]), (test, [test.loss, *flat(test.metrics)])):
        if name not in made.variables:
            continue
        results += [*flat(made.logits), *flat(made.predictions)]
        results += made.graph.get_collection(tf.GraphKeys.UPDATE_OPS)
        needed = find_ancestors([getattr(result, "op", result) for result in results])
        uses = [op for op in made.variables[name].handle.consumers() if op in needed]
        if any(op.type != "ResourceGather" or op.get_attr("batch_dims") for op in uses):
            return False
        ancestors = find_ancestors([op.inputs[1].op for op in uses])
        if any(op.type in ("ReadVariableOp", "ResourceGather") for op in ancestors):
            return False
        if any(op.type in STATEFUL for op in ancestors):
            logging.warning("%s: sent as a whole, since a loop, a branch or Python may draw its ids at random", name)
            return False
        if not is_stepwise and any(map(is_random, ancestors)):
            return False
    return True


def _build_gradients(
    files: Files, made: Trace, total: tf.Tensor, trainable: Sequence[str], tables: Sequence[str]
) -> tuple[dict[str, tf.Tensor], list[tf.Tensor]]:
    """Build, in the traced graph, the gradients of the parameters by name, and of what each lookup has found."""
    dense = [name for name in trainable if name not in tables]
    rows = [op.outputs[0] for name in tables for op in gathers_of(made, name)]
    with control_flow_v2(), made.graph.as_default():
        found = tf.gradients(total, [made.variables[name] for name in dense] + rows)
        found = [gradient if gradient is None else tf.convert_to_tensor(gradient) for gradient in found]
        of_rows = [
            # Or they would be a constant, of which the lookup is no part.
            tf.zeros_like(r, optimize=False) if gradient is None else gradient
            for r, gradient in zip(rows, found[len(dense) :], strict=True)
        ]
    gradients = {name: gradient for name, gradient in zip(dense, found, strict=False) if gradient is not None}
    used = find_ancestors([tensor.op for tensor in [total, *flat(made.logits)]])
    for name in dense:
        variable, place = made.variables[name], files.place_of(made.variables[name])
        dtype = variable.dtype.base_dtype
        if name in gradients and dtype != tf.float32:
            raise UnusableError(f"{place}: {name} is {dtype.name}, but what is trained must be float32")
        is_used = name in gradients or used.intersection(variable.handle.consumers())
        if dtype.is_floating and not is_used:  # integers, such as a counter, are trainable only by mistake
            raise UnusableError(f"{place}: the loss does not depend on {name}: use it, or do not create it")
    return gradients, of_rows


def flat(structure: Any) -> list[tf.Tensor]:
    """Return the tensors in a structure."""
    return [tensor for tensor in tf.nest.flatten(structure) if isinstance(tensor, tf.Tensor)]


class Change(NamedTuple):
    """What a step does to a variable."""

    kind: str
    value: tf.Tensor  # the new value if it is set, else by how much the step lowers it
    op: tf.Operation  # the first op that changes it


def replay(files: Files, made: Trace, step: list[tf.Operation]) -> tuple[Trace, dict[str, Change]]:
    """Replay the changes of a trace.

    Args:
      files: the user's.
      made: the trace.
      step: the ops that each step runs. A change that these do not need happens only for who waits for it.

    Returns:
      The trace, which says what each op finds that comes after a change, and what a step does to each variable.

    Raises:
      UnusableError: workers cannot do what an op does to a variable.
    """
    always = find_ancestors(step)
    if tables := [op for op in always if op.type in CHANGES_OF_TABLES]:
        raise UnusableError(
            f"{files.place_of(tables[0])}: a step changes a lookup table, but each worker has its own copy: keep what"
            " changes in a variable"
        )
    positions = {op: position for position, op in enumerate(made.graph.get_operations())}
    found, results = dict[tf.Operation, tf.Tensor](), dict[str, Change]()
    for name, variable in made.variables.items():
        uses = sorted((op for op in variable.handle.consumers() if op in positions), key=positions.__getitem__)
        changes = [op for op in uses if is_change(op) and op is not variable.initializer]
        value_after = _values_of(files, variable)
        for op in uses:
            if op in always and has_functions(op.node_def):
                raise refusal(op)
            if op.type.startswith(("ResourceApply", "ResourceSparseApply")):
                place = files.place_of(op)
                raise UnusableError(f"{place}: an optimizer changes {name}: return it from build_optimizer()")
            earlier = [change for change in changes if positions[change] < positions[op]]
            if not always.issuperset(earlier):
                before = find_ancestors([op])
                earlier = [change for change in earlier if change in always or change in before]
            if earlier and op not in changes:
                found[op] = value_after(*earlier)
        if step and (idle := [op for op in changes if not (op in always or op.name == f"{name}/Assign")]):
            _tell_of_idle(files, variable, idle[0])
        if in_step := [op for op in changes if op in always]:
            new_value = value_after(*in_step)
            if variable.dtype.base_dtype != tf.float32:
                raise _refuse(files, variable, in_step[0])
            if any(op.type == "AssignVariableOp" for op in in_step):
                results[name] = Change(SET, new_value, in_step[0])
                continue
            with made.graph.as_default():
                decrease = tf.add_n([_build_decrease(op, variable.shape) for op in in_step])
            depends = variable.handle.op in find_ancestors([decrease.op], by_values=True)
            results[name] = Change(AVERAGE if depends else SUM, decrease, in_step[0])
    return made._replace(found=found), results


def _tell_of_idle(files: Files, variable: tf.Variable, change: tf.Operation) -> None:
    """Tell of a change that no step makes."""
    place, name = files.place_of(change), variable.op.name
    if change.inputs[-1].op.type == "Placeholder":  # as Keras does it
        raise UnusableError(
            f"{place}: a session sets {name} here, as set_weights() does, but no later session sees that: give it an"
            " initializer, such as tf.constant_initializer(weights)"
        )
    logging.warning(
        "%s: no step runs this update of %s: add its op to tf.GraphKeys.UPDATE_OPS, or let the loss depend on it",
        place,
        name,
    )


def _values_of(files: Files, variable: tf.Variable) -> Callable[..., tf.Tensor]:
    """Return what builds the value of a variable after some changes, one after the other, once for all who ask."""

    @functools.cache
    def value_after(*changes: tf.Operation) -> tf.Tensor:
        with variable.graph.as_default():
            if not changes:
                return variable.read_value()
            (*earlier, last) = changes
            if last.type not in CHANGES:
                raise _refuse(files, variable, last)
            if last.type == "AssignVariableOp":
                return last.inputs[1]
            return value_after(*earlier) - _build_decrease(last, variable.shape)

    return value_after


def _refuse(files: Files, variable: tf.Variable, change: tf.Operation) -> UnusableError:
    place, name = files.place_of(change), variable.op.name
    return UnusableError(
        f"{place}: workers cannot run {change.type} on {name}, {variable.dtype.name}:"
        " they support assign, assign_add, assign_sub, scatter_add and scatter_sub, on float32"
    )


def _build_decrease(change: tf.Operation, shape: tf.TensorShape) -> tf.Tensor:
    """Build by how much a change that adds or subtracts lowers its variable."""
    operand = change.inputs[-1]
    if change.type.startswith("ResourceScatter"):
        places = change.inputs[1]
        operand = tf.broadcast_to(operand, tf.concat([tf.shape(places), shape[1:]], axis=0))
        operand = tf.scatter_nd(places[..., tf.newaxis], operand, shape)
    return operand if "Sub" in change.type else -operand


def build_change(variable: tf.Variable, kind: str, value: tf.Tensor) -> tf.Operation:
    """Build a change of a variable, of which `Change` has the kind and the value."""
    return (variable.assign if kind == SET else variable.assign_sub)(value, read_value=False)
