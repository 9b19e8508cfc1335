"""What evaluations leave behind, and when a run is finished."""

import contextlib
import copy
import enum
import errno
import functools
import json
import os
import re
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmarks.testbed.processes import DEADLINE_SECS
from runtime.cluster.task import Task
from runtime.cluster.waiting import Timeouts
from runtime.data.reader import compute_checksum
from runtime.model.variables import TableReader, make_variables
from runtime.monitoring import evaluation
from runtime.monitoring.evaluation import (
    EXAMPLES,
    EvaluationHook,
    check_as_before,
    record_evaluation,
)
from runtime.monitoring.measures import Measures, Target
from runtime.monitoring.mistakes import find_mistakes, guess
from runtime.monitoring.model_test import ModelTest, build_placeholders
from runtime.process.errors import UnsavedError, UnusableError
from runtime.records import events
from runtime.records.folder import RunFolder
from runtime.roles.evaluator import Checkpoint, follow_checkpoints
from runtime.saving.checkpoint_hook import CheckpointHook
from runtime.saving.result import Goal, Result, evaluate_and_save, is_finished, keep_trying
from runtime.updates.packing import Packing
from tests.models import make_model

CHIEF = Task("worker", 0, ("a:1",), ("b:2",))
EVALUATOR = Task("evaluator", 0, ("a:1",), ("b:2",))
MEASURES = Measures(
    loss=0.25, metrics={"accuracy": 0.9375}, global_step=40, parameters={}, find_mistakes=lambda spec: {}
)


class FixedTest:
    """A test of no examples, with these measures."""

    checksum, class_names = 0, ()

    def __init__(self, measure=lambda _: MEASURES):
        self._measure = measure

    def check(self, session):
        pass

    def __call__(self, session):
        return self._measure(session)


GOAL = Target("accuracy", 0.9)


@pytest.mark.promises("stop-at")
@pytest.mark.parametrize(
    ("text", "value", "is_reached"),
    [
        ("accuracy:0.9", 0.9, True),
        ("accuracy:0.9712344", 0.9712344, True),  # with all its digits, as a result has it
        ("accuracy:0.9", 0.8, False),
        ("loss:<0.1", 0.1, True),
        ("loss:<0.1", 0.2, False),
    ],
)
def test_a_target_is_a_floor_or_a_ceiling(text, value, is_reached):
    target = Target.parse(text)
    assert target.is_reached(value) == is_reached
    assert str(target) == text


@pytest.mark.parametrize(
    ("result", "finished"),
    [
        ('{"global_step": 100, "reached": null}', True),
        ('{"global_step": 99, "reached": "accuracy:0.8"}', False),
        ('{"global_step": 99, "reached": "accuracy:0.9"}', True),
        ('{"global_step": 99, "reached": "loss:<0.9"}', False),
        ('{"global_step": 99}', False),
        ("", False),
    ],
)
def test_a_run_is_finished_when_its_result_has_reached_the_goal(tmp_path, leave_checkpoint, result, finished):
    (tmp_path / "result.json").write_text(result)
    goal = Goal(train_steps=100, target=GOAL)
    global_step = json.loads(result or '{"global_step": 100}')["global_step"]
    leave_checkpoint(global_step)
    assert is_finished(RunFolder(tmp_path), goal) == finished
    leave_checkpoint(global_step - 1)
    assert not is_finished(RunFolder(tmp_path), goal), "its model could not be saved, or another run has begun"
    assert not is_finished(RunFolder(""), Goal(100, GOAL)), "without a folder, nobody knows"


def test_an_evaluator_that_is_started_again_waits_as_long_as_one_that_was_not(
    tmp_path, leave_checkpoint, start_recording
):
    leave_checkpoint(MEASURES.global_step)
    checkpoint = Checkpoint(MEASURES.global_step, round((tmp_path / "model.ckpt-40.index").stat().st_mtime, 3))
    start_recording(EVALUATOR, RunFolder(tmp_path))
    record_evaluation(EVALUATOR, MEASURES, **checkpoint._asdict())
    assert not events.wait_until_written(DEADLINE_SECS)
    with tf.Graph().as_default():
        tf.get_variable("weights", [])
        timeouts = Timeouts(startup_secs=0, recovery_secs=1)
        with pytest.raises(TimeoutError, match=r"waited 1 s for a checkpoint after global step 40 in "):
            follow_checkpoints(EVALUATOR, lambda _: MEASURES, RunFolder(tmp_path), Goal(100, None), timeouts, list)


