"""The variables of a model, made where the device setter puts them, with the initial values that the user gave."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from runtime.model.computation import is_random
from runtime.model.function import Model
from runtime.model.tables import TableVariable
from runtime.model.template import Template, find_ancestors
from runtime.model.trace import Trace


def make_variables(made: Trace, tables: Sequence[str] = (), num_slices: int = 1) -> dict[str, Any]:
    """Make the variables of a trace, by name: as the scope's partitioner splits them, and tables in so many slices."""
    return {name: _make_variable(made, name, num_slices if name in tables else 0) for name in made.variables}


def _make_variable(made: Trace, name: str, num_slices: int) -> Any:
    traced = made.variables[name]
    shape, partitioner = traced.shape.as_list(), None
    if num_slices:
        partitioner = tf.fixed_size_partitioner(min(num_slices, shape[0]))
    value = traced.initial_value
    initializer: Any = _make_initializer(made, name)
    if num_slices and name in made.initializers and any(map(is_random, find_ancestors([value.op]))):
        initializer = made.initializers[name]  # it makes each slice by itself: all of a large table would take long
    variable = tf.get_variable(
        name,
        shape,
        traced.dtype.base_dtype,
        initializer,
        trainable=traced.trainable,
        partitioner=partitioner,
    )
    return TableVariable(list(variable)) if num_slices else variable


def _make_initializer(made: Trace, name: str) -> Callable[..., tf.Tensor]:
    """Return what builds a copy of an initial value or, where a variable is split, a slice of its rows."""

    def build(shape: Sequence[int], dtype: tf.DType, partition_info: Any = None) -> tf.Tensor:
        whole = build_first_values(made.graph, made.variables, [name], {})[0]
        if partition_info is None or not len(shape):
            return whole
        return tf.reshape(tf.slice(whole, partition_info.var_offset, shape), shape)

    return build


def build_first_values(
    graph: tf.Graph,
    variables: Mapping[str, tf.Variable],
    names: Sequence[str],
    known: Mapping[str, Callable[[], tf.Tensor]],
) -> list[tf.Tensor]:
    """Build copies of the values with which variables begin. Where these read others, they read what those begin with.

    Args:
      graph: the traced graph.
      variables: those of the graph.
      names: of some of them.
      known: what builds the first values of others.
    """
    wanted = [variables[name].initial_value for name in names]
    needed = find_ancestors([value.op for value in wanted])
    by_handle = {variable.handle.op: name for name, variable in variables.items()}
    # As in tf.cond(tf.is_variable_initialized(v), ...), of tf.train.ExponentialMovingAverage.
    choices = {
        op.outputs[0]: by_handle[op.inputs[0].op.inputs[0].op]
        for op in needed
        if op.type.endswith("If") and op.inputs[0].op.type == "VarIsInitializedOp"
    }
    first_of = {variables[name].initial_value: name for name in known}
    choices |= {value: name for value, name in first_of.items() if value.op in needed}
    template = Template(graph, wanted, list(choices))

    def build(name: str) -> tf.Tensor:
        return known[name]() if name in known else build_first_values(graph, variables, [name], known)[0]

    values = {name: build(name) for name in variables if template.needs(name)}
    return template.copy([build(name) for name in choices.values()], values, "initial_value")


def make_constants(model: Model, variables: Mapping[str, Any]) -> None:
    """Let a model compute with copies, on this worker, of variables that never change; each session makes them anew."""
    keys = [tf.GraphKeys.LOCAL_VARIABLES]
    for name, variable in variables.items():
        value = tf.convert_to_tensor(variable)
        model.constants[name] = tf.Variable(value, trainable=False, collections=keys, name=f"{name}/copy").read_value()
