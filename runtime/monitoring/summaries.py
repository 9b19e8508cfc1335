"""The summaries of a worker's graph, for TensorBoard."""

import time

import tensorflow.compat.v1 as tf

from runtime.cluster.task import Task
from runtime.folder import RunFolder
from runtime.monitoring import event_files
from runtime.tables import Parameters, values_of
from runtime.updates.exchange import Updates
from runtime.updates.packing import Packing
from runtime.updates.schedule import Schedule


def build(
    task: Task,
    updates: Updates,
    packing: Packing,
    parameters: Parameters,
    accuracy: tf.Tensor,
    schedule: Schedule,
) -> None:
    """Build the summaries of the graph: on the chief of what all share, and on each worker of what it alone knows.

    Args:
      task: this worker.
      updates: what it runs.
      packing: of the gradients.
      parameters: on this task; of tables the rows of a batch.
      accuracy: on a batch of this worker, float32 [].
      schedule: of the learning rate.
    """
    with tf.device(task.device):
        if updates.staleness is not None:
            tf.summary.scalar("worker/staleness", updates.staleness)
        if not task.is_chief:
            return
        with tf.name_scope("norms"):
            vectors = [tf.cast(vector, tf.float32) for vector in updates.exchange.gradients]
            gradients = values_of(packing.unpack(vectors, updates.exchange.selection.ids))
            norms = {f"gradient_norm/{name}": tf.norm(gradient) for name, gradient in gradients.items()}
            norms |= {f"parameter_norm/{name}": tf.norm(parameter) for name, parameter in values_of(parameters).items()}
        scalars = {"accuracy": accuracy, "learning_rate": schedule.build(updates.global_step), **norms}
        for tag, value in scalars.items():
            tf.summary.scalar(tag, value)


class SummaryHook(tf.train.SessionRunHook):
    """Writes the summaries of the graph every `every_secs`.

    The chief also writes the graph itself, at the start. The first summaries come after that time: TensorFlow builds
    the graph again for what was not fetched before, and that would hold up the start.
    """

    def __init__(self, task: Task, updates: Updates, folder: RunFolder, every_secs: float):
        """Write the summaries that `build()` has built, if `folder` is given."""
        self._folder = folder.summaries_of(task)
        self._fetches = {"global_step": updates.global_step, "summaries": tf.summary.merge_all()}
        self._is_used = bool(self._folder) and self._fetches["summaries"] is not None
        self._every_secs = every_secs
        self._writes_graph = task.is_chief and self._is_used  # once

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        if self._writes_graph:
            graph_def = session.graph.as_graph_def(add_shapes=True).SerializeToString()
            event_files.write(self._folder, tf.Event(graph_def=graph_def))
            self._writes_graph = False
        self._written_at = time.monotonic()

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs | None:
        is_due = self._is_used and time.monotonic() >= self._written_at + self._every_secs
        return tf.train.SessionRunArgs(self._fetches) if is_due else None

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        if run_values.results is not None:
            summary = tf.Summary.FromString(run_values.results["summaries"])
            event_files.write(self._folder, tf.Event(step=run_values.results["global_step"], summary=summary))
            self._written_at = time.monotonic()