def test_any_accuracy_reaches_the_goal_of_0(local_servers):
    servers = local_servers(1, 1)
    with tf.Graph().as_default() as graph:
        tf.train.create_global_step()
        over = tf.Variable(False, trainable=False)
        initialize, end = tf.global_variables_initializer(), over.assign(True).op
    with servers.worker_session(0, graph) as session:
        session.run(initialize)
        hook = EvaluationHook(servers.task("worker", 0), FixedTest(), Target("accuracy", 0.0), end)
        coord, context = tf.train.Coordinator(), tf.train.SessionRunContext(None, session)
        hook.after_create_session(session, coord)
        assert hook.evaluate(session, coord)
        hook.after_run(context, None)
        assert context.stop_requested
        assert session.run(over), "no other worker would stop"


class FinishedRun:
    """Two checkpoints of a run of 40 steps, and its result."""

    def __init__(self, folder):
        self.folder = folder
        with tf.Graph().as_default() as graph:
            tf.get_variable("weights", [])
            self.saver, initialize = tf.train.Saver(), tf.global_variables_initializer()
        self.session = tf.Session(graph=graph)
        self.session.run(initialize)
        for step in (30, 40):
            self.save(step)
        (folder / "result.json").write_text('{"global_step": 40}')

    def save(self, step):
        self.saver.save(self.session, str(self.folder / "model.ckpt"), global_step=step)

    def follow(self, evaluate):
        load_examples = lambda: evaluate._examples  # noqa: E731
        with tf.Graph().as_default():
            tf.get_variable("weights", [])
            follow_checkpoints(
                EVALUATOR, evaluate, RunFolder(self.folder), Goal(40, None), Timeouts(0, 0), load_examples
            )
        assert not events.wait_until_written(DEADLINE_SECS)


@pytest.fixture
def finished_run(tmp_path):
    return FinishedRun(tmp_path)


def test_an_evaluator_knows_a_checkpoint_again_by_its_name_and_when_it_was_written(finished_run, start_recording):
    """Its events lie in the folders of the runs that it has seen."""
    start_recording(EVALUATOR, RunFolder(finished_run.folder))
    measured = []

    def evaluate(_):
        measured.append(MEASURES.global_step)
        return MEASURES._replace(global_step=47)  # asynchronous workers have trained on while it was written

    for run in range(1, 3):
        (finished_run.folder / "events" / str(run)).mkdir(parents=True, exist_ok=True)
        finished_run.follow(evaluate)
    assert len(measured) == 2
    finished_run.save(40)  # of a new model
    os.utime(finished_run.folder / "model.ckpt-40.index", (0, 0))
    finished_run.follow(evaluate)
    assert len(measured) == 3


def test_an_evaluator_leaves_out_a_checkpoint_that_is_deleted_before_its_turn(finished_run, caplog):
    caplog.set_level("INFO")

    def evaluate(_):
        tf.train.update_checkpoint_state(str(finished_run.folder), str(finished_run.folder / "model.ckpt-30"))
        (finished_run.folder / "model.ckpt-40.data-00000-of-00001").unlink(missing_ok=True)
        return MEASURES

    finished_run.follow(evaluate)
    assert "model.ckpt-40 was deleted before it could be evaluated" in caplog.text


def test_an_evaluator_refuses_a_checkpoint_that_is_broken(finished_run):
    (finished_run.folder / "model.ckpt-40.data-00000-of-00001").unlink()
    with pytest.raises(UnusableError, match=r"model\.ckpt-40 has none of its parts, "):
        finished_run.follow(lambda _: MEASURES)


