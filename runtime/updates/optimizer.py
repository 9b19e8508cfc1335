"""Optimizers.

An optimizer is taken for a function of gradients and a rate: called once, in a graph of its own, and copied for each
update. So whatever it makes, it makes once, under the names that its variables have for it, and Python in it runs once.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.model.computation import GLOBAL_STEP
from runtime.model.function import Own
from runtime.model.ops import control_flow_v2, find_ancestors
from runtime.model.template import Template
from runtime.model.variables import build_first_values
from runtime.process.errors import UnusableError
from runtime.process.phases import find_place_of

# Returns an optimizer, given its learning rate, float32 []. `tf.train.get_global_step()` counts the updates before.
OptimizerMaker = Callable[[tf.Tensor], Any]

OPTIMIZERS = ("adam", "adagrad", "momentum", "nesterov", "sgd")
MOMENTUM = 0.9
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8  # of Adam
REDUCTIONS = ("Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "L2Loss", "EuclideanNorm")
COPIES = "copies"  # the scope of a worker's copies of the parameters, and of the state that belongs to them


class Optimizer:
    """What an optimizer does to some variables, and the state that it keeps for that."""

    def __init__(
        self,
        make: OptimizerMaker,
        variables: Mapping[str, tf.Variable],
        num_sparse: int = 0,
        build_value: Callable[[str], tf.Tensor] | None = None,
        is_of_part: bool = False,
    ):
        """Call the optimizer, and make its state.

        Args:
          make: makes it.
          variables: what it changes, by the names that it sees.
          num_sparse: of how many of them, the last ones, gradients are `tf.IndexedSlices`.
          build_value: builds that with which one of them begins, of copies on a worker. Then the state is local, too.
          is_of_part: whether other optimizers change the rest of the model, or of the variables.

        Raises:
          UnusableError: it does what no copy can do.
        """
        own: dict[str, tf.Variable] = {}  # what it makes

        def create(next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
            variable = next_creator(**{**kwargs, "use_resource": True})
            own[variable.op.name] = variable
            return variable

        seed = tf.get_default_graph().seed
        with tf.Graph().as_default() as graph, control_flow_v2():
            tf.set_random_seed(seed)
            step = tf.train.create_global_step()
            traced = {name: _trace(name, variable) for name, variable in variables.items()}
            with tf.name_scope("given"):
                rate = tf.placeholder(tf.float32, [], "learning_rate")
                are_sparse = [number >= len(traced) - num_sparse for number in range(len(traced))]
                gradients = [_trace_gradient(*pair) for pair in zip(traced.values(), are_sparse, strict=True)]
            with tf.variable_creator_scope(create):
                optimizer = make(rate)
                applied = optimizer.apply_gradients(list(zip(gradients, traced.values(), strict=True)))
            if graph.get_collection(tf.GraphKeys.SUMMARIES):
                logging.warning("model.py: an optimizer's summaries are not written")
        known = {
            name: functools.partial(build_value, name) if build_value else lambda of=variable: of.initial_value
            for name, variable in variables.items()
        }
        named = {**traced, **own, step.op.name: step}
        state = {}
        with tf.name_scope(COPIES if build_value else None), tf.control_dependencies(None):
            firsts = build_first_values(graph, named, [*own], known) if own else []
            keys = [tf.GraphKeys.LOCAL_VARIABLES if build_value else tf.GraphKeys.GLOBAL_VARIABLES]
            for (name, variable), first in zip(own.items(), firsts, strict=True):
                state[name] = tf.Variable(first, trainable=False, name=name, shape=variable.shape, collections=keys)
                state[name]._set_save_slice_info(variable._get_save_slice_info())  # the slots of a slice are slices
        self._handles = [variable.handle for variable in [*variables.values(), *state.values()]]
        kept = [*traced.values(), *own.values()]
        given = [*_flatten(gradients), *(variable.handle for variable in kept)]
        self._template = Template(graph, [applied], [rate, *given], kept)
        where = getattr(optimizer, "where", "model.py: build_optimizer()")
        _check(graph, step, [*traced.values()], self._template, given if is_of_part else [], where)

    def apply(self, gradients: Sequence[Any], rate: tf.Tensor, num_updates: tf.Tensor) -> tf.Operation:
        """Build an update, given how many there were before, int64 []."""
        given = [rate, *_flatten(gradients), *self._handles]
        (applied,) = self._template.copy(given, {GLOBAL_STEP: num_updates}, "update", stream="update")
        return getattr(applied, "op", applied)


def _trace(name: str, variable: tf.Variable) -> tf.Variable:
    """Make a variable that stands for another one."""
    first = tf.placeholder(variable.dtype, variable.shape)
    traced = tf.Variable(first, shape=variable.shape, name=name, validate_shape=False)
    traced.initialized_value = lambda: first
    traced._set_save_slice_info(variable._get_save_slice_info())
    return traced


def _check(
    graph: tf.Graph,
    step: tf.Variable,
    variables: Sequence[tf.Variable],
    template: Template,
    of_parts: Sequence[tf.Tensor],
    where: str,
) -> None:
    """Check that the `template` of an optimizer, made `where`, in `graph`, does what its copies can do.

    Each copy is given a part `of_parts`, and none may compute over that.
    """

    def refuse(op: tf.Operation, problem: str) -> NoReturn:
        place = find_place_of(op)
        raise UnusableError(f"{place}: build_optimizer() {problem}" if place else f"{where} {problem}")

    for update in graph.get_collection(tf.GraphKeys.UPDATE_OPS):
        refuse(getattr(update, "op", update), "has an update that nothing runs: return it, grouped with the others")
    changes = {op for variable in variables for op in variable.handle.consumers() if op.type != "ReadVariableOp"}
    for read in step.handle.consumers():
        if changes & find_ancestors([read]):
            problem = "reads the global step after an update, but before it is incremented"
            refuse(read, f"{problem}: read it before, and add 1")
    template.check_python("a ps cannot run it: use TensorFlow's ops")
    for op in template.find(["Cast"]):
        if op.inputs[0].dtype == tf.string:
            refuse(op, "gets a string as a number, such as its learning rate: give a float")
    for op in template.find(REDUCTIONS):
        if find_ancestors([op]).intersection(part.op for part in of_parts):
            problem = "computes over many values here, such as a norm, and each ps has only a part of the model"
            refuse(op, f"{problem}: use one ps, --local_steps or, to clip, --clip_norm")


def _trace_gradient(variable: tf.Variable, is_sparse: bool) -> tf.Tensor | tf.IndexedSlices:
    if not is_sparse:
        return tf.placeholder(tf.float32, variable.shape)
    rows = tf.placeholder(tf.float32, [None, *variable.shape[1:]])
    return tf.IndexedSlices(rows, tf.placeholder(tf.int32, [None]), tf.constant(variable.shape.as_list()))


def _flatten(gradients: Sequence[Any]) -> list[tf.Tensor]:
    parts = [[g.values, tf.cast(g.indices, tf.int32)] if isinstance(g, tf.IndexedSlices) else [g] for g in gradients]
    return [part for of_gradient in parts for part in of_gradient]


def make_optimizer(learning_rate: tf.Tensor, name: str, own: Own, num_updates: tf.Variable | None = None) -> Any:
    """Return an optimizer.

    Args:
      learning_rate: float32 [].
      name: one of `OPTIMIZERS`.
      own: the user's, which comes before `name`.
      num_updates: int64 [], counts the updates; or None, and Adam counts them itself.
    """
    if own.build_optimizer:
        return own.build_optimizer(learning_rate)
    if name == "adam" and num_updates is not None:
        return CountedAdamOptimizer(learning_rate, num_updates)
    if name == "adam":
        return tf.train.AdamOptimizer(learning_rate)
    if name == "adagrad":
        return tf.train.AdagradOptimizer(learning_rate)
    if name in ("momentum", "nesterov"):
        return tf.train.MomentumOptimizer(learning_rate, MOMENTUM, use_nesterov=name == "nesterov")
    return tf.train.GradientDescentOptimizer(learning_rate)


class CountedAdamOptimizer(tf.train.Optimizer):
    """Adam; of a table it leaves all rows alone that a gradient does not have, where Adam would move them on.

    It computes the powers of beta from a counter, where TensorFlow's Adam keeps two variables for all its parameters.

    These would lie on one ps, and each step would send them to the others. Checkpoints hold the slots under the names
    that TensorFlow's Adam gives them. The methods are those that `tf.train.Optimizer` asks its subclasses for.
    """

    def __init__(self, learning_rate: tf.Tensor, num_updates: tf.Variable):
        """Take `num_updates`, int64 [], for the number of updates so far; the caller advances it after each."""
        super().__init__(use_locking=False, name="Adam")
        self._learning_rate, self._num_updates = learning_rate, num_updates

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        for variable in var_list:
            self._zeros_slot(variable, "m", self.get_name())
            self._zeros_slot(variable, "v", self.get_name())

    def _prepare(self) -> None:
        number = tf.cast(self._num_updates.read_value() + 1, tf.float32)
        self._powers = {"beta1_power": BETA_1**number, "beta2_power": BETA_2**number}

    def _resource_apply_dense(self, grad: tf.Tensor, handle: tf.Variable) -> tf.Operation:
        return tf.raw_ops.ResourceApplyAdam(
            var=handle.handle,
            m=self.get_slot(handle, "m").handle,
            v=self.get_slot(handle, "v").handle,
            **self._powers,
            lr=self._learning_rate,
            beta1=BETA_1,
            beta2=BETA_2,
            epsilon=EPSILON,
            grad=grad,
        )

    def _resource_apply_sparse(self, grad: tf.Tensor, handle: tf.Variable, indices: tf.Tensor) -> tf.Operation:
        m, v = self.get_slot(handle, "m"), self.get_slot(handle, "v")
        mean = BETA_1 * m.sparse_read(indices) + (1 - BETA_1) * grad
        variance = BETA_2 * v.sparse_read(indices) + (1 - BETA_2) * grad**2
        rate = self._learning_rate * tf.sqrt(1 - self._powers["beta2_power"]) / (1 - self._powers["beta1_power"])
        change = rate * mean / (tf.sqrt(variance) + EPSILON)
        with tf.control_dependencies([change]):
            return tf.group(
                m.scatter_update(tf.IndexedSlices(mean, indices)),
                v.scatter_update(tf.IndexedSlices(variance, indices)),
                handle.scatter_sub(tf.IndexedSlices(change, indices)),
            )
