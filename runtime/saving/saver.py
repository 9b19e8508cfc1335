"""What saves and restores the variables of a graph, and how they are called and shaped in a checkpoint."""

import re
from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.training.saver import BulkSaverBuilder  # what a `Saver` takes for its `builder`

from runtime.cluster.task import Task

NOT_FINITE = re.compile(r"\S+ is not finite")  # says which parameter has kept a save from being written


def whole_variables() -> dict[str, tuple[tf.DType, list[int]]]:
    """Return the graph's variables, types and shapes, as checkpoints have them: one that is split by rows, whole."""
    named = [(variable.dtype, *_name_and_shape(variable)) for variable in tf.global_variables()]
    return {name: (dtype, shape) for dtype, name, shape in named}


def _name_and_shape(variable: tf.Variable) -> tuple[str, list[int]]:
    info = variable._get_save_slice_info()  # a name such as layer/part_0/weights may be that of a whole one
    return (info.full_name, list(info.full_shape)) if info else (variable.op.name, variable.shape.as_list())


class _FiniteSaverBuilder(BulkSaverBuilder):
    """Builds what saves variables, of which it writes none on a ps where a parameter is not finite, or state is NaN.

    What is checked are the very values that are saved: other workers may change the variables meanwhile.
    """

    def save_op(self, filename_tensor: tf.Tensor, saveables: Sequence[Any]) -> tf.Operation:
        parameters = {_name_and_shape(variable)[0] for variable in tf.trainable_variables()}
        state = {_name_and_shape(variable)[0] for variable in tf.get_collection(tf.GraphKeys.MODEL_VARIABLES)}
        specs = [spec for saveable in saveables for spec in saveable.specs]
        tensors = [spec.tensor for spec in specs]
        for index, (spec, tensor) in enumerate(zip(specs, tensors, strict=True)):
            if spec.name in parameters | state and tensor.dtype.is_floating:
                with tf.device(tensor.device):
                    number = tensor
                    if spec.name in state:  # which may be infinite, as a mask is
                        number = tf.where(tf.math.is_inf(tensor), tf.zeros_like(tensor), tensor)
                    with tf.control_dependencies([tf.check_numerics(number, f"{spec.name} is not finite")]):
                        tensors[index] = tf.identity(tensor)
        return tf.raw_ops.SaveV2(
            prefix=filename_tensor,
            tensor_names=[spec.name for spec in specs],
            shape_and_slices=[spec.slice_spec for spec in specs],
            tensors=tensors,
        )


def make_saver(task: Task, written_by: str, keep_checkpoints: int) -> tf.train.Saver:
    """Return what saves and restores all variables of the graph; each way reads what the other has written.

    Args:
      task: this worker, which saves if it is the chief.
      written_by: "ps" if each ps writes and reads its own part, or "chief" if the chief writes and reads all of it.
      keep_checkpoints: how many of the last checkpoints remain.
    """

    def place(op: tf.Operation) -> str:
        uses_files = written_by == "chief" and op.type in ("SaveV2", "RestoreV2")
        return f"{task.device}/device:CPU:0" if uses_files else op.device

    with tf.device(place):  # the saver itself would restore each variable where it lies
        return tf.train.Saver(
            sharded=written_by == "ps",
            save_relative_paths=True,
            max_to_keep=keep_checkpoints,
            builder=_FiniteSaverBuilder(),
        )