@pytest.mark.parametrize("name", ["checkpoint", "result.json"])
def test_an_evaluator_that_may_not_read_what_the_run_writes_does_not_wait_for_it(
    finished_run, obeying_permissions, name
):
    path = finished_run.folder / name
    path.chmod(0)
    with pytest.raises(UnusableError) as error:
        finished_run.follow(lambda _: MEASURES)
    assert str(error.value) == f"{path} cannot be read (Permission denied): fix its permissions"


def test_an_evaluator_leaves_out_a_broken_checkpoint_when_the_user_has_named_an_older_one(finished_run, caplog):
    (finished_run.folder / "model.ckpt-40.data-00000-of-00001").write_bytes(b"cut")
    paths = [str(finished_run.folder / f"model.ckpt-{name}") for name in ("30", "40", "best")]
    tf.train.update_checkpoint_state(str(finished_run.folder), paths[0], paths[::-1])
    evaluated = []
    with pytest.raises(TimeoutError, match="waited 0 s for a checkpoint after"):  # the chief trains on from 30
        finished_run.follow(lambda _: evaluated.append(1) or MEASURES)
    assert len(evaluated) == 1
    assert f"skipping {paths[1]}: OutOfRangeError: " in caplog.text


def test_an_evaluator_initialises_what_a_monitored_session_does(finished_run):
    values = []
    with tf.Graph().as_default():
        tf.get_variable("weights", [])
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["seven"], [7]), 0)
        fetches = [table.lookup(tf.constant("seven")), tf.get_local_variable("count", initializer=8)]

        def evaluate(session):
            values.append(session.run(fetches))
            return MEASURES

        follow_checkpoints(EVALUATOR, evaluate, RunFolder(finished_run.folder), Goal(40, None), Timeouts(0, 0), list)
    assert values == 2 * [[7, 8]]


def build_error_rate(logits, labels):
    return {"error_rate": 7 * tf.reduce_mean(tf.cast(tf.not_equal(tf.argmax(logits, 1), labels), tf.float32))}


def make_evaluate(labels, build_metrics=build_error_rate, num_logits=2, batch_size=100, of_labels=tf.identity):
    """Return what measures logits that are the images themselves."""

    def build_loss(logits, labels):
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))

    def decode(images, labels):
        return images, of_labels(labels)

    examples = (np.zeros([len(labels), num_logits], np.float32), np.array(labels, np.int64))
    spec = tf.TensorSpec([num_logits], tf.float32, "images")
    model = make_model(
        lambda images, is_training: images,
        build_loss,
        spec,
        decode,
        [tf.TensorSpec([], tf.int64)],
        build_metrics=build_metrics,
    )
    tf.train.create_global_step()
    return ModelTest(model, {}, {}, build_placeholders(examples), examples, batch_size)


@pytest.mark.promises("evaluator-of-other-examples")
def test_an_evaluator_refuses_to_test_on_other_examples_than_the_chief(finished_run, graph):
    chief = make_evaluate([0, 1])
    evaluator = copy.copy(chief)
    evaluator._examples = (np.zeros([2, 2], np.float32), np.array([1, 1]))
    (finished_run.folder / "events" / "1").mkdir(parents=True)
    entry = {"unix_secs": 1.0, "event": EXAMPLES, "checksum": chief.checksum}
    (finished_run.folder / "events" / "1" / "worker-0.jsonl").write_text(json.dumps(entry))
    with pytest.raises(UnusableError, match=r"the test examples have changed, .*: give the --data_dir and"):
        finished_run.follow(evaluator)


