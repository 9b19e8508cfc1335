"""Tables: parameters, float32 [rows, dim], of which a batch needs a few rows. Only these travel."""

import contextlib
import itertools
import re
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from runtime.errors import UnusableError

MAX_ROWS = 2**31 - 1  # ids travel as int32
MAX_MESSAGE_BYTES = 2**31
MISTAKE = "model.py: build_ids() must return"
NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_./-]*")  # of a variable


class Table(NamedTuple):
    """What `build_parameters()` of a model returns for a table, in place of a variable."""

    rows: int
    dim: int
    initializer: Callable[..., Any] | None = None  # of `tf.get_variable()`; None: uniform within 1/dim of 0

    def check(self, name: str, num_slices: int, written_by: str) -> None:
        """Raise an UnusableError if this cannot be a table, in so many slices, or not be saved by who writes it."""
        if not NAME.fullmatch(name):
            raise UnusableError(f"model.py: a table is named {name!r}, expected letters, digits, and _ . / - only")
        are_whole = isinstance(self.rows, Integral) and isinstance(self.dim, Integral)
        if not (are_whole and 1 <= self.rows <= MAX_ROWS and self.dim >= 1):
            raise UnusableError(
                f"model.py: table {name} has {self.rows!r} rows of {self.dim!r} numbers, expected 1 to {MAX_ROWS} rows"
                " of one number or more, each an int"
            )
        num_bytes = -(-self.rows // num_slices) * self.dim * tf.float32.size
        if written_by == "chief" and num_bytes >= MAX_MESSAGE_BYTES:
            raise UnusableError(
                f"--checkpoints=chief cannot save table {name}: the part of each ps has {num_bytes} bytes, and"
                f" TensorFlow sends less than {MAX_MESSAGE_BYTES} at once; give more ps tasks, or --checkpoints=ps"
            )


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


class Rows(NamedTuple):
    """Some rows of a table."""

    ids: tf.Tensor  # int32 [n], sorted, each once
    values: tf.Tensor  # float32 [n, dim]


Parameters = Mapping[str, Any]  # by name: float32 tensors, and of a table the `Rows` that are needed
Ids = Mapping[str, tf.Tensor]  # by table: integers of any shape


def values_of(parameters: Parameters) -> dict[str, tf.Tensor]:
    """Return the numbers of all parameters, by name, without the ids of rows."""
    return {name: p.values if isinstance(p, Rows) else p for name, p in parameters.items()}


def make_variables(parameters: Mapping[str, Any], num_slices: int = 1) -> dict[str, Any]:
    """Make the variables of the tables among `parameters`, each in so many slices; return all, by name."""
    return {name: _make(name, p, num_slices) if isinstance(p, Table) else p for name, p in parameters.items()}


def _make(name: str, table: Table, num_slices: int) -> TableVariable:
    initializer = table.initializer or tf.random_uniform_initializer(-1 / table.dim, 1 / table.dim)
    partitioner = tf.fixed_size_partitioner(min(num_slices, table.rows))
    shape = [table.rows, table.dim]
    return TableVariable(list(tf.get_variable(name, shape, initializer=initializer, partitioner=partitioner)))


def slices_of(parameter: Any) -> list[tf.Variable]:
    """Return the variables of a parameter: itself, unless it is partitioned or a table."""
    if isinstance(parameter, TableVariable):
        return parameter.slices
    return [parameter] if isinstance(parameter, tf.compat.v2.Variable) else list(parameter)


def build_ids(model: Any, inputs: tf.Tensor) -> Ids:
    """Build the ids of the rows that a model needs of its tables; one without tables has no `build_ids()`.

    Raises:
      UnusableError: the model returns something else.
    """
    ids = model.build_ids(inputs) if hasattr(model, "build_ids") else {}
    if not isinstance(ids, Mapping):
        raise UnusableError(f"{MISTAKE} a dict of the ids by the name of their table, found {type(ids).__name__}")
    return {name: _to_integers(name, of_table) for name, of_table in ids.items()}


def _to_integers(name: str, ids: Any) -> tf.Tensor:
    with contextlib.suppress(TypeError, ValueError):  # it is nothing that could become one tensor
        ids = tf.convert_to_tensor(ids)
    if isinstance(ids, tf.Tensor) and ids.dtype.is_integer:
        return ids
    found = f"a tensor of {ids.dtype.name}" if isinstance(ids, tf.Tensor) else type(ids).__name__
    raise UnusableError(f"{MISTAKE} integers for table {name}, as a dense tensor, found {found}")


def choose_rows(tables: Mapping[str, TableVariable], ids: Ids) -> list[tf.Tensor]:
    """Build the ids of the rows of each table, int32 [n], sorted, each once; where one is of no row, a run fails.

    Raises:
      UnusableError: `ids` has not those of each table.
    """
    if tables.keys() != ids.keys():
        raise UnusableError(f"{MISTAKE} the ids of {sorted(tables)}, found those of {sorted(ids) or 'no table'}")
    return [_choose_rows(name, table.num_rows, ids[name]) for name, table in tables.items()]


def _choose_rows(name: str, num_rows: int, ids: tf.Tensor) -> tf.Tensor:
    ids = tf.reshape(tf.cast(ids, tf.int64), [-1])
    found = [f"{MISTAKE} ids from 0 to {num_rows - 1} for table {name}, found", tf.reduce_min(ids), tf.reduce_max(ids)]
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all((ids >= 0) & (ids < num_rows)), found)]):
        return tf.sort(tf.unique(tf.cast(ids, tf.int32))[0])


def look_up(parameters: Parameters, ids: Ids) -> dict[str, tf.Tensor]:
    """Return `parameters` as the model takes them: for a table the vectors, float32 [..., dim], of its `ids`, [...].

    Args:
      parameters: as in `Parameters`, or with the table's variable.
      ids: of each table, by name.
    """
    return {
        name: _look_up(parameter, ids[name]) if name in ids else parameter for name, parameter in parameters.items()
    }


def _look_up(parameter: Any, ids: tf.Tensor) -> tf.Tensor:
    if isinstance(parameter, TableVariable):
        (variable,) = parameter.slices
        return tf.gather(variable, ids)
    flat = tf.reshape(tf.cast(ids, tf.int32), [-1])
    places = tf.minimum(tf.searchsorted(parameter.ids, flat), tf.size(parameter.ids) - 1)
    are_there = tf.reduce_all(tf.equal(tf.gather(parameter.ids, places), flat))
    text = f"{MISTAKE} the same ids whenever it gets the same examples"
    with tf.control_dependencies([tf.debugging.Assert(are_there, [text])]):
        return _gather(parameter.values, tf.reshape(places, tf.shape(ids)))


@tf.custom_gradient
def _gather(values: tf.Tensor, places: tf.Tensor) -> Any:
    """Build the rows at some places. The gradient of `values` is dense, as packing takes it; TensorFlow's is sparse."""

    def build_gradient(gradient: tf.Tensor) -> tuple[tf.Tensor, None]:
        return tf.math.unsorted_segment_sum(gradient, places, tf.shape(values)[0]), None

    return tf.gather(values, places), build_gradient
