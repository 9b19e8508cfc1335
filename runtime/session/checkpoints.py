"""The train directory and its checkpoints: whether they can be used, and how new ones are written."""

import fcntl
import os
import re
import socket
import tempfile

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.task import Task
from runtime.errors import UnusableError, reason

NEEDED_BYTES = 2**20  # free space that it must have: a checkpoint of the default model
LOCK_FILE = "chief.lock"  # says which process trains there, and is locked while it does


def make_train_dir(task: Task, train_dir: str) -> str:
    """Return `train_dir` as an absolute path or, if it is empty, as it is.

    The chief makes the directory, and keeps other jobs out of it. It warns if there is none.

    Raises:
      UnusableError: it cannot be written, or another job uses it.
    """
    if task.is_chief and not train_dir:
        logging.warning(
            "%s: nothing is saved, since --train_dir is not given: if a ps is lost, training begins again", task
        )
    elif task.is_chief:
        try:
            os.makedirs(train_dir, exist_ok=True)
            _lock(train_dir)
            with tempfile.TemporaryFile(dir=train_dir) as file:
                file.write(bytes(NEEDED_BYTES))
                os.fsync(file)  # or some file systems notice only later that they are full
        except OSError as error:
            raise UnusableError(f"--train_dir {train_dir} cannot be written: {error.strerror}") from error
    return os.path.abspath(train_dir) if train_dir else ""


def _lock(train_dir: str) -> None:
    """Keep the chiefs of other jobs out of `train_dir` for as long as this process lives."""
    descriptor = os.open(os.path.join(train_dir, LOCK_FILE), os.O_RDWR | os.O_CREAT)  # never closed
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(descriptor, 1000).decode(errors="replace").strip()
        raise UnusableError(
            f"--train_dir {train_dir} is in use by another job, whose chief is {holder}: end that job, or give another"
            " --train_dir"
        ) from error
    except OSError as error:  # some network file systems know no locks
        logging.warning("--train_dir %s cannot be locked (%s): let no other job use it", train_dir, error.strerror)
    os.truncate(descriptor, 0)
    os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())


def check_last_checkpoint(train_dir: str) -> None:
    """Check that every variable of the graph can be restored, since TensorFlow's message comes late and is long.

    Raises:
      UnusableError: the last checkpoint in `train_dir` is broken, or lacks a variable, or has it in another shape.
    """
    path = tf.train.latest_checkpoint(train_dir) if train_dir else None
    if not path:
        return
    try:
        saved_shapes = dict(tf.train.list_variables(path))
    except (tf.errors.OpError, ValueError) as error:
        raise UnusableError(
            f"{path} cannot be read ({str(error).splitlines()[0]}): name an older one in {train_dir}/checkpoint, or"
            " give another --train_dir"
        ) from error
    remedy = "give the flags that it was made with, or another --train_dir"
    for name, shape in _whole_shapes().items():
        saved_shape = saved_shapes.get(name)
        if saved_shape is None:
            raise UnusableError(f"{path} has no variable {name}, expected shape {shape}: {remedy}")
        if saved_shape != shape:
            raise UnusableError(f"{path} has {name} of shape {saved_shape}, expected {shape}: {remedy}")


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
