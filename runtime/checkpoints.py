"""What is saved in the train directory, and whether the model can be restored from it."""

import os
import tempfile

import tensorflow.compat.v1 as tf
from absl import logging

from runtime import cluster


class CheckpointError(Exception):
    """The train directory cannot be written, or its last checkpoint is not one of this model."""


def make_train_dir(task: cluster.Task, train_dir: str) -> str:
    """Return `train_dir` as an absolute path or, if it is empty, as it is.

    The chief makes it, and warns if there is none.

    Raises:
      CheckpointError: it cannot be written.
    """
    if task.is_chief and not train_dir:
        logging.warning(
            "%s: nothing is saved, since --train_dir is not given: if a ps is lost, training begins again", task
        )
    elif task.is_chief:
        try:
            os.makedirs(train_dir, exist_ok=True)
            with tempfile.TemporaryFile(dir=train_dir):
                pass
        except OSError as error:
            raise CheckpointError(f"--train_dir {train_dir} cannot be written: {error.strerror}") from error
    return os.path.abspath(train_dir) if train_dir else ""


def check_last_checkpoint(train_dir: str) -> None:
    """Check that every variable of the graph can be restored, since TensorFlow's message comes late and is long.

    Raises:
      CheckpointError: the last checkpoint in `train_dir` is broken, or lacks a variable, or has it in another shape.
    """
    path = tf.train.latest_checkpoint(train_dir) if train_dir else None
    if not path:
        return
    try:
        found_shapes = dict(tf.train.list_variables(path))
    except (tf.errors.OpError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({str(error).splitlines()[0]}): name an older one in {train_dir}/checkpoint, or"
            " give another --train_dir"
        ) from error
    remedy = "give the flags that it was made with, or another --train_dir"
    for variable in tf.global_variables():
        found, expected = found_shapes.get(variable.op.name), variable.shape.as_list()
        if found is None:
            raise CheckpointError(f"{path} has no variable {variable.op.name}, expected shape {expected}: {remedy}")
        if found != expected:
            raise CheckpointError(f"{path} has {variable.op.name} of shape {found}, expected {expected}: {remedy}")


def make_saving_hooks(
    train_dir: str, scaffold: tf.train.Scaffold, save_checkpoint_secs: float, save_summaries_secs: float
) -> list[tf.train.SessionRunHook]:
    """Return the chief's hooks that write checkpoints, and all summaries of the graph, unless `train_dir` is empty."""
    if not train_dir:
        return []
    return [
        tf.train.CheckpointSaverHook(train_dir, save_secs=save_checkpoint_secs, scaffold=scaffold),
        tf.train.SummarySaverHook(
            save_secs=save_summaries_secs, output_dir=train_dir, summary_op=tf.summary.merge_all()
        ),
    ]
