"""How parameters and gradients travel between a worker and the ps tasks: packed, one message for each ps each way.

A step of a small model costs messages, not bytes. Only what travels is packed: each variable keeps its own name, its
place and its entry in the checkpoints. Of a table, the rows that an exchange needs travel with the rest.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from runtime.model.variables import MAX_MESSAGE_BYTES, Lookups, Parameters, Rows, TableVariable, choose_rows, slices_of
from runtime.process.errors import UnusableError


class Part(NamedTuple):
    """What a variable on a ps contributes to the vector of that ps."""

    name: str  # of the parameter
    slice: int  # which of its slices this is
    variable: tf.Variable


class Selection(NamedTuple):
    """The rows of tables that an exchange needs."""

    ids: list[tf.Tensor]  # of each table: int32 [n], sorted, each once
    places: list[list[tf.Tensor]]  # for each ps, of each of its slices: int32 [n], where the rows lie in it; on the ps
    samples: Sequence[tf.Tensor] = ()  # see `Lookups`


class Packing:
    """The parameters on the ps tasks, and how they become vectors: one for each ps, of everything that travels.

    A vector is made of parts. A part is a variable on that ps: a parameter or, where that is split over the ps tasks,
    one of its slices. Of the slice of a table it has the selected rows; these parts come last.
    """

    def __init__(self, parameters: Mapping[str, Any], state: Mapping[str, str] | None = None):
        """Pack `parameters`, float32, by their devices.

        Args:
          parameters: variables by name; a partitioned one is a list of slices, and a table a `TableVariable`.
          state: those that no optimizer changes, by name, with the kind of what arrives for them: see `state.Change`.
        """
        self.state = dict(state or {})
        self._averages: dict[str, tf.Variable] = {}  # by the name of the variable
        self.tables = {name: table for name, table in parameters.items() if isinstance(table, TableVariable)}
        self._slices = {name: slices_of(parameter) for name, parameter in parameters.items()}
        self._parts: dict[str, list[Part]] = {}  # by the device of their ps
        for name in sorted(self._slices, key=lambda name: name in self.tables):
            for number, variable in enumerate(self._slices[name]):
                self._parts.setdefault(variable.device, []).append(Part(name, number, variable))
        global_step = tf.train.get_global_step()
        if global_step is not None:  # its ps takes part even if it holds nothing else
            self._parts.setdefault(global_step.device, [])
        self.names = list(self._slices)  # of the parameters, in the order in which they are packed
        self.variables = self._by_device(lambda part: part.name not in self.tables)
        self.table_slices = self._by_device(lambda part: part.name in self.tables)

        self.kinds = {  # of those variables; None: an optimizer changes it
            device: [self.state.get(part.name) for part in parts if part.name not in self.tables]
            for device, parts in self._parts.items()
        }
        for device, variables in self.variables.items():
            num_bytes = sum(variable.shape.num_elements() for variable in variables) * tf.float32.size
            if num_bytes >= MAX_MESSAGE_BYTES:
                num_ps = math.ceil(len(self._parts) * num_bytes / MAX_MESSAGE_BYTES) + 1
                raise UnusableError(
                    f"the parameters on {device} have {num_bytes} bytes, and TensorFlow sends less than"
                    f" {MAX_MESSAGE_BYTES} at once: use at least {num_ps} ps tasks, --ps_strategy=greedy, and"
                    " --partition_bytes to split large variables"
                )

    def _by_device(self, belongs: Callable[[Part], bool]) -> dict[str, list[tf.Variable]]:
        return {device: [part.variable for part in parts if belongs(part)] for device, parts in self._parts.items()}

    @property
    def evaluated(self) -> "Packing":
        """What a test measures, without the tables: the averages of the parameters, where there are some."""
        dense = {name: slices for name, slices in self._slices.items() if name not in self.tables}
        return Packing({name: [self._averages.get(v.op.name, v) for v in slices] for name, slices in dense.items()})

    @property
    def of_tables(self) -> "Packing":
        """The tables alone."""
        return Packing(self.tables)

    def make_averages(self, variables: Sequence[tf.Variable], decay: float) -> list[tuple[tf.Variable, tf.Variable]]:
        """Make moving averages of variables, where they lie; return each variable with its average."""
        averages = tf.train.ExponentialMovingAverage(decay)
        averages.apply(variables)  # makes them; how they move depends on the number of steps
        pairs = [(variable, averages.average(variable)) for variable in variables]
        self._averages |= {variable.op.name: average for variable, average in pairs}
        return pairs

    def select(self, wanted: Sequence[Lookups]) -> list[Selection]:
        """Build the selections of several exchanges, and send each ps its part of all in one message."""
        nothing = tf.zeros([0], tf.int64)
        selections = [
            Selection(
                [choose_rows(name, table.num_rows, ids.get(name, nothing)) for name, table in self.tables.items()],
                [],
                samples,
            )
            for ids, samples in wanted
        ]
        split = [
            {name: table.split(ids) for (name, table), ids in zip(self.tables.items(), selection.ids, strict=True)}
            for selection in selections
        ]
        for device, parts in self._parts.items():
            parts = [part for part in parts if part.name in self.tables]
            places = [of_tables[part.name][part.slice] for of_tables in split for part in parts]
            arrived = _send_all(places, device)
            for number, selection in enumerate(selections):
                selection.places.append(arrived[number * len(parts) : (number + 1) * len(parts)])
        return selections

    def read(self, selection: Selection, after: Sequence[Sequence[tf.Tensor]] = ()) -> list[tf.Tensor]:
        """Build the parameters as they are now, or after what is given for each ps: float32 [size] for each, on it."""
        vectors = []
        for ps, device in enumerate(self._parts):
            with tf.device(device), tf.control_dependencies(after[ps] if after else ()), tf.name_scope("read"):
                values = [read(variable) for variable in self.variables[device]]
                for variable, places in zip(self.table_slices[device], selection.places[ps], strict=True):
                    values.append(variable.sparse_read(places))
                vectors.append(_join(values))
        return vectors

    def build_value(self, name: str) -> tf.Tensor:
        """Build the value that a parameter has now, whole."""
        return (
            tf.concat(self._slices[name], axis=0) if len(self._slices[name]) > 1 else self._slices[name][0].read_value()
        )

    def fetch(self, lookups: Lookups) -> Parameters:
        """Build the parameters as they are now; of the tables the rows of `lookups`."""
        (selection,) = self.select([lookups])
        return self.unpack(self.read(selection), selection.ids)

    def unpack(self, vectors: Sequence[tf.Tensor], ids: Sequence[tf.Tensor] = ()) -> dict[str, Any]:
        """Build the parameters, by name, of `vectors`: each whole, or `Rows` of the selected `ids` if it is a table."""
        counts = self._count(ids)
        slices: dict[str, list[Any]] = {name: [None] * len(variables) for name, variables in self._slices.items()}
        for vector, parts in zip(vectors, self._parts.values(), strict=True):
            num_rows = [counts[part.name][part.slice] for part in parts if part.name in counts]
            values = split_vector(vector, [part.variable for part in parts], num_rows)
            for part, value in zip(parts, values, strict=True):
                slices[part.name][part.slice] = value
        return self.by_name(
            [tf.concat(values, axis=0) if len(values) > 1 else values[0] for values in slices.values()], ids
        )

    def by_name(self, values: Sequence[tf.Tensor], ids: Sequence[tf.Tensor] = ()) -> dict[str, Any]:
        """Return `values`, one for each parameter, by its name, as `Rows` of the selected `ids` if it is a table."""
        named = dict(zip(self._slices, values, strict=True))
        return named | {name: Rows(of_table, named[name]) for name, of_table in zip(self.tables, ids, strict=True)}

    def pack(self, values: Sequence[tf.Tensor], ids: Sequence[tf.Tensor] = ()) -> list[tf.Tensor]:
        """Build vectors, float32 [size] for each ps, of what has the shapes of the parameters, or of selected rows."""
        counts = self._count(ids)
        slices = {}
        for (name, variables), value in zip(self._slices.items(), values, strict=True):
            if len(variables) == 1:
                slices[name] = [value]
            else:
                sizes = counts.get(name) or [variable.shape[0] for variable in variables]
                slices[name] = tf.split(value, sizes, num=len(variables))
        return [_join([slices[part.name][part.slice] for part in parts]) for parts in self._parts.values()]

    def _count(self, ids: Sequence[tf.Tensor]) -> dict[str, list[tf.Tensor]]:
        """Build how many of the ids of each table are of each of its slices: int32 []."""
        return {
            name: table.count_ids(of_table) for (name, table), of_table in zip(self.tables.items(), ids, strict=True)
        }


def read(variable: tf.Variable) -> tf.Tensor:
    """Read a variable, on the device of the scope: `read_value()` adds an identity, and each op on a ps costs time."""
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


def split_vector(
    vector: tf.Tensor, variables: Sequence[tf.Variable], num_rows: Sequence[tf.Tensor] = ()
) -> list[tf.Tensor]:
    """Build the part of `vector`, float32 [size], that belongs to each of the variables, in its shape.

    The last of the variables are slices of tables, of which it has so many rows: `num_rows`, int32 [] each.
    """
    if not variables:
        return []
    with tf.name_scope("split"):
        num_whole = len(variables) - len(num_rows)
        shapes = [variable.shape.as_list() for variable in variables[:num_whole]]
        shapes += [[n, variable.shape[1]] for n, variable in zip(num_rows, variables[num_whole:], strict=True)]
        sizes = [math.prod(shape) for shape in shapes]
        parts = tf.split(vector, sizes, num=len(sizes))
        return [_reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]


def _send_all(tensors: Sequence[tf.Tensor], device: str) -> list[tf.Tensor]:
    """Build `tensors`, int32 [n] each, on a device: one message brings all of them there, whatever their lengths."""
    if not tensors:
        return []
    message = tf.concat([[tf.size(tensor) for tensor in tensors], *tensors], axis=0)
    with tf.device(device):
        sizes, values = tf.split(message, [len(tensors), -1])
        return tf.split(values, sizes, num=len(tensors))


def _join(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """Build a vector, float32 [size], of `parts`."""
    with tf.name_scope("join"):
        return tf.concat([_reshape(part, [-1]) for part in parts], axis=0) if parts else tf.zeros([0])


def _reshape(part: tf.Tensor, shape: Sequence[Any]) -> tf.Tensor:
    """Reshape a tensor, unless it has one dimension before and after that: each op on a ps costs time."""
    return part if part.shape.rank == len(shape) == 1 else tf.reshape(part, shape)
