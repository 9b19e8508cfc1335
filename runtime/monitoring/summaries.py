"""What a task writes for TensorBoard: numbers, and the summaries of a worker's graph."""

import contextlib
import functools
import os
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.task import Task
from runtime.model.variables import Parameters, values_of
from runtime.process.errors import reason
from runtime.records import events
from runtime.records.folder import RunFolder
from runtime.updates.exchange import Updates
from runtime.updates.packing import Packing
from runtime.updates.schedule import Schedule

HISTOGRAMS = "histograms"  # the collection of the summaries that are seldom written
SESSION_IS_LOST = (tf.errors.AbortedError, tf.errors.UnavailableError, tf.errors.CancelledError)
USERS = "users"  # the collection of those that the user's model makes
HISTOGRAM_PERIOD = 200  # summaries from one with histograms to the next


def write(event: tf.Event) -> None:
    """Let the recorder of this task write an event."""
    event.wall_time = time.time()
    events.write_later(lambda folder, task: _find_file(folder.summaries_of(task)).write(event))


def write_scalars(global_step: int, values: Mapping[str, float]) -> None:
    """Let the recorder write numbers by tag."""
    entries = [tf.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
    write(tf.Event(step=global_step, summary=tf.Summary(value=entries)))


class EventFile:
    """A file of events, as TensorBoard reads it.

    TensorFlow's `FileWriter` writes from a thread, which dies on a full disk with a traceback and never writes again.
    Its `TFRecordWriter` lets no other thread of Python run while a file server hangs. So Python writes.
    """

    def __init__(self, folder: str):
        """Write into `folder`, where the first event makes a file."""
        self._folder, self._path = folder, ""

    def write(self, event: tf.Event) -> None:
        """Append an event; one that finds no room is lost, and that is an OSError."""
        first = tf.Event(file_version="brain.Event:2", wall_time=time.time())
        try:
            self._append(_make_records([event] if self._path else [first, event]))
        except (OSError, tf.errors.OpError) as error:
            path, self._path = self._path, ""  # half an event may be at its end: go on in another file
            with contextlib.suppress(OSError):
                if not os.path.getsize(path):  # on a full disk, each attempt makes a file
                    os.remove(path)
            why = error.strerror if isinstance(error, OSError) else reason(error)
            raise OSError(f"{self._folder}: {why}") from error

    def _append(self, records: bytes) -> None:
        if not self._path:
            os.makedirs(self._folder, exist_ok=True)
            # TensorBoard reads the files in the order of their names.
            name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}.{time.time_ns()}"
            self._path = os.path.join(self._folder, name)
        with open(self._path, "ab") as file:
            file.write(records)


def _make_records(written: Sequence[tf.Event]) -> bytes:
    """Return events as a file has them: TensorFlow writes them on a disk of this machine."""
    with tempfile.NamedTemporaryFile() as file:
        with tf.io.TFRecordWriter(file.name) as writer:
            for event in written:
                writer.write(event.SerializeToString())
        return file.read()


_find_file = functools.cache(EventFile)  # of a folder


def build_staleness(updates: Updates) -> None:
    """Build the summary that each asynchronous worker has."""
    if updates.staleness is not None:
        tf.summary.scalar("worker/staleness", updates.staleness)