@pytest.mark.parametrize(
    ("names", "labels", "message"),
    [
        (["a", "b"], [0, 1], ""),
        ([], [0, 1], ""),  # whoever has the names no more
        (["a", "c"], [0, 1], "class 1 was 'b', but is 'c' in mnist_input.py: give the --data_dir, or the names, that"),
        (["b", "a"], [0, 1], "class 0 was 'a', but is 'b' in .*; to keep training on the new data, copy"),
        (["a", "b", "c"], [0, 1], "class 2 was none, but is 'c' in .*, or another --train_dir$"),
        (["a"], [0, 1], "class 1 was 'b', but is none in .*, or another --train_dir$"),
        (["a", "b"], [1, 1], "the test examples have changed, and the model may have been trained on them: give the"),
    ],
)
def test_a_run_that_goes_on_has_the_classes_and_test_examples_that_it_had(tmp_path, graph, names, labels, message):
    folder, test = RunFolder(tmp_path), make_evaluate([0, 1])
    entry = {"unix_secs": 1.0, "event": EXAMPLES, "checksum": test.checksum, "classes": ["a", "b"]}
    (tmp_path / "events" / "1").mkdir(parents=True)
    (tmp_path / "events" / "1" / "worker-0.jsonl").write_text(json.dumps(entry))
    images, _ = test._examples
    test.class_names, test.checksum = names, compute_checksum([images, np.array(labels)])
    with pytest.raises(UnusableError, match=message) if message else contextlib.nullcontext():
        check_as_before(folder, test, lambda: [images, np.array(labels)])
    if labels != [0, 1]:
        check_as_before(folder, test, lambda: [images, np.array([1, 0])])  # they are random


def test_a_run_of_which_nobody_knows_what_it_had_goes_on(tmp_path, graph):
    check_as_before(RunFolder(tmp_path), make_evaluate([0, 1]), list)


def test_an_accuracy_that_is_no_fraction_is_refused(graph):
    test = make_evaluate([0, 1], lambda logits, labels: {"accuracy": 2 * tf.math.log(2.0)})
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        text = r"build_metrics\(\) must return a fraction, 0 to 1, as accuracy, found 1\.38629"
        for measure in (test.check, test):
            with pytest.raises(UnusableError, match=text):
                measure(session)


def test_a_metric_that_needs_all_examples_is_tried_before_training(graph):
    def build_metrics(logits, labels):
        return {"auc": tf.metrics.auc(labels, 2 + logits[:, 0])}

    test = make_evaluate([0, 1], build_metrics)
    with (
        tf.Session() as session,
        pytest.raises(UnusableError, match=r"^auc of the test examples 0 to 1 .*predictions must be in \[0, 1\]"),
    ):
        test.check(session)


def test_a_metric_that_fails_later_is_told_with_the_examples_that_it_fails_for():
    def build_metrics(logits, labels):
        value, update = tf.metrics.mean(labels)
        return {
            "fine": tf.reduce_mean(logits),
            "checked": tf.reduce_mean(tf.check_numerics(1 / tf.cast(labels, tf.float32), "scores")),
            "total": (tf.check_numerics(1 / (value - 2), "totals"), update),
        }

    for labels, told in (
        ([1, 1, 1, 0, 1], r"checked of the test examples 2 to 3 cannot be computed: tests/\S+, line \d+: .*: scores"),
        ([3, 1, 3, 3, 1, 1], r"total of the test examples 0 to 5 cannot be computed: tests/\S+, line \d+: .*: totals"),
    ):
        with tf.Graph().as_default(), tf.Session() as session:
            test = make_evaluate(labels, build_metrics, num_logits=4, batch_size=2)
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            test.check(session)
            with pytest.raises(UnusableError, match=rf"^{told} .*; correct model\.py, or these examples$"):
                test(session)


def test_a_small_figure_keeps_its_digits():
    measures = Measures(4.25e-7, {"mse": 1.23456789e-5}, 7, {}, dict)
    assert str(measures) == "test mse 1.23e-05 (test loss 4.25e-07)"
    assert measures.figures == {"global_step": 7, "test_mse": 1.23457e-05, "test_loss": 4.25e-07}


def test_a_metric_that_is_no_number_is_left_out(graph, caplog):
    def build_metrics(logits, labels):
        return {"precision": tf.reduce_sum(logits) / 0.0, **build_error_rate(logits, labels)}

    test = make_evaluate([0, 1], build_metrics)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        test.check(session)  # an untrained model may find no positives
        assert list(test(session).metrics) == ["error_rate"]
    assert "build_metrics() returns nan as precision of the test examples, which is not reported" in caplog.text


