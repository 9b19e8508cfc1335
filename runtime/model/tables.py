"""Tables: parameters, float32 [rows, dim], of which a batch needs a few rows. Only these travel."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow.compat.v1 as tf

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
        raise UnusableError(f"table {name} has {table.num_rows} rows, expected {MAX_ROWS} at most")
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
