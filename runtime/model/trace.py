"""The trace: a user's functions, called once, in a graph of their own."""

import contextlib
import functools
import random
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from runtime.model.files import Files
from runtime.model.ops import control_flow_v2, find_ancestors
from runtime.process import environment
from runtime.process.errors import UnusableError
from runtime.process.phases import find_place_of, functions_in

Metric = Any  # float32 [], a mean over the batch; or a pair of a value and an update, as of `tf.metrics`


class Trace(NamedTuple):
    """What the functions have built, of examples of which a batch may have any number."""

    graph: tf.Graph
    columns: list[tf.Tensor]  # placeholders, [b, ...]
    labels: Any  # as `build_loss()` takes them
    logits: Any
    losses: list[tf.Tensor]  # that `decode()` and `build_logits()` have added with `tf.losses`
    loss: tf.Tensor  # float32 []
    metrics: dict[str, Metric]
    predictions: dict[str, tf.Tensor]  # of the exported model
    variables: dict[str, tf.Variable]  # those of the model, by name
    initializers: dict[str, Any]  # of those that `tf.get_variable()` was given one for, a function of a shape
    found: Mapping[tf.Operation, tf.Tensor] = {}  # what an op finds in a variable that has changed: see `replay()`

    @property
    def is_of_classes(self) -> bool:
        """Whether the model is a classifier: an accuracy, a number for each class, and labels that are classes."""
        logits, labels = self.logits, self.labels
        are_tensors = isinstance(logits, tf.Tensor) and isinstance(labels, tf.Tensor)
        if not are_tensors or "accuracy" not in self.metrics:  # else they may be embeddings, say
            return False
        are_classes = logits.shape.rank == 2 and (logits.shape[-1] or 0) >= 2
        return are_classes and logits.dtype.is_floating and labels.dtype.is_integer and labels.shape.rank == 1


def build_probabilities(outputs: tf.Tensor) -> tf.Tensor:
    """Build the probabilities of classes, [b, classes], from logits, or from what is a softmax already."""
    op = outputs.op
    while op.type == "Identity":
        op = op.inputs[0].op
    return outputs if op.type == "Softmax" else tf.nn.softmax(outputs)


def trace(
    files: Files,
    signature: Any,
    is_training: bool,
    seed: int,
    reusable: Mapping[str, tf.Variable] | None = None,
) -> Trace:
    """Call the functions of a user's files.

    Args:
      files: the user's.
      signature: the columns of one example, in any structure.
      is_training: the argument of `build_logits()`; training decodes the examples, else `to_inputs()` takes them.
      seed: of the initial values, and of all other random numbers.
      reusable: the variables of another trace, which a scope with `reuse=True` has.

    Raises:
      UnusableError: a function fails, or returns what it must not.
    """
    graph = tf.Graph()
    initializers: dict[str, Any] = {}
    with graph.as_default(), traced_as_users_expect(initializers, reusable or {}), _drawing_alike(seed):
        tf.set_random_seed(seed)
        tf.train.create_global_step()
        columns = [
            tf.placeholder(column.dtype, [None, *column.shape], f"column_{number}")
            for number, column in enumerate(tf.nest.flatten(signature))
        ]
        parts = tf.nest.pack_sequence_as(signature, columns)
        inputs, labels = files.decode(parts)
        if not is_training:
            inputs = files.to_inputs(parts)
            made_of = find_ancestors([part.op for part in tf.nest.flatten(labels) if isinstance(part, tf.Tensor)])
            if drawn := [op for op in made_of if "seed2" in op.node_def.attr]:
                raise UnusableError(
                    f"{files.place_of(drawn[0])}: decode() draws labels at random, and tests would get them, too:"
                    " draw in build_dataset(), only for train"
                )
        logits = files.build_logits(inputs, is_training)
        losses = graph.get_collection(tf.GraphKeys.LOSSES)
        loss = files.build_loss(logits, labels)
        metrics = files.build_metrics(logits, labels) if not is_training else {}
        made = Trace(graph, columns, labels, logits, losses, loss, metrics, {}, {}, initializers)
        if not is_training:
            made = made._replace(predictions=_build_predictions(files, made))
    global_step = tf.train.get_global_step(graph)
    variables = {v.op.name: v for v in graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES) if v is not global_step}
    for name, variable in variables.items():
        problem = ""
        if not variable.shape.is_fully_defined():
            problem = f"variable {name} has the shape {variable.shape}: define it fully"
        elif variable.constraint:
            problem = f"variable {name} has a constraint, which is never applied: compute with the constrained value"
        elif find_ancestors([variable.initial_value.op]).intersection(column.op for column in columns):
            problem = f"the initial value of {name} depends on examples, but variables are created before there are any"
            problem += ": compute it in mnist_input.py"
        if problem:
            raise UnusableError(f"{files.place_of(variable)}: {problem}")
    if "global_step_1" in variables and variables["global_step_1"].handle.op in find_ancestors([loss.op]):
        raise UnusableError(
            f"{files.place_of(variables['global_step_1'])}: nothing increments this variable global_step: use"
            " tf.train.get_global_step()"
        )
    return made._replace(variables=variables)


@contextlib.contextmanager
def without_foreign_values() -> Iterator[None]:
    """Let `tf.train.init_from_checkpoint()` do nothing: only who begins a new model needs the file that it reads."""
    of_tensorflow, tf.train.init_from_checkpoint = tf.train.init_from_checkpoint, lambda *args, **kwargs: None
    try:
        yield
    finally:
        tf.train.init_from_checkpoint = of_tensorflow