def test_a_metric_of_another_name_may_have_any_value_and_the_first_one_is_told(graph):
    test = make_evaluate([0, 1, 1, 1])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        measures = test(session)
    assert measures.metrics == {"error_rate": pytest.approx(7 * 0.75)}
    assert measures.loss == pytest.approx(np.log(2), rel=1e-5)
    assert str(measures) == "test error rate 5.2500 (test loss 0.6931)"


@pytest.mark.promises("all-test-examples")
@pytest.mark.parametrize("batch_size", [1, 2, 5, 100])
def test_means_and_metrics_that_need_all_examples_are_of_all_whatever_the_batches(graph, batch_size):
    def build_metrics(logits, labels):
        wrong = tf.not_equal(tf.argmax(logits, 1), labels)
        weights = tf.cast(1 + 9 * labels, tf.float32)
        return {"weighted": tf.metrics.mean(wrong, weights), "plain": tf.reduce_mean(tf.cast(wrong, tf.float32))}

    test = make_evaluate([0, 1, 1, 1, 0], build_metrics, batch_size=batch_size)
    expected = {"weighted": pytest.approx(30 / 32), "plain": pytest.approx(3 / 5)}
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        assert [test(session).metrics for _ in range(2)] == [expected, expected], "each time from the beginning"
        assert [*test(session).metrics] == ["weighted", "plain"]


@pytest.mark.parametrize("label", [-1, 2, 2**32 + 1])
def test_a_test_example_with_a_label_of_no_class_is_refused_before_training(graph, label):
    """As it is before a cast to fewer bits, which would make a class of it."""
    of_labels = functools.partial(tf.cast, dtype=tf.int32)
    test = make_evaluate([0, label], lambda logits, labels: {"accuracy": tf.constant(1.0)}, of_labels=of_labels)
    with tf.Session() as session, pytest.raises(UnusableError, match=rf"label 1 is {label}, expected 0 to 1"):
        test.check(session)


def test_a_model_that_is_no_classifier_is_measured_and_makes_no_mistakes(graph):
    def build_loss(logits, labels):
        return tf.reduce_mean((logits[:, 0] - tf.cast(labels, tf.float32)) ** 2)

    examples = (np.zeros([2, 1], np.float32), np.array([3, -1]))
    spec, of_labels = tf.TensorSpec([1], tf.float32, "images"), [tf.TensorSpec([], tf.int64)]
    model = make_model(lambda images, is_training: images, build_loss, spec, lambda *columns: columns, of_labels)
    tf.train.create_global_step()
    test = ModelTest(model, {}, {}, build_placeholders(examples), examples, batch_size=100)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        measures = test(session)
    assert (measures.loss, measures.metrics, measures.find_mistakes(spec)) == (5, {}, {})
    assert str(measures) == "test loss 5.0000"


def test_a_test_loss_that_is_not_finite_where_the_model_is_has_a_remedy_of_its_own(graph):
    def build_loss(logits, labels):
        return tf.losses.compute_weighted_loss(logits[:, 0]) / tf.reduce_sum(tf.cast(labels, tf.float32))

    examples = (np.ones([2, 1], np.float32), np.array([0, 0]))
    spec, of_labels = tf.TensorSpec([1], tf.float32, "images"), [tf.TensorSpec([], tf.int64)]
    model = make_model(lambda images, is_training: images, build_loss, spec, lambda *columns: columns, of_labels)
    tf.train.create_global_step()
    test = ModelTest(model, {}, {}, build_placeholders(examples), examples, batch_size=100)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        with pytest.raises(
            UnusableError, match=r"^the test loss is not finite: correct build_loss\(\): .*; or use another --train_dir"
        ):
            test(session)


