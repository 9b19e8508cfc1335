"""The model as a function: from examples and parameters to a loss, gradients and measures."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.model.computation import Computation, make_constants
from runtime.model.digest import JOINS, digest_uses
from runtime.model.files import Files, ScopedOptimizers
from runtime.model.ops import find_ancestors
from runtime.model.roles import find_roles, flat
from runtime.model.template import Template
from runtime.model.trace import Trace, trace, traced_as_users_expect
from runtime.model.variables import Parameters, add_rows
from runtime.process.errors import UnusableError
from runtime.process.phases import preparing


class Serving(NamedTuple):
    """What is served: a graph from inputs to outputs."""

    inputs: dict[str, tf.Tensor]  # placeholders
    outputs: dict[str, tf.Tensor]
    class_names: Sequence[str]  # by their labels, if they have any


class Own(NamedTuple):
    """How a user's model is trained, where it says so itself."""

    build_optimizer: Callable[[tf.Tensor], ScopedOptimizers] | None = None  # from a rate, float32 []
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

    @preparing()
    def __init__(
        self,
        files: Files,
        signature: Any,
        seed: int,
        stream: str,
        may_have_tables: Callable[[Own], bool],
        is_stepwise: bool,
    ):
        """Trace it, for training and for tests.

        Args:
          files: the user's.
          signature: the columns of one example, in any structure.
          seed: of initial values, and of other random numbers.
          stream: tells this worker's random numbers from those of others.
          may_have_tables: tells, of `own`, whether workers can train rows of tables.
          is_stepwise: whether rows are chosen for each batch, so that their ids may be random.

        Raises:
          UnusableError: what the files say cannot be trained.
        """
        self._files = files
        self.class_names: list[str] = []  # by their labels: see `name_classes()`
        self.own = Own(files.build_optimizer if files.has("build_optimizer") else None, self._take_learning_rate())
        self.constants: dict[str, tf.Tensor] = {}  # the values of what is frozen, where they are no parameters
        made = trace(files, signature, is_training=True, seed=seed)
        test = trace(files, signature, is_training=False, seed=seed, reusable=made.variables)
        if unknown := test.variables.keys() - made.variables.keys():
            place, names = files.place_of(test.variables[min(unknown)]), ", ".join(sorted(unknown))
            raise UnusableError(
                f"{place}: {names} is created only for tests: create it always, or in a metric with"
                " collections=[tf.GraphKeys.LOCAL_VARIABLES]"
            )
        self.uses = digest_uses(made)  # first: gradients change the loops that they are of
        self.kept_uses = digest_uses(made, JOINS)  # by them those that have exchanged their places are found
        roles = find_roles(files, made, test, may_have_tables(self.own), is_stepwise)
        self.parameters, self.tables, self.state, self.frozen, outputs, self.training, self.test = roles
        self._take_summaries()
        # What a worker computes, each from examples and parameters.
        self.in_training = Computation(self.training, outputs, self.tables, stream=stream)
        self.in_summaries = Computation(self.training, self.summaries, self.tables, stream=stream)
        self.in_tests = self._take_test()

    @property
    def input_spec(self) -> tf.TensorSpec | None:
        """What an input is, where a model has one."""
        specs = list(self._files.inputs.values())
        return specs[0] if len(specs) == 1 else None

    def name_classes(self, data_dir: str) -> None:
        """Take the names of the classes from the user's files, if they have some.

        Raises:
          UnusableError: the names are not those of its classes.
        """
        num_classes = self.test.logits.shape[-1] if self.test.is_of_classes else 0
        self.class_names = self._files.name_classes(data_dir, num_classes)

    def _take_learning_rate(self) -> Callable[[tf.Tensor], tf.Tensor] | None:
        """Take the user's learning rate for a function of the global step."""
        if not self._files.has("build_learning_rate"):
            return None
        with tf.Graph().as_default() as graph, traced_as_users_expect({}, {}):
            steps = tf.placeholder(tf.int64, [], "global_step")
            rate = self._files.build_learning_rate(steps)
        if variables := graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES):
            place, name = self._files.place_of(variables[0]), variables[0].op.name
            raise UnusableError(f"{place}: build_learning_rate() creates {name}: compute the rate from the step alone")
        template = Template(graph, [rate], [steps])
        template.check_python("a ps cannot run it: use TensorFlow's ops")
        return lambda steps: template.copy([steps], {}, "rate")[0]

    def make_constants(self, variables: Mapping[str, Any]) -> None:
        """Compute with copies of what never changes, on this worker: see `computation.make_constants()`."""
        self.constants = make_constants([self.in_training, self.in_summaries, self.in_tests], variables)

    def build_gradients(
        self, parameters: Parameters, columns: Sequence[tf.Tensor], samples: Sequence[tf.Tensor] = ()
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Build the loss of a batch, float32 [], and what a step of rate 1 does to each variable.

        Args:
          parameters: of all variables.
          columns: of the batch.
          samples: the random numbers that chose the rows in `parameters`, if any did.

        Returns:
          The loss; and by name, the gradients of the parameters and of the rows of tables, and the changes of state:
          by how much a step lowers it, or the value that the step sets.
        """
        (loss, *results), lookups = self.in_training.build(columns, parameters, "model", samples)
        lowers = dict(zip(self.parameters, results, strict=False))
        of_rows = results[len(self.parameters) : len(results) - len(self.state)]
        lowers |= add_rows(parameters, lookups, of_rows)
        lowers |= dict(zip(self.state, results[len(results) - len(self.state) :], strict=True))
        return loss, lowers

    def _take_test(self) -> Computation:
        made = self.test
        pairs = {name: metric for name, metric in made.metrics.items() if isinstance(metric, tuple)}
        self._means = [name for name in made.metrics if name not in pairs]
        self._pairs = list(pairs)
        kept = made.graph.get_collection(tf.GraphKeys.LOCAL_VARIABLES) if pairs else []
        outputs = [made.loss, *(made.metrics[name] for name in self._means)]
        outputs += [update for _, update in pairs.values()] + [value for value, _ in pairs.values()]
        outputs += [variable.initializer for variable in kept]
        outputs += flat([made.logits, made.labels])
        self._num_reset = len(kept)
        return Computation(made, outputs, self.tables, kept)

    def build_measures(
        self, parameters: Parameters, columns: Sequence[tf.Tensor], samples: Sequence[tf.Tensor] = ()
    ) -> Measured:
        """Build what the model says of some examples, as in a test; `samples` chose the rows in `parameters`."""
        results = iter(self.in_tests.build(columns, parameters, "measures", samples)[0])
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
        self.summaries = [summary for summary in found if not reads & find_ancestors([summary.op], values=made.found)]
        for summary in found:
            if summary not in self.summaries:
                logging.warning("%s: this summary is skipped: it reads a whole table", self._files.place_of(summary))

    def build_summaries(
        self, parameters: Parameters, columns: Sequence[tf.Tensor], samples: Sequence[tf.Tensor] = ()
    ) -> list[tf.Tensor]:
        """Build the user's summaries of a batch; `samples` chose the rows in `parameters`."""
        results, _ = self.in_summaries.build(columns, parameters, "summaries", samples)
        return results

    def build_lookup_tables(self) -> None:
        """Build what initialises the lookup tables of the user, as `tf.tables_initializer()` runs it.

        An exported model has copies of the files that they are read from.
        """
        for made in (self.training, self.test):
            if found := _lookup_tables_of(made):
                copies = Template(made.graph, [output for _, output in found], []).copy([], {}, "lookup_tables")
                for (key, _), copied in zip(found, copies, strict=True):
                    tf.add_to_collection(key, copied)

    def build_serving(self, parameters: Parameters) -> Serving:
        """Build what an exported model computes, from its inputs as `INPUT` says, such as uint8 [n, 28, 28].

        Raises:
          UnusableError: the outputs need what a served model has not.
        """
        made = self.test
        inputs, columns = dict[str, tf.Tensor](), list[tf.Tensor]()
        for (name, spec), column in zip(self._files.inputs.items(), made.columns, strict=False):
            is_padded = not column.shape[1:].is_fully_defined()  # then any length will do, as in training
            shape = column.shape[1:] if is_padded else spec.shape
            inputs[name] = tf.placeholder(spec.dtype, [None, *shape], name)
            columns.append(inputs[name] if is_padded else tf.reshape(inputs[name], [-1, *column.shape[1:]]))
        names, outputs = list(made.predictions), list(made.predictions.values())
        needed = find_ancestors([output.op for output in outputs], values=made.found)
        if any(column.op in needed for column in made.columns[len(columns) :]):
            raise UnusableError(
                "model.py: the exported outputs depend on the labels, which are unknown when the model is served"
            )
        # For the loader of TensorFlow 2 another op is another table: the one that is served must be initialised.
        of_tables = _lookup_tables_of(made)
        computation = Computation(made, [*outputs, *(output for _, output in of_tables)], tables=())
        computation.check_python("an exported model cannot run it: use TensorFlow's ops, or omit --export_dir")
        columns += made.columns[len(columns) :]
        results, _ = computation.build(columns, parameters, "serving")
        for (key, _), copied in zip(of_tables, results[len(names) :], strict=True):
            tf.add_to_collection(key, copied)
        served = dict(zip(names, results, strict=False))
        if self.class_names and made.is_of_classes and not self._files.has("build_predictions"):
            served["names"] = tf.gather(tf.constant([*map(os.fsencode, self.class_names)]), served["classes"])
        return Serving(inputs, served, self.class_names)


def _lookup_tables_of(made: Trace) -> list[tuple[str, Any]]:
    """Return what initialises the lookup tables of a trace, and the files that these are read from, with its key."""
    keys = (tf.GraphKeys.TABLE_INITIALIZERS, tf.GraphKeys.ASSET_FILEPATHS)
    return [(key, output) for key in keys for output in made.graph.get_collection(key)]
