"""How good the model is on the test examples: measured at the end, and by the chief while the workers train."""

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.task import Task
from runtime.data.reader import Columns, compute_checksum, describe_not_finite
from runtime.model.function import Model
from runtime.model.trace import build_probabilities
from runtime.model.variables import Parameters, Rows
from runtime.monitoring.measures import Measures, Target, check_finite
from runtime.monitoring.mistakes import find_mistakes, guess
from runtime.monitoring.summaries import write_scalars
from runtime.process.errors import UnusableError
from runtime.process.phases import describe_mistake, explain
from runtime.process.threads import SessionThread
from runtime.records import events
from runtime.records.events import read_run
from runtime.records.folder import RunFolder

MAX_WARNINGS = 10  # of metrics that are no numbers
# The remedy for a test loss that is not finite where all parameters are.
OF_FINITE_MODEL = (
    "correct build_loss(): a mean with weights that sum to 0, for example, is NaN; or use another --train_dir, with a"
    " lower --learning_rate"
)
EXAMPLES = "test examples"  # the chief's event that tells what it tests on
COPY = "; to keep training on the new data, copy the checkpoint there"


def build_placeholders(examples: Sequence[Any]) -> list[tf.Tensor]:
    """Build what is fed with a batch of such examples."""
    return [tf.placeholder(column.dtype, [None, *column.shape[1:]], "test_examples") for column in examples]