@pytest.mark.parametrize("masks", [False, True])
def test_nan_in_a_test_example_is_told_before_training_unless_the_model_masks_it(graph, masks):
    class Examples(NamedTuple):
        images: np.ndarray
        labels: np.ndarray

    def build_logits(images, is_training):
        return tf.where(tf.math.is_nan(images), tf.zeros_like(images), images) if masks else images

    examples = Examples(np.array([[1], [1], [np.nan], [1]], np.float32), np.array([0, 0, 0, 0]))
    spec, of_labels = tf.TensorSpec([1], tf.float32, "images"), [tf.TensorSpec([], tf.int64)]
    loss = lambda logits, labels: tf.reduce_mean(logits)  # noqa: E731
    model = make_model(build_logits, loss, spec, lambda *columns: columns, of_labels)
    tf.train.create_global_step()
    test = ModelTest(model, {}, {}, build_placeholders(examples), examples, batch_size=1)
    told = r"^the test examples .* cannot be used: images in 1 of 4 examples have NaN or infinity, and so has the test"
    with tf.Session() as session, contextlib.nullcontext() if masks else pytest.raises(UnusableError, match=told):
        test.check(session)


def test_mistakes_that_cannot_be_shown_cost_a_warning_and_nothing_else(caplog, monkeypatch):
    recorded = {}
    monkeypatch.setattr(evaluation.events, "record", lambda _, **values: recorded.update(values))

    class Examples(NamedTuple):
        images: np.ndarray
        labels: np.ndarray

        def show(self, index):
            return self.texts[index]

    examples = Examples(np.zeros([1, 2], np.float32), np.array([1]))
    guesses = [guess(np.array([[0.7311, 0.2689]], np.float32))]
    find = functools.partial(find_mistakes, guesses, examples.labels, examples, 2)

    def run_out_of_memory(_):
        raise MemoryError("Unable to allocate 3 GiB")

    for failing in (find, run_out_of_memory):
        evaluation.record_test(MEASURES._replace(find_mistakes=failing), None)
    assert recorded == {"global_step": 40, "test_accuracy": 0.9375, "test_loss": 0.25}
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    told = [re.sub(r", line \d+", "", warning.partition("mistakes: ")[2]) for warning in warnings]
    assert told == [
        "tests/test_evaluation.py: AttributeError: 'Examples' object has no attribute 'texts'; correct"
        " tests/test_evaluation.py",
        "tests/test_evaluation.py: MemoryError: Unable to allocate 3 GiB (run fewer tasks on this machine, or let"
        " TFRecord files or build_dataset() read what does not fit); correct tests/test_evaluation.py",
    ]


def test_what_show_returns_and_names_are_recorded_as_text():
    class Examples(NamedTuple):
        images: np.ndarray
        labels: np.ndarray

        def show(self, index):
            return self.images[index]

    batches = [guess(np.array([[0.7311, 0.2689]], np.float32))]
    words = [np.array(["seven"], object), np.array([1])]
    assert "seven" in find_mistakes(batches, words[1], words, 2, None)["mistakes"][0]["text"]
    words = [np.array([10000 * b"\xff"], object), np.array([1])]  # as of an encoded picture
    assert len(find_mistakes(batches, words[1], words, 2, None)["mistakes"][0]["text"]) == 200
    examples = Examples(np.array([[7]]), np.array([1]))
    found = find_mistakes(batches, examples.labels, examples, 2, None, names=["no", "yes"])
    assert json.loads(json.dumps(found))["mistakes"] == [
        {"index": 0, "label": "yes", "guess": "no", "probability": 0.7311, "text": "[7]"}
    ]


