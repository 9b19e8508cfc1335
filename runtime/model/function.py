"""The model as a function: from examples and parameters to a loss, gradients and measures.

Of the variables that a user's functions make, a *parameter* is one that the loss has a gradient for. A *table* is a
parameter of which rows are looked up, and nothing else. *State* is what only an assignment changes, such as the moving
averages of batch normalisation: the difference that it makes travels with the gradients. All else is *frozen*.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.errors import UnusableError
from runtime.model.template import Template, control_flow_v2, find_ancestors
from runtime.model.trace import CHANGES, Trace, build_total_loss, trace, traced_as_users_expect
from runtime.tables import Lookups, Parameters, Rows, add_rows, find_places
from runtime.users_files import Files

GLOBAL_STEP = tf.GraphKeys.GLOBAL_STEP  # "global_step", the name of the variable


class Computation:
    """Some outputs of a trace as a function of examples and parameters."""

    def __init__(
        self,
        made: Trace,
        outputs: Sequence[Any],
        tables: Sequence[str],
        kept: Sequence[tf.Variable] = (),
        others: Sequence[Any] = (),
    ):
        """Take what `outputs` need; of `tables` that is rows, those of `others` too. See `Template` for `kept`."""
        needed = find_ancestors([getattr(output, "op", output) for output in (*outputs, *others)])
        self._gathers = [(name, op) for name in tables for op in gathers_of(made, name) if op in needed]
        ids = [op.inputs[1] for _, op in self._gathers]
        samples = [output for op in find_ancestors([i.op for i in ids]) if is_random(op) for output in op.outputs]
        rows = [op.outputs[0] for _, op in self._gathers]
        self._is_random = bool(samples)
        self._choices = Template(made.graph, [*ids, *samples], made.columns)
        self._ids = Template(made.graph, ids, [*made.columns, *samples])
        self._outputs = Template(made.graph, outputs, [*made.columns, *samples, *rows], kept)

    @property
    def calls_python(self) -> bool:
        """Whether there is a Python function in it."""
        return self._outputs.has(("PyFunc", "PyFuncStateless", "EagerPyFunc"))

    def build_lookups(self, columns: Sequence[tf.Tensor], stream: object = None) -> Lookups:
        """Build which rows of each table some examples need."""
        if not self._gathers:
            return Lookups({}, [])
        results = self._choices.copy(columns, {}, "lookups", stream)
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
        stream: object = None,
    ) -> tuple[list[Any], list[tuple[str, tf.Tensor]]]:
        """Build the outputs, and for each lookup its table and the places of its ids among the rows that are there.

        Without `samples`, random rows are chosen here: of whole tables, or none would be there.
        """
        if self._is_random and not samples:
            samples = self.build_lookups(columns, stream).samples
        values = {name: value for name, value in parameters.items() if not isinstance(value, Rows)}
        if self._outputs.needs(GLOBAL_STEP):
            values[GLOBAL_STEP] = build_global_step()
        lookups, rows = [], []
        if self._gathers:
            for (table, _), ids in zip(self._gathers, self._ids.copy([*columns, *samples], {}, "ids"), strict=True):
                parameter = parameters[table]
                if isinstance(parameter, Rows):
                    lookups.append((table, find_places(parameter, ids)))
                    rows.append(tf.gather(parameter.values, lookups[-1][1]))
                else:
                    rows.append(tf.gather(parameter, ids))
        return self._outputs.copy([*columns, *samples, *rows], values, name, stream), lookups


class Serving(NamedTuple):
    """What is served: a graph from inputs to outputs."""

    inputs: dict[str, tf.Tensor]  # placeholders
    outputs: dict[str, tf.Tensor]


class Own(NamedTuple):
    """How a user's model is trained, where it says so itself."""

    build_optimizer: Callable[..., Any] | None = None  # from a rate: a `tf.train.Optimizer`, or some by variable scope
    build_learning_rate: Callable[[tf.Tensor], tf.Tensor] | None = None  # float32 [], from the global step


class Measured(NamedTuple):
    """What a model says of some examples."""

    loss: tf.Tensor  # float32 [], averaged over them
    means: dict[str, tf.Tensor]  # the metrics that are means over them, float32 []
    updates: dict[str, tf.Tensor]  # those that need all examples: what takes these into account
    values: dict[str, tf.Tensor]  # of `updates`, float32 [], once all are
    reset: list[tf.Operation]  # begins anew
    logits: Any
    labels: Any
    names: list[str]  # of all metrics, the most important one first


