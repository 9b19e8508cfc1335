"""What TensorBoard shows of a run: each task that knows something writes it into a folder of its own."""

import contextlib
import os
import time
from collections.abc import Mapping

import tensorflow.compat.v1 as tf

from runtime.cluster.task import Task
from runtime.updates.exchange import Updates
from runtime.updates.packing import Packing

HISTOGRAMS = "histograms"  # the collection of the summaries that are seldom written
HISTOGRAM_PERIOD = 200  # summaries from one with histograms to the next


def folder_of(task: Task, train_dir: str) -> str:
    """Return where `task` writes summaries, which TensorBoard takes for a run; empty if nothing is saved."""
    if not train_dir or task.is_chief:
        return train_dir
    return os.path.join(train_dir, "evaluator" if task.job_name == "evaluator" else f"worker-{task.index}")


def write(folder: str, global_step: int, summary: tf.Summary | bytes) -> None:
    """Write a summary at once, unless `folder` is empty, or lies in one that this task does not see.

    A full disk costs the summary and nothing else. Checkpoints fail too, and say so.
    """
    if folder and os.path.isdir(os.path.dirname(folder)):
        with contextlib.suppress(OSError, RuntimeError, tf.errors.OpError):
            writer = tf.summary.FileWriterCache.get(folder)
            writer.add_summary(summary, global_step)
            writer.flush()


def write_scalars(folder: str, global_step: int, values: Mapping[str, float]) -> None:
    """Write numbers by tag: see `write()`."""
    entries = [tf.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
    write(folder, global_step, tf.Summary(value=entries))


def build(
    task: Task,
    updates: Updates,
    packing: Packing,
    parameters: Mapping[str, tf.Tensor],
    accuracy: tf.Tensor,
    learning_rate: tf.Tensor,
) -> None:
    """Build the summaries of the graph: on the chief of what all share, and on each worker of what it alone knows.

    Args:
      task: this worker.
      updates: what it runs.
      packing: of the gradients.
      parameters: by name, on this task.
      accuracy: on a batch of this worker, float32 [].
      learning_rate: of the optimizer, float32 [].
    """
    with tf.device(task.device):
        if updates.staleness is not None:
            tf.summary.scalar("worker/staleness", updates.staleness)
        if not task.is_chief:
            return
        with tf.name_scope("norms"):
            gradients = packing.by_name(packing.split([tf.cast(vector, tf.float32) for vector in updates.gradients]))
            norms = {f"gradient_norm/{name}": tf.norm(gradient) for name, gradient in gradients.items()}
            norms |= {f"parameter_norm/{name}": tf.norm(parameter) for name, parameter in parameters.items()}
        for tag, value in {"accuracy": accuracy, "learning_rate": learning_rate, **norms}.items():
            tf.summary.scalar(tag, value)
        for name, parameter in parameters.items():
            tf.summary.histogram(f"parameters/{name}", parameter, collections=[HISTOGRAMS])


class SummaryHook(tf.train.SessionRunHook):
    """Writes the summaries of the graph every `every_secs`, and histograms now and then and at the end.

    The first ones come after that time: TensorFlow builds the graph again for what was not fetched before, and that
    would hold up the start.
    """

    def __init__(self, task: Task, updates: Updates, train_dir: str, every_secs: float):
        """Write the summaries that `build()` has built, unless `train_dir` is empty."""
        self._folder = folder_of(task, train_dir)
        self._fetches = {"global_step": updates.global_step, "summaries": tf.summary.merge_all()}
        self._histograms = tf.summary.merge_all(HISTOGRAMS)
        self._is_used = bool(self._folder) and self._fetches["summaries"] is not None
        self._every_secs = every_secs
        self._num_written = 0

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        self._written_at = time.monotonic()

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs | None:
        is_due = self._is_used and time.monotonic() >= self._written_at + self._every_secs
        return tf.train.SessionRunArgs(self._fetches) if is_due else None

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        if run_values.results is None:
            return
        global_step = int(run_values.results["global_step"])
        write(self._folder, global_step, run_values.results["summaries"])
        if self._num_written % HISTOGRAM_PERIOD == 0:
            self._write_histograms(run_context.session, global_step)
        self._num_written += 1
        self._written_at = time.monotonic()

    def end(self, session: tf.Session) -> None:
        if self._is_used:
            with contextlib.suppress(tf.errors.OpError):  # a lost ps: the hooks that need it say so
                self._write_histograms(session, int(session.run(tf.train.get_global_step(session.graph))))

    def _write_histograms(self, session: tf.Session, global_step: int) -> None:
        if self._histograms is not None:
            write(self._folder, global_step, session.run(self._histograms))