class TableTest:
    """A test of a table of four rows on some words; the logits of a word are its row."""

    def __init__(self, words):
        def build_logits(words, is_training):
            table = tf.get_variable("table", [4, 2], initializer=tf.zeros_initializer())
            return tf.reduce_sum(tf.nn.embedding_lookup(table, words), axis=1)

        def build_loss(logits, labels):
            return tf.reduce_mean(logits[:, 0])

        examples = (np.array(words, np.int32), np.zeros(len(words), np.int64))
        spec, of_labels = tf.TensorSpec([1], tf.int32, "words"), [tf.TensorSpec([], tf.int64)]
        model = make_model(build_logits, build_loss, spec, lambda *columns: columns, of_labels)
        tf.train.create_global_step()
        columns = build_placeholders(examples)
        self.variables = make_variables(model.training, model.tables, num_slices=3)
        packing = Packing(self.variables)
        rows = packing.fetch(model.in_tests.build_lookups(columns))
        self.test = ModelTest(model, {}, rows, columns, examples, batch_size=1)

    def initialize(self, session):
        session.run(tf.global_variables_initializer())
        rows = tf.split(np.arange(8, dtype=np.float32).reshape(4, 2), [2, 1, 1])
        session.run([part.assign(of_part) for part, of_part in zip(self.variables["table"].slices, rows, strict=True)])


def test_a_test_reads_the_rows_that_its_examples_need(graph):
    of_table = TableTest([[3], [1], [3]])
    with tf.Session() as session:
        of_table.initialize(session)
        of_table.test.check(session)
        assert of_table.test(session).loss == pytest.approx((6 + 2 + 6) / 3)


@pytest.mark.parametrize("words", [[[3], [4]], [[4], [3]]])
def test_a_test_example_that_needs_a_row_that_is_not_there_is_told_before_training(graph, words):
    of_table = TableTest(words)
    with tf.Session() as session:
        of_table.initialize(session)
        with pytest.raises(tf.errors.InvalidArgumentError, match="needs ids from 0 to 3 of table, found"):
            of_table.test.check(session)


def test_all_rows_of_a_table_are_read_in_pieces_that_can_be_sent(graph, monkeypatch):
    monkeypatch.setattr("runtime.model.variables.PIECE_BYTES", 8)
    of_table = TableTest([[0]])
    reader = TableReader(of_table.variables["table"])
    with tf.Session() as session:
        of_table.initialize(session)
        assert reader.read(session).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_model_that_was_lost_with_a_ps_has_not_reached_the_goal(local_servers):
    servers = local_servers(1, 1)
    with tf.Graph().as_default() as graph:
        initializer = tf.train.create_global_step().initializer
    hook = EvaluationHook(servers.task("worker", 0), FixedTest(), GOAL, None)
    hook._has_reached = True
    with servers.worker_session(0, graph) as session:
        session.run(initializer)
        hook.after_create_session(session, tf.train.Coordinator())
        context = tf.train.SessionRunContext(None, session)
        hook.after_run(context, None)
        assert not context.stop_requested


def test_an_evaluation_of_a_model_that_was_lost_meanwhile_does_not_end_training(local_servers):
    servers = local_servers(1, 1)
    with tf.Graph().as_default() as graph:
        initializer = tf.train.create_global_step().initializer
    coord = tf.train.Coordinator()
    test = FixedTest(lambda _: coord.request_stop() or MEASURES)  # as when a ps dies
    hook = EvaluationHook(servers.task("worker", 0), test, GOAL, None)
    with servers.worker_session(0, graph) as session:
        session.run(initializer)
        hook.after_create_session(session, coord)
        assert not hook.evaluate(session, coord)
    assert not hook._has_reached


FIGURES = {"global_step": 40, "test_accuracy": 0.5, "test_loss": 1.0}
RESULT = Result(FIGURES, 5.0, 8.0, {"model": "mlp"})


def with_figures(**figures):
    return RESULT._replace(figures={**FIGURES, **figures})


@pytest.mark.parametrize(("global_step", "words"), [(1, "1 global step in"), (2, "2 global steps in")])
def test_the_last_line_has_a_plural_for_more_than_one_step(global_step, words):
    assert f" after {words} 5.0 s" in str(with_figures(global_step=global_step))


@pytest.mark.promises("fields-of-result")
def test_a_result_replaces_that_of_the_same_step_only_if_it_says_something_new(tmp_path, leave_checkpoint):
    leave_checkpoint(40)
    again = RESULT._replace(train_secs=None)  # of a process that found the model finished
    for result, expected in (
        (RESULT, 5.0),
        (again, 5.0),
        (with_figures(test_accuracy=0.25)._replace(train_secs=None), None),
    ):
        result.write(RunFolder(tmp_path))
        assert json.loads((tmp_path / "result.json").read_text())["train_secs"] == expected


