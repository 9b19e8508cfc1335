"""Models such as users have them, without a file of their own."""

import types

import tensorflow.compat.v1 as tf

from runtime.data.reader import Batches
from runtime.model.files import Files
from runtime.model.function import Model


def make_files(build_logits, build_loss, spec, decode=None, **functions):
    """Return the files of a user with these functions; labels are what the inputs are, unless `decode` says more."""
    decode = decode or (lambda inputs: (inputs, inputs))
    model = types.SimpleNamespace(build_logits=build_logits, build_loss=build_loss, **functions)
    of_input = types.SimpleNamespace(INPUT=spec, decode=decode, to_inputs=lambda inputs: inputs)
    return Files(model, of_input)


def have_tables(own):
    return True


def make_model(
    build_logits,
    build_loss,
    spec,
    decode=None,
    labels=(),
    may_have_tables=have_tables,
    is_stepwise=True,
    **functions,
):
    """Return the model of such files, of examples with an input as `spec` says, and `labels`, specs too."""
    files = make_files(build_logits, build_loss, spec, decode, **functions)
    signature = [tf.TensorSpec(spec.shape, spec.dtype), *labels]
    return Model(files, signature, 0, 0, may_have_tables, is_stepwise)


def make_batches(inputs):
    """Return batches, [batches in a run, b, ...], that are the same in each run; their one column are their inputs."""
    return Batches(inputs, lambda of_batch: [of_batch], None, [inputs], tf.placeholder(tf.int64, []), tf.no_op(), {})
