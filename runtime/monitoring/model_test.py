"""The test of a model: its loss and metrics on all test examples."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow.compat.v1 as tf
from absl import logging

from runtime.data.reader import compute_checksum, describe_not_finite
from runtime.model.function import Model
from runtime.model.trace import build_probabilities
from runtime.model.variables import Parameters, Rows
from runtime.monitoring.measures import Measures, check_finite
from runtime.monitoring.mistakes import find_mistakes, guess
from runtime.process.errors import UnusableError
from runtime.process.phases import explain

MAX_WARNINGS = 10  # of metrics that are no numbers
# The remedy for a test loss that is not finite where all parameters are.
OF_FINITE_MODEL = (
    "correct build_loss(): a mean with weights that sum to 0, for example, is NaN; or use another --train_dir, with a"
    " lower --learning_rate"
)


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
