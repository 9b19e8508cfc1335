"""The roles of a model's variables, found in its traces, and what changes each in a step.

Of the variables that a user's functions make, a *parameter* is one that the loss has a gradient for. A *table* is a
parameter of which rows are looked up, and nothing else. *State* is what only an assignment changes: what a step does to
it travels with the gradients. All else is *frozen*.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.model.computation import gathers_of, is_random
from runtime.model.files import Files
from runtime.model.state import replay
from runtime.model.template import STATEFUL, control_flow_v2, find_ancestors
from runtime.model.trace import Trace, build_total_loss
from runtime.process.errors import UnusableError


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
            raise UnusableError(f"{place}: the loss does not depend on {name}: use it, or do not make it")
    return gradients, of_rows


def flat(structure: Any) -> list[tf.Tensor]:
    """Return the tensors in a structure."""
    return [tensor for tensor in tf.nest.flatten(structure) if isinstance(tensor, tf.Tensor)]