@contextlib.contextmanager
def _drawing_alike(seed: int) -> Iterator[None]:
    """Let what a function draws for a constant be the same in tests and on each worker; what a step draws is not."""
    states = np.random.get_state(), random.getstate()
    np.random.seed(seed % 2**32)
    random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(states[0])
        random.setstate(states[1])


def _build_predictions(files: Files, made: Trace) -> dict[str, tf.Tensor]:
    """Build what an exported model returns: what the user says, classes and their probabilities, or the logits."""
    if files.has("build_predictions"):
        return files.build_predictions(made.logits)
    if made.is_of_classes:
        return {"classes": tf.argmax(made.logits, axis=1), "probabilities": build_probabilities(made.logits)}
    flat = tf.nest.flatten(made.logits)
    if isinstance(made.logits, Mapping):
        return dict(made.logits)
    return {"outputs": flat[0]} if len(flat) == 1 else {f"output_{n}": tensor for n, tensor in enumerate(flat)}


@contextlib.contextmanager
def traced_as_users_expect(initializers: dict[str, Any], reusable: Mapping[str, tf.Variable]) -> Iterator[None]:
    """Let functions make variables as they always did, of which copies can be made.

    Loops are those of version 2, whose gradients survive a copy. A variable is one resource, whatever partitioner a
    user has: it is split elsewhere. What is inside of a loop or a branch reads a variable before that begins; else the
    variable itself would be an input of the loop. `reuse=not is_training` finds what training has made.
    """
    graph = tf.get_default_graph()
    known: set[str] = set()  # the variables that there are

    def get(getter: Any, name: str, *args: Any, **kwargs: Any) -> tf.Variable:
        if kwargs.get("reuse") and name in reusable:
            kwargs["reuse"] = tf.AUTO_REUSE
            if kwargs.get("shape") is None and kwargs.get("initializer") is None:
                kwargs["shape"] = reusable[name].shape
        variable = getter(name, *args, **{**kwargs, "partitioner": None, "regularizer": None})
        losses = tf.get_collection_ref(tf.GraphKeys.REGULARIZATION_LOSSES)
        with graph.as_default():  # this may be inside of a loop, as of an RNN
            if kwargs.get("regularizer") and variable.op.name not in known:
                with tf.name_scope(f"{variable.op.name}/Regularizer/"):
                    losses.extend(loss for loss in [kwargs["regularizer"](variable)] if loss is not None)
            losses[:] = map(tf.convert_to_tensor, losses)  # what is lazy would be another tensor for each who asks
        known.add(variable.op.name)
        if callable(kwargs.get("initializer")):
            initializers[variable.op.name] = kwargs["initializer"]
        return variable

    def create(next_creator: Any, **kwargs: Any) -> tf.Variable:
        variable = next_creator(**{**kwargs, "use_resource": True})
        variable.initialized_value = lambda: variable.initial_value
        if tf.GraphKeys.LOCAL_VARIABLES not in (kwargs.get("collections") or ()):
            _read_outside(variable, graph)
        return variable

    graph.gradient_override_map = functools.partial(_override_gradients, graph, graph.gradient_override_map)
    if environment.has_dimensions:
        tf.disable_v2_tensorshape()
    try:
        with (
            control_flow_v2(),
            tf.variable_creator_scope(create),
            tf.variable_scope(tf.get_variable_scope(), custom_getter=get),
        ):
            yield
    finally:
        tf.enable_v2_tensorshape()


@contextlib.contextmanager
def _override_gradients(graph: tf.Graph, override: Any, op_types: Mapping[str, str]) -> Iterator[None]:
    """Override gradients in a graph, and see that no loop or branch in it, which is a graph of its own, misses that."""
    num_ops = len(graph.get_operations())
    with override(op_types):
        yield
    library = {function.signature.name: function for function in graph.as_graph_def().library.function}
    for op in graph.get_operations()[num_ops:]:
        for node in (node for function in functions_in(op.node_def, library) for node in function.node_def):
            if node.op in op_types and "_gradient_op_type" not in node.attr:
                raise UnusableError(
                    f"{find_place_of(op) or 'model.py'}: gradient_override_map() of {node.op} has no effect inside a"
                    " loop or a branch: enter it there, on tf.get_default_graph()"
                )


def _read_outside(variable: tf.Variable, graph: tf.Graph) -> None:
    """Let each function of a loop or a branch read a variable in `graph`, once, where it begins."""
    read, sparse_read, gather_nd = variable.read_value, variable.sparse_read, variable.gather_nd
    values: dict[tf.Graph, tf.Tensor] = {}

    def read_value() -> tf.Tensor:
        inner = tf.get_default_graph()
        if inner is graph:
            return read()
        if inner not in values:
            with graph.as_default():
                values[inner] = read()
        return values[inner]

    def choose(inside: Any, outside: Any) -> Any:
        return lambda indices, name=None: (
            outside(indices, name) if tf.get_default_graph() is graph else inside(read_value(), indices, name=name)
        )

    variable.value = variable.read_value = read_value
    variable.sparse_read, variable.gather_nd = choose(tf.gather, sparse_read), choose(tf.gather_nd, gather_nd)


def build_total_loss(made: Trace) -> tf.Tensor:
    """Build the loss with what regularizers and `Trace.losses` add to it, unless it has these already."""
    added = [*made.graph.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES), *made.losses]
    known = find_ancestors([made.loss.op])
    more = {loss.name: loss for loss in added if loss.op not in known}
    with made.graph.as_default():
        return tf.add_n([made.loss, *more.values()])