def build(
    updates: Updates,
    packing: Packing,
    parameters: Parameters,
    means: Mapping[str, tf.Tensor],
    users: Sequence[tf.Tensor],
    schedule: Schedule,
) -> None:
    """Build the summaries of the chief.

    Args:
      updates: what it runs.
      packing: of the gradients.
      parameters: on this task; of tables the rows of a batch.
      means: the metrics on a batch of this worker, float32 [].
      users: the summaries of the user's model, on that batch.
      schedule: of the learning rate.
    """
    values = values_of(parameters)
    with tf.name_scope("norms"):
        vectors = [tf.cast(vector, tf.float32) for vector in updates.exchange.gradients]
        gradients = values_of(packing.unpack(vectors, updates.exchange.selection.ids))
        norms = {f"gradient_norm/{n}": tf.norm(g) for n, g in gradients.items() if n not in packing.state}
        norms |= {f"parameter_norm/{name}": tf.norm(parameter) for name, parameter in values.items()}
    with tf.name_scope(None):  # what follows has the names that TensorBoard shows
        for tag, value in {**means, "learning_rate": schedule.build(updates.global_step), **norms}.items():
            tf.summary.scalar(tag, value)
        for name in values.keys() - packing.tables.keys():
            tf.summary.histogram(f"parameters/{name}", values[name], collections=[HISTOGRAMS])
    for summary in users:
        tf.add_to_collection(USERS, summary)


class SummaryHook(tf.train.SessionRunHook):
    """Writes the summaries of the graph every `every_secs`, and histograms now and then and at the end.

    The chief also writes the graph of an exchange, at the start. The first summaries come later: TensorFlow builds
    the graph again for what was not fetched before, and that would hold up the start. What may fail, histograms and the
    user's own, has a run of its own on the batches of the step before, so it neither ends training nor takes a batch.
    """

    def __init__(self, task: Task, updates: Updates, inputs: Sequence[tf.Tensor], folder: RunFolder, every_secs: float):
        """Write the summaries that `build()` has built, if `folder` is given; `inputs` are all that a run draws."""
        self._inputs = list(inputs)
        summaries = tf.summary.merge_all()
        self._more = {key: tf.summary.merge_all(key) for key in (USERS, HISTOGRAMS)}
        self._fetches = {"global_step": updates.global_step, "summaries": summaries, "inputs": self._inputs}
        self._is_used = folder.is_given and summaries is not None
        self._every_secs = every_secs
        self._num_written = 0
        self._last_inputs: Any = None
        self._pushes = updates.pushes
        self._writes_graph = task.is_chief and self._is_used  # once

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        if self._writes_graph:
            shown = [push.op.name for push in self._pushes]
            graph = tf.graph_util.extract_sub_graph(session.graph.as_graph_def(add_shapes=True), shown)
            write(tf.Event(graph_def=graph.SerializeToString()))
            self._writes_graph = False
        self._written_at = time.monotonic()

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs | None:
        is_due = self._is_used and time.monotonic() >= self._written_at + self._every_secs
        return tf.train.SessionRunArgs(self._fetches) if is_due else None

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        if run_values.results is None:
            return
        global_step, self._last_inputs = int(run_values.results["global_step"]), run_values.results["inputs"]
        self._write(global_step, run_values.results["summaries"])
        self._write_more(USERS, run_context.session, global_step)
        if self._num_written % HISTOGRAM_PERIOD == 0:
            self._write_more(HISTOGRAMS, run_context.session, global_step)
        self._num_written += 1
        self._written_at = time.monotonic()

    def end(self, session: tf.Session) -> None:
        if self._is_used:
            with contextlib.suppress(tf.errors.OpError):  # a lost ps: the hooks that need it say so
                global_step = int(session.run(tf.train.get_global_step(session.graph)))
                if self._last_inputs is None:  # a short run
                    self._last_inputs = session.run(self._inputs)
                self._write_more(HISTOGRAMS, session, global_step)

    def _write_more(self, key: str, session: tf.Session, global_step: int) -> None:
        if self._more[key] is not None:
            try:
                self._write(
                    global_step, session.run(self._more[key], dict(zip(self._inputs, self._last_inputs, strict=True)))
                )
            except SESSION_IS_LOST:
                raise
            except tf.errors.OpError as error:  # such as of a model that has diverged
                logging.warning("no summaries (%s) at global step %d: %s", key, global_step, reason(error))

    def _write(self, global_step: int, summary: bytes) -> None:
        write(tf.Event(step=global_step, summary=tf.Summary.FromString(summary)))
