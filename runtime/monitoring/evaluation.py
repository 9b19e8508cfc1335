"""How good the model is on the test examples: measured at the end, and by the chief while the workers train."""

import collections
import functools
import json
import math
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow.compat.v1 as tf
from absl import logging

from runtime import events
from runtime.cluster.roll_call import REACHED, TRAINED, RollCall
from runtime.cluster.task import Task
from runtime.errors import DIVERGED, UnusableError
from runtime.files import append_lines
from runtime.folder import RunFolder
from runtime.monitoring import event_files
from runtime.monitoring.mistakes import find_mistakes
from runtime.tables import MISTAKE, Ids, Parameters, values_of
from runtime.threads import repeat_in_session, start_guard
from runtime.updates.packing import Choice
from runtime.users_files import check_result

EXAMPLES = "test examples"  # the chief's event that tells what it tests on
PIECE_BYTES = 2**28  # of a table that are read at once
BATCH_SIZE = 1000  # the activations of the cnn for all test images at once would take a gigabyte


class Measures(NamedTuple):
    """How good the model is on some examples."""

    loss: float
    accuracy: float  # in [0, 1]
    global_step: int  # that the parameters had
    parameters: dict[str, Any]  # their values, arrays by name; of tables the `Rows` that the examples need
    find_mistakes: Callable[[], dict[str, Any]]  # looks for them only when it is called

    @property
    def figures(self) -> dict[str, float]:
        """What files tell of them."""
        return {"global_step": self.global_step, "test_accuracy": self.accuracy, "test_loss": self.loss}

    def write_summary(self, folder: str) -> None:
        """Write them into a folder for TensorBoard."""
        scalars = {"test_accuracy": self.accuracy, "test_loss": self.loss}
        event_files.write_scalars(folder, self.global_step, scalars)

    def __str__(self) -> str:
        return f"test accuracy {self.accuracy:.4f} (test loss {self.loss:.4f})"


class EvaluationGraph(NamedTuple):
    """The part of the graph that measures the model on the examples that it is fed."""

    choices: Sequence[Choice]  # of the rows of tables in `parameters`
    parameters: Parameters  # on this task: read once, then fed, so that all batches meet the same
    images: tf.Tensor  # a placeholder, [n, ...]
    labels: tf.Tensor  # a placeholder, [n]
    ids: Ids  # of the rows that the images need
    logits: tf.Tensor  # float32 [n, classes]
    loss: tf.Tensor  # float32 [], averaged over them
    accuracy: tf.Tensor  # float32 []


