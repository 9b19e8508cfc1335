"""The variables of a model, made where the device setter puts them; those of tables, of which a batch needs few rows.

A table is a parameter, float32 [rows, dim], of which only those rows travel that a batch needs.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow.compat.v1 as tf

from runtime.model.ops import find_ancestors, is_random
from runtime.model.template import Template
from runtime.model.trace import Trace
from runtime.process.errors import UnusableError

MAX_ROWS = 2**31 - 1  # ids travel as int32
MAX_MESSAGE_BYTES = 2**31
PIECE_BYTES = 2**28  # of a table that are read at once


class TableVariable(NamedTuple):
    """The variables of a table: contiguous slices of its rows, one for each ps, as checkpoints put them together."""

    slices: list[tf.Variable]

    @property
    def num_rows(self) -> int:
        """How many rows all slices have."""
        return sum(variable.shape[0] for variable in self.slices)

    def count_ids(self, ids: tf.Tensor) -> list[tf.Tensor]:
        """Build how many of `ids`, sorted, are of each slice: int32 [] each."""
        if len(self.slices) == 1:
            return [tf.size(ids)]
        firsts = tf.searchsorted(ids, self._starts())
        return tf.unstack(tf.concat([firsts[1:], [tf.size(ids)]], axis=0) - firsts, num=len(self.slices))

    def split(self, ids: tf.Tensor) -> list[tf.Tensor]:
        """Build the places, int32 [n], of `ids`, sorted, in each slice."""
        of_slices = tf.split(ids, self.count_ids(ids), num=len(self.slices))
        return [part - start for part, start in zip(of_slices, self._starts(), strict=True)]

    def _starts(self) -> list[int]:
        return [*itertools.accumulate((variable.shape[0] for variable in self.slices[:-1]), initial=0)]


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


class TableReader:
    """Reads all rows of a table, in pieces that can be sent."""

    def __init__(self, table: TableVariable):
        """Build what reads a piece."""
        self._slices = table.slices
        self._ids = tf.placeholder(tf.int32, [None])
        self._pieces = [variable.sparse_read(self._ids) for variable in table.slices]

    def read(self, session: tf.Session) -> npt.NDArray[np.float32]:
        """Return all rows, float32 [rows, dim]."""
        pieces = []
        for variable, piece in zip(self._slices, self._pieces, strict=True):
            num_rows, dim = variable.shape.as_list()
            for ids in np.array_split(np.arange(num_rows, dtype=np.int32), 1 + num_rows * dim * 4 // PIECE_BYTES):
                pieces.append(session.run(piece, {self._ids: ids}))
        return np.concatenate(pieces)


class Rows(NamedTuple):
    """Some rows of a table."""

    ids: tf.Tensor  # int32 [n], sorted, each once
    values: tf.Tensor  # float32 [n, dim]


class Lookups(NamedTuple):
    """Which rows some examples need."""

    ids: Mapping[str, tf.Tensor]  # by table: int64 [n]
    samples: Sequence[tf.Tensor]  # the random numbers that have chosen some of them, as of a candidate sampling loss


Parameters = Mapping[str, Any]  # by name: tensors, and of a table the `Rows` that are needed


def values_of(parameters: Parameters) -> dict[str, tf.Tensor]:
    """Return the numbers of all parameters, by name, without the ids of rows."""
    return {name: p.values if isinstance(p, Rows) else p for name, p in parameters.items()}


def check_size(name: str, table: TableVariable, written_by: str) -> None:
    """Raise an UnusableError if a table cannot be used, or saved by who writes it, the chief or each ps."""
    if table.num_rows > MAX_ROWS:
        raise UnusableError(f"table {name} has {table.num_rows} rows, expected at most {MAX_ROWS}")
    num_bytes = max(variable.shape.num_elements() for variable in table.slices) * tf.float32.size
    if written_by == "chief" and num_bytes >= MAX_MESSAGE_BYTES:
        raise UnusableError(
            f"--checkpoints=chief cannot save table {name}: the part of each ps has {num_bytes} bytes, and"
            f" TensorFlow sends less than {MAX_MESSAGE_BYTES} at once; give more ps tasks, or --checkpoints=ps"
        )


def slices_of(parameter: Any) -> list[tf.Variable]:
    """Return the variables of a parameter: itself, unless it is partitioned or a table."""
    if isinstance(parameter, TableVariable):
        return parameter.slices
    return [parameter] if isinstance(parameter, tf.compat.v2.Variable) else list(parameter)


def choose_rows(name: str, num_rows: int, ids: tf.Tensor) -> tf.Tensor:
    """Build the ids, int32 [n], sorted, each once, of a table of so many rows; where one is of no row, a run fails."""
    found = [
        f"model.py: the lookup needs ids from 0 to {num_rows - 1} of {name}, found",
        tf.reduce_min(ids),
        tf.reduce_max(ids),
    ]
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all((ids >= 0) & (ids < num_rows)), found)]):
        return tf.sort(tf.unique(tf.cast(ids, tf.int32))[0])


def find_places(rows: Rows, ids: tf.Tensor) -> tf.Tensor:
    """Build where `ids`, all of which are there, lie among some rows: int32, of the shape of `ids`."""
    flat = tf.reshape(tf.cast(ids, tf.int32), [-1])
    return tf.reshape(tf.searchsorted(rows.ids, flat), tf.shape(ids))


def add_rows(
    parameters: Parameters, lookups: Sequence[tuple[str, tf.Tensor]], gradients: Sequence[tf.Tensor]
) -> dict[str, tf.Tensor]:
    """Build the gradients of the rows of each table, float32 [n, dim]: dense, as packing takes them.

    Args:
      parameters: the rows, by table.
      lookups: of each lookup, its table and the places of its ids.
      gradients: of what each lookup has found.
    """
    parts: dict[str, list[tf.Tensor]] = {}
    for (name, places), gradient in zip(lookups, gradients, strict=True):
        values = parameters[name].values
        flat = tf.reshape(gradient, [-1, values.shape[1]])
        parts.setdefault(name, []).append(
            tf.math.unsorted_segment_sum(flat, tf.reshape(places, [-1]), tf.shape(values)[0])
        )
    return {name: tf.add_n(of_table) for name, of_table in parts.items()}