class Model:
    """A user's model, of which any part can be built with any parameters."""

    def __init__(
        self,
        files: Files,
        signature: Sequence[tf.TensorSpec],
        seed: int,
        stream: str,
        may_have_tables: Callable[[Own], bool],
        is_stepwise: bool,
    ):
        """Trace it, for training and for tests.

        Args:
          files: the user's.
          signature: the columns of one example, as they lie in memory.
          seed: of initial values, and of other random numbers.
          stream: tells this worker's random numbers from those of others.
          may_have_tables: tells, of `own`, whether workers can train rows of tables.
          is_stepwise: whether rows are chosen for each batch, so that their ids may be random.

        Raises:
          UnusableError: what the files say cannot be trained.
        """
        self._files, self._stream = files, stream
        self.own = Own(files.function("build_optimizer"), self._take_learning_rate())
        self.constants: dict[str, tf.Tensor] = {}  # the values of what is frozen, where they are no parameters
        self.training = made = trace(files, signature, is_training=True, seed=seed)
        self.test = trace(files, signature, is_training=False, seed=seed)
        if unknown := self.test.variables.keys() - made.variables.keys():
            place, names = files.place_of(self.test.variables[min(unknown)]), ", ".join(sorted(unknown))
            raise UnusableError(f"{place}: {names} is not made for training: make it always")
        total = build_total_loss(made)
        of_graph = made.graph.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES)
        trainable = [v.op.name for v in of_graph if v.op.name in made.variables]
        self.tables = [name for name in trainable if self._is_table(name, total, is_stepwise)]
        if self.tables and not may_have_tables(self.own):
            logging.warning(
                "%s: sent as a whole, since only plain SGD takes local steps on rows", ", ".join(self.tables)
            )
            self.tables = []
        self._find_gradients(total, trainable)
        self._find_changes(total)
        self.frozen = [n for n in made.variables if n not in {*self.parameters, *self.tables, *self.state}]
        gradients = [self._gradients[name] for name in self.parameters]
        of_rows = [gradient for table in self.tables for gradient in self._gradients_of_rows[table]]
        outputs = [total, *gradients, *of_rows, *self._changes]
        self._take_summaries()
        self._training = Computation(made, outputs, self.tables, others=self.summaries)
        self._summaries = Computation(made, self.summaries, self.tables, others=outputs)
        self._test = self._take_test()

    @property
    def input_spec(self) -> tf.TensorSpec | None:
        """What an input is, where a model has one."""
        specs = list(self._files.inputs.values())
        return specs[0] if len(specs) == 1 else None

    # What the variables are

    def _is_table(self, name: str, total: tf.Tensor, is_stepwise: bool) -> bool:
        """Return whether rows of a variable are looked up, and nothing else is done with it."""
        variable = self.training.variables[name]
        is_matrix = variable.shape.rank == 2 and variable.dtype.base_dtype == tf.float32
        if not (is_matrix and gathers_of(self.training, name)):
            return False
        for made, results in ((self.training, [total]), (self.test, [self.test.loss, *_flat(self.test.metrics)])):
            if name not in made.variables:
                continue
            results += [*_flat(made.logits), *_flat(made.predictions)]
            results += made.graph.get_collection(tf.GraphKeys.UPDATE_OPS)
            needed = find_ancestors([getattr(result, "op", result) for result in results])
            uses = [op for op in made.variables[name].handle.consumers() if op in needed]
            if any(op.type != "ResourceGather" or op.get_attr("batch_dims") for op in uses):
                return False
            ancestors = find_ancestors([op.inputs[1].op for op in uses])
            if any(op.type in ("ReadVariableOp", "ResourceGather") for op in ancestors):
                return False
            if not is_stepwise and any(map(is_random, ancestors)):
                return False
        return True

    def _find_gradients(self, total: tf.Tensor, trainable: Sequence[str]) -> None:
        """Find what the loss has gradients for, and build these in the traced graph."""
        made = self.training
        dense = [name for name in trainable if name not in self.tables]
        gathers = {name: gathers_of(made, name) for name in self.tables}
        targets = [made.variables[name] for name in dense]
        rows = [op.outputs[0] for name in self.tables for op in gathers[name]]
        with control_flow_v2(), made.graph.as_default():
            gradients = [g if g is None else tf.convert_to_tensor(g) for g in tf.gradients(total, targets + rows)]
            of_rows = iter(gradients[len(dense) :])
            self._gradients_of_rows = {
                name: [_or_zeros(next(of_rows), op.outputs[0]) for op in gathers[name]] for name in self.tables
            }
        self._gradients = {n: g for n, g in zip(dense, gradients, strict=False) if g is not None}
        self.parameters = list(self._gradients)
        for name in self.parameters:
            if (dtype := made.variables[name].dtype.base_dtype) != tf.float32:
                place = self._files.place_of(made.variables[name])
                raise UnusableError(f"{place}: {name} is {dtype.name}, but what is trained must be float32")
        used = find_ancestors([t.op for t in [total, *_flat(made.logits)]])
        for name in dense:
            if name not in self._gradients and not used.intersection(made.variables[name].handle.consumers()):
                place = self._files.place_of(made.variables[name])
                raise UnusableError(f"{place}: the loss does not depend on {name}: use it, or do not make it")

    def _find_changes(self, total: tf.Tensor) -> None:
        """Find the assignments that belong to a step, and build by how much they lower each variable."""
        made = self.training
        updates = made.graph.get_collection(tf.GraphKeys.UPDATE_OPS)
        steps = find_ancestors([getattr(update, "op", update) for update in [*updates, total]])
        changes: dict[str, list[tf.Tensor]] = {}
        with made.graph.as_default():
            for name, variable in made.variables.items():
                for op in variable.handle.consumers():
                    if op.type.startswith(("ResourceApply", "ResourceSparseApply")):
                        place = self._files.place_of(op)
                        raise UnusableError(f"{place}: an optimizer changes {name}: return it from build_optimizer()")
                    if op not in steps or not op.type.startswith(("Assign", "ResourceScatter")):
                        continue
                    place = self._files.place_of(op)
                    if op.type not in CHANGES or variable.dtype.base_dtype != tf.float32:
                        raise UnusableError(
                            f"{place}: {op.type} of {name}, {variable.dtype.name}, cannot be done by workers"
                        )
                    if name in (*self.parameters, *self.tables):
                        raise UnusableError(f"{place}: {name} is trained, so no other assignment may change it")
                    change = op.inputs[1]
                    if op.type == "AssignAddVariableOp":
                        change = -change
                    if op.type == "AssignVariableOp":
                        change = variable.read_value() - change
                    changes.setdefault(name, []).append(change)
            self.state = list(changes)
            self._changes = [tf.add_n(parts) for parts in changes.values()]

    def _take_learning_rate(self) -> Callable[[tf.Tensor], tf.Tensor] | None:
        """Take the user's learning rate for a function of the global step."""
        build = self._files.function("build_learning_rate")
        if not build:
            return None
        with tf.Graph().as_default() as graph, traced_as_users_expect({}):
            steps = tf.placeholder(tf.int64, [], "global_step")
            rate = tf.cast(tf.convert_to_tensor(build(steps)), tf.float32)
        template = Template(graph, [rate], [steps])
        return lambda steps: template.copy([steps], {}, "learning_rate")[0]

    # What a worker builds

    def build_lookups(self, columns: Sequence[tf.Tensor]) -> Lookups:
        """Build which rows of the tables a worker needs to train on some examples."""
        return self._training.build_lookups(columns, self._stream)

    def build_gradients(
        self, parameters: Parameters, columns: Sequence[tf.Tensor], samples: Sequence[tf.Tensor] = ()
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Build the loss of a batch, float32 [], and by how much a step of rate 1 lowers each variable.

        Args:
          parameters: of all variables.
          columns: of the batch.
          samples: the random numbers that chose the rows in `parameters`, if any did.

        Returns:
          The loss; and by name, the gradients of the parameters, of the rows of tables, and the changes of state.
        """
        (loss, *results), lookups = self._training.build(
            columns, {**self.constants, **parameters}, "model", samples, self._stream
        )
        lowers = dict(zip(self.parameters, results, strict=False))
        of_rows = results[len(self.parameters) : len(results) - len(self.state)]
        lowers |= add_rows(parameters, lookups, of_rows)
        lowers |= dict(zip(self.state, results[len(results) - len(self.state) :], strict=True))
        return loss, lowers

    # What is measured

    def _take_test(self) -> Computation:
        made = self.test
        pairs = {name: metric for name, metric in made.metrics.items() if isinstance(metric, tuple)}
        self._means = [name for name in made.metrics if name not in pairs]
        self._pairs = list(pairs)
        kept = made.graph.get_collection(tf.GraphKeys.LOCAL_VARIABLES) if pairs else []
        outputs = [made.loss, *(made.metrics[name] for name in self._means)]
        outputs += [update for _, update in pairs.values()] + [value for value, _ in pairs.values()]
        outputs += [variable.initializer for variable in kept]
        outputs += _flat([made.logits, made.labels])
        self._num_reset = len(kept)
        return Computation(made, outputs, self.tables, kept)

    def build_measures(
        self, parameters: Parameters, columns: Sequence[tf.Tensor], samples: Sequence[tf.Tensor] = ()
    ) -> Measured:
        """Build what the model says of some examples, as in a test; `samples` chose the rows in `parameters`."""
        results = iter(self._test.build(columns, {**self.constants, **parameters}, "measures", samples)[0])
        loss = next(results)
        means = {name: next(results) for name in self._means}
        updates = {name: next(results) for name in self._pairs}
        values = {name: next(results) for name in self._pairs}
        (*reset,) = (next(results) for _ in range(self._num_reset))
        logits, labels = tf.nest.map_structure(
            lambda part: next(results) if isinstance(part, tf.Tensor) else part, [self.test.logits, self.test.labels]
        )
        return Measured(loss, means, updates, values, reset, logits, labels, list(self.test.metrics))

    def _take_summaries(self) -> None:
        """Take the user's summaries, but for those that need the whole of a table."""
        made = self.training
        reads = {
            op for name in self.tables for op in made.variables[name].handle.consumers() if op.type == "ReadVariableOp"
        }
        found = made.graph.get_collection(tf.GraphKeys.SUMMARIES)
        self.summaries = [summary for summary in found if not reads & find_ancestors([summary.op])]
        for summary in found:
            if summary not in self.summaries:
                logging.warning("%s: no summary of a whole table is written", self._files.place_of(summary))

    def build_summaries(
        self, parameters: Parameters, columns: Sequence[tf.Tensor], samples: Sequence[tf.Tensor] = ()
    ) -> list[tf.Tensor]:
        """Build the user's summaries of a batch; `samples` chose the rows in `parameters`."""
        values = {**self.constants, **parameters}
        results, _ = self._summaries.build(columns, values, "summaries", samples, self._stream)
        return results

    def build_lookup_tables(self) -> None:
        """Build what initialises the lookup tables of the user, as `tf.tables_initializer()` runs it."""
        for made in (self.training, self.test):
            initializers = made.graph.get_collection(tf.GraphKeys.TABLE_INITIALIZERS)
            if initializers:
                for initializer in Template(made.graph, initializers, []).copy([], {}, "lookup_tables"):
                    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, initializer)

    def build_serving(self, parameters: Parameters) -> Serving:
        """Build what an exported model computes, from its inputs as `INPUT` says, such as uint8 [n, 28, 28].

        Raises:
          UnusableError: the outputs need what a served model has not.
        """
        made = self.test
        inputs = {
            name: tf.placeholder(spec.dtype, [None, *spec.shape], name) for name, spec in self._files.inputs.items()
        }
        columns = [
            tf.reshape(tensor, [-1, *column.shape[1:]])
            for tensor, column in zip(inputs.values(), made.columns, strict=False)
        ]
        names, outputs = list(made.predictions), list(made.predictions.values())
        needed = find_ancestors([output.op for output in outputs])
        if any(column.op in needed for column in made.columns[len(columns) :]):
            raise UnusableError("model.py: what is exported depends on the labels, which nobody will know")
        computation = Computation(made, outputs, self.tables)
        if computation.calls_python:
            raise UnusableError("model.py: what is exported calls a Python function, which no other program has")
        columns += made.columns[len(columns) :]
        self.build_lookup_tables()
        results, _ = computation.build(columns, parameters, "serving")
        return Serving(inputs, dict(zip(names, results, strict=True)))

    def build_test_lookups(self, columns: Sequence[tf.Tensor]) -> Lookups:
        """Build which rows of the tables a test of some examples needs."""
        return self._test.build_lookups(columns)

    def build_summary_lookups(self, columns: Sequence[tf.Tensor]) -> Lookups:
        """Build which rows of the tables the user's summaries of a batch need."""
        return self._summaries.build_lookups(columns, self._stream)


def build_global_step() -> tf.Tensor:
    """Build the global step, int64 [], once in a run, as a model sees it; an exported one sees 0."""
    variable = tf.train.get_global_step()
    with tf.control_dependencies(None):  # it is no part of any loop
        if variable is None:
            return tf.zeros([], tf.int64)
        with tf.device(variable.device):
            return variable.read_value()


def is_random(op: tf.Operation) -> bool:
    """Return whether an op has another result in each run."""
    return "seed2" in op.node_def.attr


def gathers_of(made: Trace, name: str) -> list[tf.Operation]:
    """Return the lookups in a variable of a trace."""
    return (
        [op for op in made.variables[name].handle.consumers() if op.type == "ResourceGather"]
        if name in made.variables
        else []
    )


def _flat(structure: Any) -> list[tf.Tensor]:
    return [tensor for tensor in tf.nest.flatten(structure) if isinstance(tensor, tf.Tensor)]


def _or_zeros(gradient: tf.Tensor | None, rows: tf.Tensor) -> tf.Tensor:
    return tf.zeros_like(rows) if gradient is None else gradient