class ModelTest:
    """Measures the parameters as they are now on all test examples."""

    def __init__(
        self,
        model: Model,
        dense: Mapping[str, tf.Tensor],
        rows: Parameters,
        columns: Sequence[tf.Tensor],
        examples: Sequence[Any],
        batch_size: int,
        samples: Sequence[tf.Tensor] = (),
    ):
        """Build what measures `model`.

        Args:
          model: traced.
          dense: its parameters, without tables: read once, then fed, so that all batches meet the same.
          rows: those of its tables that the examples need.
          columns: placeholders of examples.
          examples: columns of them; only the chief and the evaluator have them.
          batch_size: how many are measured at once, since a model may take no other number.
          samples: the random numbers that chose some of `rows`.
        """
        self._dense, self._columns, self._examples, self._batch_size = dense, columns, examples, batch_size
        self._measured = measured = model.build_measures({**dense, **rows}, columns, samples)
        self._num_classes = model.test.logits.shape[-1] if model.test.is_of_classes else 0
        self._of_classes = [build_probabilities(measured.logits), measured.labels] if self._num_classes else []
        self.class_names = model.class_names
        self._ids = [of_table.ids for of_table in rows.values() if isinstance(of_table, Rows)]

    @functools.cached_property
    def checksum(self) -> int:
        """The CRC-32 of the examples, which tells them from others."""
        return compute_checksum(self._examples)

    def check(self, session: tf.Session) -> None:
        """Try whether the model can be tested, before work can be lost: with the last batch, which may be short.

        Raises:
          UnusableError: a label is of no class, the accuracy is no fraction, or the loss of some is not finite.
        """
        measured, ids, num_classes = self._measured, self._ids, self._num_classes
        raw = self._examples[-1]
        is_doubtful = num_classes and not (raw.dtype.kind in "iu" and 0 <= raw.min() <= raw.max() < num_classes)
        first = 0
        for batch in self._batches() if ids or is_doubtful else []:  # tables may lack a row, too
            _, labels = session.run([ids, measured.labels if is_doubtful else []], self._feed(batch))
            if raw.dtype.kind in "iu" and np.shape(labels) == batch[-1].shape:
                labels = np.where(
                    batch[-1].astype(labels.dtype) == labels, batch[-1], labels
                )  # before a cast to fewer bits
            for index in np.flatnonzero((np.array(labels) < 0) | (np.array(labels) >= num_classes))[:1]:
                label = f"label {first + index} is {labels[index]}, expected 0 to {num_classes - 1}"
                raise UnusableError(f"the test examples under --data_dir cannot be used: {label}")
            first += len(batch[0])
        *_, last = self._batches()
        session.run(measured.reset)
        with self._naming(session, self._feed(last), len(raw) - len(last[0]), len(raw)):
            _, means, _ = session.run([measured.loss, measured.means, measured.updates], self._feed(last))
            _check_fraction({**means, **session.run(measured.values)})
        found = describe_not_finite(self._examples)  # which the model may mask
        for batch in self._batches() if found else []:
            if describe_not_finite(batch) and not np.isfinite(session.run(measured.loss, self._feed(batch))):
                unusable = f"{found} have NaN or infinity, and so has the test loss: correct them"
                raise UnusableError(f"the test examples under --data_dir cannot be used: {unusable}")

    def __call__(self, session: tf.Session) -> Measures:
        """Measure."""
        measured = self._measured
        fetches = [dict(self._dense), tf.train.get_global_step(session.graph), measured.reset]
        values, global_step, _ = session.run(fetches)
        feed_dict = {tensor: values[name] for name, tensor in self._dense.items()}
        sums, guesses, labels = np.zeros(1 + len(measured.means)), [], []
        for number, batch in enumerate(self._batches()):
            first = number * self._batch_size
            found, fed = [measured.loss, measured.means, measured.updates, self._of_classes], self._feed(batch)
            with self._naming(session, {**feed_dict, **fed}, first, first + len(batch[0])):
                loss, means, _, of_batch = session.run(found, {**feed_dict, **fed})
            sums += len(batch[0]) * np.array([loss, *means.values()])
            if of_batch:
                guesses.append(guess(of_batch[0]))
                labels.append(of_batch[1])
        loss, *averages = sums / len(self._examples[0])
        with self._naming(session, {**feed_dict, **fed}, 0, len(self._examples[0])):
            metrics = dict(zip(measured.means, averages, strict=True)) | session.run(measured.values)
        check_finite(values)  # first: the loss of such a model is not finite either
        check_finite({"the test loss": loss}, OF_FINITE_MODEL)
        _check_fraction(metrics)
        for name in [name for name, value in metrics.items() if not np.isfinite(value)]:
            what = f"{metrics.pop(name):g} as {name} of the test examples, which is not reported"
            remedy = "handle batches in which a class has no examples"
            logging.log_first_n(logging.WARNING, "build_metrics() returns %s: %s", MAX_WARNINGS, what, remedy)
        mistakes: Callable[[Any], dict[str, Any]] = lambda spec: {}  # noqa: E731
        if self._num_classes:
            mistakes = functools.partial(
                find_mistakes,
                guesses,
                np.concatenate(labels),
                self._examples,
                self._num_classes,
                names=self.class_names,
            )
        in_order = {name: float(metrics[name]) for name in measured.names if name in metrics}
        return Measures(float(loss), in_order, int(global_step), values, mistakes)

    @contextlib.contextmanager
    def _naming(self, session: tf.Session, feed_dict: Mapping[tf.Tensor, Any], first: int, end: int) -> Iterator[None]:
        """Tell, by a try for each, which metrics of the examples from `first` on fail, as they would each time.

        Raises:
          UnusableError: some do.
        """
        try:
            yield
        except tf.errors.OpError as error:
            line, is_of_model = explain(error)
            if not is_of_model:
                raise
            measured, names = self._measured, dict[str, None]()  # in order, each once
            # Values first: a second update would change them.
            metrics = itertools.chain(measured.values.items(), measured.means.items(), measured.updates.items())
            for name, output in [("loss", measured.loss), *metrics]:
                try:
                    session.run(output, feed_dict)
                except tf.errors.OpError:
                    names[name] = None
            what = f"{', '.join(names) or 'a metric'} of the test examples {first} to {end - 1} cannot be computed"
            raise UnusableError(f"{what}: {line}; correct model.py, or these examples") from error

    def _batches(self) -> Iterator[list[npt.NDArray[Any]]]:
        size = self._batch_size
        for start in range(0, len(self._examples[0]), size):
            yield [part[start : start + size] for part in self._examples]

    def _feed(self, batch: Sequence[npt.NDArray[Any]]) -> dict[tf.Tensor, Any]:
        return dict(zip(self._columns, batch, strict=True))


def _check_fraction(metrics: Mapping[str, Any]) -> None:
    accuracy = metrics.get("accuracy", 0)
    if accuracy < 0 or accuracy > 1:  # one that is no number is left out
        raise UnusableError(
            f"model.py: build_metrics() must return a fraction, 0 to 1, as accuracy, found {accuracy:g}"
        )


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
