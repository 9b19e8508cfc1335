"""The summaries of a worker's graph, for TensorBoard."""

import contextlib
import time
from collections.abc import Sequence

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.task import Task
from runtime.errors import reason
from runtime.folder import RunFolder
from runtime.model.function import Measured
from runtime.monitoring import event_files
from runtime.tables import Parameters, values_of
from runtime.updates.exchange import Updates
from runtime.updates.packing import Packing
from runtime.updates.schedule import Schedule

HISTOGRAMS = "histograms"  # the collection of the summaries that are seldom written
HISTOGRAM_PERIOD = 200  # summaries from one with histograms to the next


def build(
    task: Task,
    updates: Updates,
    packing: Packing,
    parameters: Parameters,
    measured: Measured,
    users: Sequence[tf.Tensor],
    schedule: Schedule,
) -> None:
    """Build the summaries of the graph: on the chief of what all share, and on each worker of what it alone knows.

    Args:
      task: this worker.
      updates: what it runs.
      packing: of the gradients.
      parameters: on this task; of tables the rows of a batch.
      measured: on a batch of this worker.
      users: the summaries of the user's model, on that batch.
      schedule: of the learning rate.
    """
    with tf.device(task.device):
        if updates.staleness is not None:
            tf.summary.scalar("worker/staleness", updates.staleness)
        if not task.is_chief:
            return
        values = values_of(parameters)
        with tf.name_scope("norms"):
            vectors = [tf.cast(vector, tf.float32) for vector in updates.exchange.gradients]
            gradients = values_of(packing.unpack(vectors, updates.exchange.selection.ids))
            norms = {f"gradient_norm/{n}": tf.norm(g) for n, g in gradients.items() if n not in packing.state}
            norms |= {f"parameter_norm/{name}": tf.norm(parameter) for name, parameter in values.items()}
        scalars = {**measured.means, "learning_rate": schedule.build(updates.global_step), **norms}
        for tag, value in scalars.items():
            tf.summary.scalar(tag, value)
        # A run of the histograms alone must not take a batch, as the rows of a table would: their vector needs these.
        if not packing.tables:
            for name, value in values.items():
                tf.summary.histogram(f"parameters/{name}", value, collections=[HISTOGRAMS])
        for summary in users:
            tf.add_to_collection(tf.GraphKeys.SUMMARIES, summary)


class SummaryHook(tf.train.SessionRunHook):
    """Writes the summaries of the graph every `every_secs`, and histograms now and then and at the end.

    The chief also writes the graph itself, at the start. The first summaries come after that time: TensorFlow builds
    the graph again for what was not fetched before, and that would hold up the start.
    """

    def __init__(self, task: Task, updates: Updates, folder: RunFolder, every_secs: float):
        """Write the summaries that `build()` has built, if `folder` is given."""
        self._folder = folder.summaries_of(task)
        self._fetches = {"global_step": updates.global_step, "summaries": tf.summary.merge_all()}
        self._histograms = tf.summary.merge_all(HISTOGRAMS)
        self._is_used = bool(self._folder) and self._fetches["summaries"] is not None
        self._every_secs = every_secs
        self._num_written = 0
        self._writes_graph = task.is_chief and self._is_used  # once

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        if self._writes_graph:
            graph = session.graph.as_graph_def(add_shapes=True)
            event_files.write(self._folder, tf.Event(graph_def=graph.SerializeToString()))
            self._writes_graph = False
        self._written_at = time.monotonic()

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs | None:
        is_due = self._is_used and time.monotonic() >= self._written_at + self._every_secs
        return tf.train.SessionRunArgs(self._fetches) if is_due else None

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        if run_values.results is None:
            return
        global_step = int(run_values.results["global_step"])
        self._write(global_step, run_values.results["summaries"])
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
            try:
                self._write(global_step, session.run(self._histograms))
            except tf.errors.InvalidArgumentError as error:  # of a model that has diverged there are none
                logging.warning("no histograms at global step %d: %s", global_step, reason(error))

    def _write(self, global_step: int, summary: bytes) -> None:
        event_files.write(self._folder, tf.Event(step=global_step, summary=tf.Summary.FromString(summary)))