@pytest.mark.promises("result-as-a-whole")
def test_a_result_that_cannot_take_the_place_of_the_last_one_leaves_it_whole(tmp_path, leave_checkpoint, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    leave_checkpoint(40)
    RESULT.write(RunFolder(tmp_path))
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(UnsavedError, match=r"result\.json could not be written: Input/output error"):
        with_figures(test_accuracy=0.25).write(RunFolder(tmp_path))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files


def test_a_result_may_have_the_value_of_a_flag_that_is_of_an_enum(tmp_path):
    RESULT._replace(settings={"activation": enum.Enum("Activation", ["RELU"]).RELU}).write(RunFolder(tmp_path))
    assert json.loads((tmp_path / "result.json").read_text())["activation"] == "Activation.RELU"


def test_a_chief_that_has_taken_no_step_says_nothing_of_speed():
    assert str(RESULT._replace(train_secs=None)).endswith(" after 40 global steps")


@pytest.mark.promises("step-that-was-tested")
@pytest.mark.parametrize("num_late_runs", [0, 1, 2])
def test_what_a_worker_brings_after_the_last_checkpoint_is_saved_too(tmp_path, graph, num_late_runs):
    late_run = tf.train.create_global_step().assign_add(8)
    scaffold = tf.train.Scaffold(saver=tf.train.Saver())
    hook = CheckpointHook(CHIEF, RunFolder(tmp_path), scaffold, save_secs=60, train_steps=100)
    with tf.train.MonitoredSession(tf.train.ChiefSessionCreator(scaffold), [hook]) as session:
        session.run(late_run)
    late_runs = iter(range(num_late_runs))
    with tf.Session() as session:
        scaffold.saver.restore(session, tf.train.latest_checkpoint(tmp_path))

        def evaluate(_):
            if next(late_runs, None) is not None:
                session.run(late_run)
            return MEASURES._replace(global_step=int(session.run(tf.train.get_global_step())))

        measures = evaluate_and_save(session, evaluate, hook)
    assert measures.global_step == 8 + 8 * num_late_runs
    assert hook.has_saved(measures.global_step)


@pytest.mark.promises("ps-lost-in-test")
def test_a_chief_that_loses_a_ps_while_it_tests_the_model_does_not_go_on(tmp_path, graph):
    tf.train.create_global_step()
    hook = CheckpointHook(
        CHIEF, RunFolder(tmp_path), tf.train.Scaffold(saver=tf.train.Saver()), save_secs=60, train_steps=100
    )

    def evaluate(_):
        raise tf.errors.UnavailableError(None, None, "Socket closed")

    with tf.Session() as session, pytest.raises(tf.errors.UnavailableError):
        evaluate_and_save(session, evaluate, hook)


@pytest.mark.promises("unwritable-result")
@pytest.mark.parametrize("is_mended", [True, False])
def test_only_what_could_not_be_saved_is_tried_again(tmp_path, caplog, is_mended):
    caplog.set_level("INFO")
    train_dir, saved = tmp_path / "train", []

    def mend():
        if is_mended and not train_dir.exists():
            train_dir.mkdir()
            raise UnsavedError("no space left")
        saved.append("other")

    steps = [lambda: RESULT.write(RunFolder(train_dir)), mend]
    if is_mended:
        keep_trying(CHIEF, steps, timeout_secs=60)
        assert json.loads((train_dir / "result.json").read_text())["global_step"] == 40
        reasons = f"({train_dir}/result.json could not be written: No such file or directory; no space left)"
        assert f"worker 0: waiting for the result to be saved {reasons}" in caplog.text
    else:
        with pytest.raises(
            UnsavedError, match=r"waited 1 s for the result .*result\.json could not be written: No such file"
        ):
            keep_trying(CHIEF, steps, timeout_secs=1)
    assert saved == ["other"]
