"""When the model is tested, and what a test leaves behind: at the end, and by the chief while the workers train."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.task import Task
from runtime.data.reader import Columns, compute_checksum
from runtime.monitoring.measures import Measures, Target
from runtime.monitoring.model_test import ModelTest
from runtime.monitoring.summaries import write_scalars
from runtime.process.errors import UnusableError
from runtime.process.phases import describe_mistake
from runtime.process.threads import SessionThread
from runtime.records import events
from runtime.records.events import read_run
from runtime.records.folder import RunFolder

EXAMPLES = "test examples"  # the chief's event that tells what it tests on
COPY = "; to keep training on the new data, copy the checkpoint there"


def check_as_before(folder: RunFolder, test: ModelTest, load_examples: Callable[[], Columns]) -> None:
    """Check that a run that goes on, or its evaluator, has the classes and the test examples that the chief had last.

    Examples that are others whenever they are loaded, as random ones are, cannot be compared.

    Raises:
      UnusableError: it has others.
    """
    events_of_chief = [event for event in read_run(folder, EXAMPLES) if event["event"] == EXAMPLES]
    if not events_of_chief:
        return
    before = events_of_chief[-1]
    now = test.class_names
    classes = before.get("classes") or now  # which nobody gave, or an earlier version did not record
    for label, names in enumerate(itertools.zip_longest(classes, now) if now else []):
        if names[0] != names[1]:
            was, is_now = (repr(name) if name else "none" for name in names)
            remedy = f"give the --data_dir, or the names, that {folder.path} was trained with, or another --train_dir"
            remedy += COPY * (len(classes) == len(now))  # else the weights may have another shape
            raise UnusableError(f"class {label} was {was}, but is {is_now} in mnist_input.py: {remedy}")
    if before["checksum"] != test.checksum and compute_checksum(load_examples()) == test.checksum:
        remedy = f"give the --data_dir and the flags that {folder.path} was trained with, or another --train_dir{COPY}"
        raise UnusableError(f"the test examples have changed, and the model may have been trained on them: {remedy}")


def record_evaluation(task: Task, measures: Measures, **more: float) -> None:
    """Log an evaluation of a task, and record it, with `more`."""
    logging.info("%s: %s at global step %d", task, measures, measures.global_step)
    events.record("evaluated", **measures.figures, **more)
    write_scalars(measures.global_step, measures.scalars)


def record_test(measures: Measures, spec: Any) -> None:
    """Record the last evaluation of a run, with the worst mistakes, before the report is made.

    The result is saved by then. So mistakes that cannot be shown, as `show()` is the user's, are only said. The `spec`,
    the user's INPUT, tells whether an input is a picture.
    """
    values: dict[str, Any] = measures.figures
    try:
        values |= measures.find_mistakes(spec)
    except Exception as error:  # whatever it is
        logging.warning("the report does not show the model's mistakes: %s", describe_mistake(error))
    events.record("tested", **values)
    write_scalars(measures.global_step, measures.scalars)
    events.wait_until_written()


class EvaluationHook(tf.train.SessionRunHook):
    """Evaluates the model while the workers train, and ends training when it is good enough. For the chief.

    The first evaluation is at the start, since a model that was found may be good enough already. A thread evaluates;
    it ends with its session. Before any work can be lost, this tries whether the model can be tested.
    """

    def __init__(self, task: Task, test: ModelTest, target: Target | None, end: tf.Operation):
        """Run `end`, which stops all workers, once an evaluation has reached `target`, if one is given."""
        self._task, self._test, self._target, self._end = task, test, target, end

    def begin(self) -> None:
        events.record(EXAMPLES, checksum=self._test.checksum, classes=self._test.class_names)

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        self._test.check(session)
        self._evaluated_step = -1
        self._has_reached = False  # a ps that was lost may have taken the model with it that was good enough

    def repeating(self, period_secs: float | None) -> SessionThread | None:
        """Return what evaluates once in a period, beside the steps; None: never."""
        failure = f"{self._task} could not evaluate the model"
        return None if period_secs is None else SessionThread("evaluate", self.evaluate, period_secs, failure)

    def evaluate(self, session: tf.Session, coord: tf.train.Coordinator) -> bool:
        """Evaluate the model, unless it is the one of the last time; return whether it is good enough."""
        if session.run(tf.train.get_global_step(session.graph)) != self._evaluated_step:
            measures = self._test(session)
            record_evaluation(self._task, measures)
            self._evaluated_step = measures.global_step
            target = self._target  # the model may have been lost meanwhile
            is_good = target is not None and target.is_reached(measures.scalars.get(f"test_{target.name}", math.nan))
            self._has_reached = is_good and not coord.should_stop()
        return self._has_reached

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        if self._has_reached:  # between two steps, so that every ps has made the same synchronous updates
            run_context.session.run(self._end)
            run_context.request_stop()
