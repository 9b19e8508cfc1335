"""An optimizer as a function of gradients and a rate: called once, in a graph of its own, and copied for each update.

So whatever it makes, it makes once, under the names that its variables have for it, and Python in it runs once.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.model.computation import GLOBAL_STEP
from runtime.model.template import PYTHON, Template, control_flow_v2
from runtime.model.variables import build_first_values
from runtime.process.errors import UnusableError

# Returns an optimizer, given its learning rate, float32 []. `tf.train.get_global_step()` counts the updates before.
OptimizerMaker = Callable[[tf.Tensor], Any]

COPIES = "copies"  # the scope of a worker's copies of the parameters, and of the state that belongs to them


class Optimizer:
    """What an optimizer does to some variables, and the state that it keeps for that."""

    def __init__(
        self,
        make: OptimizerMaker,
        variables: Mapping[str, tf.Variable],
        num_sparse: int = 0,
        build_value: Callable[[str], tf.Tensor] | None = None,
    ):
        """Call the optimizer, and make its state.

        Args:
          make: makes it.
          variables: what it changes, by the names that it sees.
          num_sparse: of how many of them, the last ones, gradients are `tf.IndexedSlices`.
          build_value: builds that with which one of them begins, of copies on a worker. Then the state is local, too.

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
                applied = make(rate).apply_gradients(list(zip(gradients, traced.values(), strict=True)))
            if graph.get_collection(tf.GraphKeys.SUMMARIES):
                logging.warning("model.py: no summary of an optimizer is written")
        if not isinstance(applied, tf.Tensor | tf.Operation):
            raise UnusableError(f"model.py: apply_gradients() must return an op, found {applied!r:.50}")
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
        self._template = Template(graph, [applied], [rate, *_flatten(gradients), *(v.handle for v in kept)], kept)
        if self._template.find(PYTHON):
            raise UnusableError("model.py: build_optimizer() calls a Python function, which no ps has: use ops")

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


def _trace_gradient(variable: tf.Variable, is_sparse: bool) -> tf.Tensor | tf.IndexedSlices:
    if not is_sparse:
        return tf.placeholder(tf.float32, variable.shape)
    rows = tf.placeholder(tf.float32, [None, *variable.shape[1:]])
    return tf.IndexedSlices(rows, tf.placeholder(tf.int32, [None]), tf.constant(variable.shape.as_list()))


def _flatten(gradients: Sequence[Any]) -> list[tf.Tensor]:
    parts = [[g.values, tf.cast(g.indices, tf.int32)] if isinstance(g, tf.IndexedSlices) else [g] for g in gradients]
    return [part for of_gradient in parts for part in of_gradient]
