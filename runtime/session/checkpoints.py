"""Checkpoints: whether the last one fits this model, and how the next ones are written."""

import re

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.task import Task
from runtime.errors import reason


class CheckpointError(Exception):
    """The last checkpoint is not one of this model."""


def check_last_checkpoint(train_dir: str) -> None:
    """Check that every variable of the graph can be restored, since TensorFlow's message comes late and is long.

    Raises:
      CheckpointError: the last checkpoint in `train_dir` is broken, or lacks a variable, or has it in another shape.
    """
    path = tf.train.latest_checkpoint(train_dir) if train_dir else None
    if not path:
        return
    try:
        saved_shapes = dict(tf.train.list_variables(path))
    except (tf.errors.OpError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({str(error).splitlines()[0]}): name an older one in {train_dir}/checkpoint, or"
            " give another --train_dir"
        ) from error
    remedy = "give the flags that it was made with, or another --train_dir"
    for name, shape in _whole_shapes().items():
        saved_shape = saved_shapes.get(name)
        if saved_shape is None:
            raise CheckpointError(f"{path} has no variable {name}, expected shape {shape}: {remedy}")
        if saved_shape != shape:
            raise CheckpointError(f"{path} has {name} of shape {saved_shape}, expected {shape}: {remedy}")


def _whole_shapes() -> dict[str, list[int]]:
    """Return the shapes of the graph's variables as checkpoints have them: a variable that is split by rows, whole."""
    shapes: dict[str, list[int]] = {}
    for variable in tf.global_variables():
        name, num_parts = re.subn(r"/part_\d+", "", variable.op.name)
        shape = variable.shape.as_list()
        if num_parts and name in shapes:
            shape[0] += shapes[name][0]
        shapes[name] = shape
    return shapes


class CheckpointHook(tf.train.CheckpointSaverHook):
    """Saves periodically as TensorFlow's own hook does, but trains on when that fails.

    The model lives on the ps tasks, and would be lost if a full disk ended the job.
    """

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        try:
            super().after_run(run_context, run_values)
        except (tf.errors.AbortedError, tf.errors.UnavailableError):  # a ps is lost, and the session with it
            raise
        except tf.errors.OpError as error:
            logging.error("no checkpoint could be written (%s): make that possible; training goes on", reason(error))


def make_saving_hooks(
    task: Task, train_dir: str, scaffold: tf.train.Scaffold, save_checkpoint_secs: float, save_summaries_secs: float
) -> list[tf.train.SessionRunHook]:
    """Return the chief's hooks that write checkpoints and all summaries of the graph, unless `train_dir` is empty."""
    if not (task.is_chief and train_dir):
        return []
    return [
        # TensorBoard's events have the graph. Writing it as text too, with each checkpoint, would hold up a restarted
        # chief.
        CheckpointHook(train_dir, save_secs=save_checkpoint_secs, scaffold=scaffold, save_graph_def=False),
        tf.train.SummarySaverHook(
            save_secs=save_summaries_secs, output_dir=train_dir, summary_op=tf.summary.merge_all()
        ),
    ]