class ModelTest:
    """Measures the parameters as they are now on all test examples."""

    def __init__(self, graph: EvaluationGraph, examples: Sequence[Any]):
        """Measure with `graph`; only the chief and the evaluator have `examples`, images and labels.

        Raises:
          UnusableError: a label is of no class, or there are not two classes.
        """
        self._graph, self._examples = graph, examples
        self._rows: dict[tf.Tensor, Any] | None = None
        if examples:
            check_result("build_accuracy", graph.accuracy, "[]")
            num_classes = graph.logits.shape[-1]
            if num_classes < 2:
                raise UnusableError(
                    f"model.py: build_logits() is float32 {graph.logits.shape}, expected [n, classes] with two or more"
                    " classes: this program trains classifiers"
                )
            index = np.argmax(examples[-1])
            if examples[-1][index] >= num_classes:
                label = f"label {index} is {examples[-1][index]}, expected 0 to {num_classes - 1}"
                raise UnusableError(f"the test examples under --data_dir cannot be used: {label}")

    @functools.cached_property
    def checksum(self) -> int:
        """The CRC-32 of the examples, which tells them from others."""
        return functools.reduce(lambda checksum, part: zlib.crc32(part.tobytes(), checksum), self._examples, 0)

    def __call__(self, session: tf.Session) -> Measures:
        """Measure."""
        graph, num_examples = self._graph, len(self._examples[-1])
        fetches = [dict(graph.parameters), tf.train.get_global_step(session.graph)]
        values, global_step = session.run(fetches, self.find_rows(session))
        feed_dict = dict(zip(tf.nest.flatten(fetches[0]), tf.nest.flatten(values), strict=True))
        sums, logits = np.zeros(2), []
        for images, labels in self._batches():
            feed_dict |= {graph.images: images, graph.labels: labels}
            measured, of_batch = session.run([[graph.loss, graph.accuracy], graph.logits], feed_dict)
            sums += len(labels) * np.array(measured)
            logits.append(of_batch)
        loss, accuracy = sums / num_examples
        check_finite({"the test loss": loss, **values_of(values)})
        if not 0 <= accuracy <= 1:
            raise UnusableError(f"model.py: build_accuracy() must return a fraction, 0 to 1, found {accuracy:g}")
        mistakes = functools.partial(find_mistakes, np.concatenate(logits), self._examples)
        return Measures(float(loss), float(accuracy), int(global_step), values, mistakes)

    def find_rows(self, session: tf.Session) -> dict[tf.Tensor, Any]:
        """Return what is fed for the ids of the rows that the test needs of each table; they are always the same.

        Raises:
          UnusableError: a table has no such row.
        """
        if self._rows is None:
            graph = self._graph
            rows: dict[tf.Tensor, Any] = {}
            for table, placeholder, num_rows in graph.choices:
                of_batches = [session.run(graph.ids[table], {graph.images: images}) for images, _ in self._batches()]
                ids = np.unique(np.concatenate([of_batch.ravel() for of_batch in of_batches]))
                if not 0 <= ids[0] <= ids[-1] < num_rows:
                    expected = f"ids from 0 to {num_rows - 1} for table {table}"
                    raise UnusableError(f"{MISTAKE} {expected}, found {ids[0]} and {ids[-1]} for the test examples")
                rows[placeholder] = ids
            self._rows = rows
        return self._rows

    def _batches(self) -> Iterator[list[npt.NDArray[Any]]]:
        for start in range(0, len(self._examples[-1]), BATCH_SIZE):
            yield [part[start : start + BATCH_SIZE] for part in self._examples]

    def complete(self, session: tf.Session, measures: Measures) -> dict[str, Any]:
        """Return the values of the parameters with all rows of the tables, read in pieces that can be sent."""
        graph, values = self._graph, dict(measures.parameters)
        nothing: dict[tf.Tensor, Any] = {choice.ids: [] for choice in graph.choices}
        for name, ids, num_rows in graph.choices:
            tested, rows = values[name], graph.parameters[name].values
            num_pieces = math.ceil(num_rows * rows.shape[1] * rows.dtype.size / PIECE_BYTES)
            pieces = np.array_split(np.arange(num_rows, dtype=np.int32), num_pieces)
            values[name] = np.concatenate([session.run(rows, {**nothing, ids: piece}) for piece in pieces])
            values[name][tested.ids] = tested.values  # a worker that was not waited for may have changed them since
            check_finite({name: values[name]})
        return values


def check_finite(values: Mapping[str, Any]) -> None:
    """Raise an UnusableError if one of `values`, by name, is not finite: nothing of such a model is reported."""
    for name, value in values.items():
        if not np.isfinite(value).all():
            raise UnusableError(f"{name} is not finite: {DIVERGED}")


