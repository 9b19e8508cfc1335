"""Computations: some outputs of a trace as a function of examples and parameters, of which tables give rows."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from runtime.model.ops import find_ancestors, is_random, value_of
from runtime.model.template import Template
from runtime.model.trace import Trace
from runtime.model.variables import Lookups, Parameters, Rows, find_places

GLOBAL_STEP = tf.GraphKeys.GLOBAL_STEP  # "global_step", the name of the variable


class Computation:
    """Some outputs of a trace as a function of examples and parameters."""

    def __init__(
        self,
        made: Trace,
        outputs: Sequence[Any],
        tables: Sequence[str],
        kept: Sequence[tf.Variable] = (),
        stream: object = None,
    ):
        """Take what `outputs` need; of `tables` that is rows. See `Template` for `kept` and `stream`."""
        self._stream = stream
        needed = find_ancestors([getattr(output, "op", output) for output in outputs], values=made.found)
        self._gathers = [(name, op) for name in tables for op in gathers_of(made, name) if op in needed]
        ids = [op.inputs[1] for _, op in self._gathers]
        samples = [output for op in find_ancestors([i.op for i in ids]) if is_random(op) for output in op.outputs]
        rows = [op.outputs[0] for _, op in self._gathers]
        self._is_random = bool(samples)
        self._choices = Template(made.graph, [*ids, *samples], made.columns, found=made.found)
        self._ids = Template(made.graph, ids, [*made.columns, *samples], found=made.found)
        self._outputs = Template(made.graph, outputs, [*made.columns, *samples, *rows], kept, made.found)
        self.constants: dict[str, tf.Tensor] = {}  # values of what never changes, by name: large constants, say
        templates = (self._choices, self._ids, self._outputs)
        self.large = {op.name: op for template in templates for op in template.large}

    def check_python(self, what: str) -> None:
        """Raise an UnusableError if a Python function is called; `what` says why none can be."""
        self._outputs.check_python(what)

    def build_lookups(self, columns: Sequence[tf.Tensor]) -> Lookups:
        """Build which rows of each table some examples need."""
        if not self._gathers:
            return Lookups({}, [])
        results = self._choices.copy(columns, self.constants, "lookups", self._stream)
        num_ids = len(self._gathers)
        ids: dict[str, list[tf.Tensor]] = {}
        for (name, _), of_gather in zip(self._gathers, results[:num_ids], strict=True):
            ids.setdefault(name, []).append(tf.reshape(tf.cast(of_gather, tf.int64), [-1]))
        return Lookups({name: tf.concat(parts, axis=0) for name, parts in ids.items()}, results[num_ids:])

    def build(
        self,
        columns: Sequence[tf.Tensor],
        parameters: Parameters,
        name: str,
        samples: Sequence[tf.Tensor] = (),
    ) -> tuple[list[Any], list[tuple[str, tf.Tensor]]]:
        """Build the outputs, and for each lookup its table and the places of its ids among the rows that are there.

        Without `samples`, random rows are chosen here: of whole tables, or none would be there.
        """
        if self._is_random and not samples:
            samples = self.build_lookups(columns).samples
        values = {name: value for name, value in parameters.items() if not isinstance(value, Rows)}
        values = self.constants | values
        if self._outputs.needs(GLOBAL_STEP) and GLOBAL_STEP not in values:
            values[GLOBAL_STEP] = build_global_step()
        lookups, rows = [], []
        if self._gathers:
            all_ids = self._ids.copy([*columns, *samples], self.constants, "ids")
            for (table, _), ids in zip(self._gathers, all_ids, strict=True):
                parameter = parameters[table]
                if isinstance(parameter, Rows):
                    lookups.append((table, find_places(parameter, ids)))
                    rows.append(tf.gather(parameter.values, lookups[-1][1]))
                else:
                    rows.append(tf.gather(parameter, ids))
        return self._outputs.copy([*columns, *samples, *rows], values, name, self._stream), lookups


def make_constants(computations: Sequence[Computation], variables: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """Let computations use copies, on this worker, of what never changes, which each session makes anew.

    These are `variables`, whose copies are returned, and large constants, of which the graph has none.
    """
    of_variables = {name: _make_copy(name, tf.convert_to_tensor(variable)) for name, variable in variables.items()}
    copies = dict[bytes, tf.Tensor]()  # by the checksum: tests have the same constants as training
    for computation in computations:
        computation.constants = dict(of_variables)
        for name, op in computation.large.items():
            value = value_of(op)
            key = hashlib.sha256(repr((value.shape, value.dtype)).encode() + value.tobytes()).digest()
            if key not in copies:
                made = tf.numpy_function(lambda value=value: value, [], value.dtype)
                copies[key] = _make_copy(name, tf.ensure_shape(made, value.shape))
            computation.constants[name] = copies[key]
    return of_variables


def _make_copy(name: str, value: tf.Tensor) -> tf.Tensor:
    keys = [tf.GraphKeys.LOCAL_VARIABLES]
    return tf.Variable(value, trainable=False, collections=keys, name=f"{name}/copy").read_value()


def build_global_step() -> tf.Tensor:
    """Build the global step, int64 [], once in a run, as a model sees it."""
    variable = tf.train.get_global_step()
    with tf.control_dependencies(None):  # it is not part of any loop
        if variable is None:
            return tf.zeros([], tf.int64)
        with tf.device(variable.device):
            return variable.read_value()


def gathers_of(made: Trace, name: str) -> list[tf.Operation]:
    """Return the lookups in a variable of a trace."""
    consumers = made.variables[name].handle.consumers() if name in made.variables else []
    return [op for op in consumers if op.type == "ResourceGather"]