class EvaluationLog:
    """Where evaluations go: a log line each, a line of `eval.jsonl`, and a summary for TensorBoard."""

    def __init__(self, task: Task, folder: RunFolder):
        """Write as `task` into `folder`; only log if none is given."""
        self._task, self._folder = task, folder
        self._unwritten: collections.deque[bytes] = collections.deque()  # on a full disk

    def read(self) -> list[dict[str, Any]]:
        """Return the lines of `eval.jsonl` that this task has written."""
        return [line for line in events.read_lines(self._folder.evaluations) if line.get("task") == str(self._task)]

    def write(self, measures: Measures, **more: object) -> None:
        """Write one evaluation everywhere, `more` into `eval.jsonl` only, which waits for room on a full disk."""
        logging.info("%s: %s at global step %d", self._task, measures, measures.global_step)
        if not self._folder.is_given:
            return
        entry: dict[str, Any] = {name: round(value, 6) for name, value in measures.figures.items()}
        entry |= {"unix_secs": round(time.time(), 3), "task": str(self._task), **more}
        self._unwritten.append(f"{json.dumps(entry)}\n".encode())
        try:
            append_lines(self._folder.evaluations, self._unwritten)
        except OSError as error:
            logging.error("%s: the evaluation cannot be written (%s): make that possible", self._task, error)
        measures.write_summary(self._folder.summaries_of(self._task))


def record_test(measures: Measures, folder: RunFolder) -> None:
    """Record the last evaluation of a run: for the report, with the worst mistakes, and for TensorBoard.

    The result is saved by then. So mistakes that cannot be shown, as `show()` is the user's, are only said.
    """
    values: dict[str, Any] = measures.figures
    try:
        values |= measures.find_mistakes()
    except Exception as error:  # whatever it is
        logging.warning("the report goes without the model's mistakes: mnist_input.py cannot show them: %r", error)
    events.record("tested", **values).wait(events.WRITING_SECS)
    measures.write_summary(folder.path)


class EvaluationHook(tf.train.SessionRunHook):
    """Evaluates the model while the workers train, and ends training when it is good enough. For the chief.

    The first evaluation is at the start, since a model that was found may be good enough already. A thread evaluates;
    it ends with its session. First in `chief_only_hooks`: the others must hear that they shall stop before the chief
    waits for them. And before any work can be lost, it finds out whether the tables have the rows that a test needs.
    """

    def __init__(
        self,
        task: Task,
        test: ModelTest,
        folder: RunFolder,
        roll_call: RollCall,
        every_secs: float | None,
        stop_at_accuracy: float | None,
        is_done: Callable[[int], bool],
    ):
        """Evaluate every `every_secs`, or never, and stop all workers at `stop_at_accuracy`, or never.

        `is_done` tells whether an earlier run has found the model of a global step good enough.
        """
        self._task, self._test, self._roll_call = task, test, roll_call
        self._log = EvaluationLog(task, folder)
        self._every_secs, self._stop_at_accuracy, self._is_done = every_secs, stop_at_accuracy, is_done

    def begin(self) -> None:
        events.record(EXAMPLES, checksum=self._test.checksum)

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        self._test.find_rows(session)
        self._has_reached = False  # a ps that was lost may have taken the model with it that was good enough
        if self._stop_at_accuracy is not None:
            last_word = self._roll_call.listen(session)[0].text  # of this task in its last life
            global_step = session.run(tf.train.get_global_step(session.graph))
            self._has_reached = last_word in (REACHED, TRAINED) or self._is_done(global_step)
        if self._has_reached:
            coord.request_stop()  # as the others have, or will
        elif self._every_secs is not None:
            start_guard("evaluate", self._keep_evaluating, session, coord, self._every_secs)

    def _keep_evaluating(self, session: tf.Session, coord: tf.train.Coordinator, every_secs: float) -> None:
        last_step = -1

        def has_reached() -> bool:
            nonlocal last_step
            if session.run(tf.train.get_global_step(session.graph)) != last_step:
                measures = self._test(session)
                self._log.write(measures)
                last_step = measures.global_step
                goal = self._stop_at_accuracy
                # The model may have been lost in the time that writing has taken.
                self._has_reached = goal is not None and goal <= measures.accuracy and not coord.should_stop()
            return self._has_reached

        repeat_in_session(coord, has_reached, every_secs, f"{self._task} could not evaluate the model")

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        if self._has_reached:
            run_context.request_stop()

    def end(self, session: tf.Session) -> None:
        if self._has_reached:
            self._roll_call.say(session, REACHED)
