"""What model.py and mnist_input.py must have, and return."""

import shutil
import sys
import types
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmarks.testbed.processes import PROJECT, Process
from runtime.model import user_dir
from runtime.model.trace import trace
from runtime.model.users_files import check_columns, check_examples, checksums, inputs_of
from runtime.process.errors import UnusableError
from tests import forked
from tests.models import make_files, make_model

INPUT = tf.TensorSpec([1, 2], tf.uint8, "numbers")


def test_a_checksum_tells_a_file_from_another_whatever_its_line_ends(tmp_path, monkeypatch):
    """Those that the two files import, too, but no package that is installed."""
    (tmp_path / "nets").mkdir()
    monkeypatch.setattr(user_dir, "find", lambda: str(tmp_path))
    for name in ("model", "nets/conv"):
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(__file__=str(tmp_path / f"{name}.py")))

    def compute(content):
        for name in ("model.py", "nets/conv.py"):
            (tmp_path / name).write_bytes(content)
        found = checksums()
        assert found.keys() == {"model.py", "nets/conv.py"}
        assert found["model.py"] == found["nets/conv.py"]
        return found["model.py"]

    assert compute(b"a = 1\n") == compute(b"a = 1\r\n") != compute(b"a = 2\n")


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["model"], "has no mnist_input.py: name a folder with model.py and mnist_input.py, here or in USER_DIR"),
        (["model", "mnist_input", "numpy", "random"], "has numpy.py, random.py, but the program needs its own modules"),
        (["model", "mnist_input", "layers", "distributed", "test", "__main__"], ""),
    ],
)
def test_a_folder_that_lacks_a_file_or_hides_a_module_is_told(tmp_path, names, why):
    for name in names:
        (tmp_path / f"{name}.py").touch()
    found = user_dir.why_unusable(str(tmp_path))
    assert found.startswith(f"--user_dir {tmp_path} {why}") if why else not found


@pytest.mark.slow
def test_a_file_beside_the_script_that_hides_a_module_is_told_by_each_way_to_start(tmp_path):
    """Also what Python, or the program, imports before anything can be checked; all are told at once."""
    for name in ("distributed.py", "model.py", "mnist_input.py"):
        shutil.copy(PROJECT / name, tmp_path)
    shutil.copytree(PROJECT / "runtime", tmp_path / "runtime", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("queue", "random", "runtime", "types"):
        (tmp_path / f"{name}.py").touch()
    told = f"error: {tmp_path} has queue.py, random.py, runtime.py, types.py, but the program needs its own modules of"
    for command in (["distributed.py", "--job_name=ps", "--task_index=0"], ["runtime/launch", "prepare", "--prepare"]):
        process = Process([sys.executable, *command], tmp_path / "output", cwd=tmp_path)
        assert process.wait() == 2
    assert process.output().count(told) == 2
    assert "Traceback" not in process.output()


def test_files_are_imported_from_where_the_command_line_or_the_environment_says(tmp_path):
    """And from there on, wherever they go; others of these names are not seen."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "model.py").write_text("import os\nos.chdir('/')\nimport layers\nprint(layers.__file__, flush=True)\n")
    (own / "mnist_input.py").write_text("import tensorflow\nINPUT = tensorflow.TensorSpec([], name='x')\n")
    (own / "layers.py").touch()
    (tmp_path / "own.flags").write_text("--user_dir=own\n")
    of_task = ["--job_name=ps", "--task_index=0", "--batch_size=0"]
    of_file = [f"--flagfile={tmp_path / 'own.flags'}"]
    for given, env in ((["--user_dir", "own"], None), (of_file, None), ([], {"USER_DIR": "own"})):
        command = [sys.executable, PROJECT / "distributed.py", *of_task, *given]
        process = Process(command, tmp_path / "output", env, tmp_path, forked.Popen)
        assert process.wait() == 2
    assert process.output().count(f"{own}/layers.py\n") == process.output().count("error: flag --batch_size=0") == 3


class Examples(NamedTuple):
    numbers: np.ndarray
    labels: np.ndarray


@pytest.mark.parametrize(
    "spec",
    [
        28,
        [28, 28],
        tf.TensorSpec([1, 2], tf.uint8),
        tf.TensorSpec([1, 2], tf.uint8, "two words"),
        tf.TensorSpec([None, 2], tf.uint8, "numbers"),
        {"numbers": [1, 2]},
        {1: INPUT},
    ],
)
def test_an_input_that_says_no_name_or_no_whole_shape_is_refused(spec):
    with pytest.raises(
        UnusableError, match=r"^mnist_input\.py: INPUT is .*, expected a tf\.TensorSpec with a fully defined shape"
    ):
        inputs_of(spec)


def test_an_input_may_have_a_name_or_several():
    other = tf.TensorSpec([], tf.string)
    assert inputs_of(INPUT) == {"numbers": INPUT}
    assert inputs_of({"first": INPUT, "second": other}) == {"first": INPUT, "second": other}


def sum_up(logits, labels):
    return tf.reduce_sum(logits)


def multiply(inputs, is_training):
    return tf.cast(inputs, tf.float32) * tf.get_variable("weight", [])


def make_idle(inputs, is_training):
    tf.get_variable("idle", [2])
    return multiply(inputs, is_training)


def make_in_tests_only(inputs, is_training):
    return multiply(inputs, is_training) * (1 if is_training else tf.get_variable("late", []))


def make_double(inputs, is_training):
    return tf.cast(inputs, tf.float32) * tf.cast(tf.get_variable("weight", [], tf.float64), tf.float32)


def assign_to_what_is_trained(inputs, is_training):
    weight = tf.get_variable("weight", [])
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, weight.assign(1.0))
    return tf.cast(inputs, tf.float32) * weight


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ({"build_logits": lambda x, t: None}, r"build_logits\(\) must return a tensor, or a dict of them, found None$"),
        (
            {"build_logits": lambda x, t: [1.0]},
            r"build_logits\(\) must return a tensor, or a dict of them, found a list of 1: 1\.0$",
        ),
        ({"build_loss": lambda x, y: x}, r"build_loss\(\) must return float32 \[\], found float32 \(None, 1, 2\)"),
        ({"build_loss": lambda x, y: None}, r"build_loss\(\) must return float32 \[\], found None"),
        ({"build_loss": lambda x, y: 1.0}, r"build_loss\(\) must return float32 \[\], found 1\.0"),
        (
            {"build_loss": lambda x: x},
            r"build_loss\(\) takes \(x\), expected a function of 2 arguments: see docs/your-own\.md$",
        ),
        (
            {"build_learning_rate": lambda: 0.1},
            r"build_learning_rate\(\) takes \(\), expected a function of 1 argument:",
        ),
        (
            {"build_loss": lambda x, y: (sum_up(x, y), 1.0)},
            r"build_loss\(\) must return float32 \[\], found a tuple of 2: float32 \(\), 1\.0$",
        ),
        ({"build_loss": lambda x, y: tf.constant(1)}, r"build_loss\(\) must return float32 \[\], found int32 \(\)"),
        (
            {"build_loss": lambda x, y: 1 / 0},
            r"ZeroDivisionError: division by zero; correct tests/test_users_files\.py",
        ),
        ({"build_metrics": lambda x, y: x}, r"build_metrics\(\) must return a dict by name, found float32"),
        (
            {"build_metrics": lambda x, y: {"a b": sum_up(x, y)}},
            r"build_metrics\(\) must return names of .*, found 'a b'",
        ),
        (
            {"build_metrics": lambda x, y: {"loss": sum_up(x, y)}},
            r"build_metrics\(\) must .*, other than loss, found 'los",
        ),
        ({"build_metrics": lambda x, y: {"a": x}}, r"build_metrics\(\) must return float32 \[\] as a, found float32"),
        (
            {"build_metrics": lambda x, y: {"a": (x, x)}},
            r"build_metrics\(\) must return float32 \[\] as the value of a, f",
        ),
        (
            {"build_predictions": lambda x: x},
            r"build_predictions\(\) must return a dict of tensors by name, found floa",
        ),
        (
            {"build_predictions": lambda x: {"a": 1}},
            r"build_predictions\(\) must return a dict of tensors by name, fou",
        ),
        (
            {"build_learning_rate": lambda step: tf.keras.optimizers.schedules.ExponentialDecay(0.1, 9, 0.9)},
            r"build_learning_rate\(\) must return float32 \[\], found <tf_keras",
        ),
        (
            {"build_learning_rate": lambda step: "0.1"},
            r"build_learning_rate\(\) must return float32 \[\], found '0\.1'",
        ),
        ({"build_logits": make_idle}, "the loss does not depend on idle: use it, or do not create it"),
        ({"build_logits": make_in_tests_only}, "late is created only for tests: create it always"),
        ({"build_logits": make_double}, "weight is float64, but what is trained must be float32"),
        ({"build_logits": assign_to_what_is_trained}, "weight is trained, so no other assignment may change it"),
    ],
)
def test_what_cannot_be_trained_is_refused(functions, message):
    with pytest.raises(UnusableError, match=rf"^tests/\S+\.py, line \d+: {message}"):
        make_model(**{"build_logits": multiply, "build_loss": sum_up, "spec": INPUT, **functions})


@pytest.mark.parametrize(
    ("found", "num_classes", "names"),
    [(["a", 7], 2, ["a", "7"]), (("a", "b"), 0, ["a", "b"]), ([0, 1], 2, [])],
)
def test_classes_have_the_names_that_a_user_gives_them(found, num_classes, names):
    files = make_files(multiply, sum_up, INPUT)
    assert files.name_classes("folder", num_classes) == []
    files.reader.find_classes = lambda data_dir: {"folder": found}[data_dir]
    assert files.name_classes("folder", num_classes) == names


@pytest.mark.parametrize("found", [["a"], list("abcd"), None, (["a", "b"], {})])
def test_names_that_are_not_those_of_the_classes_are_refused(found):
    files = make_files(multiply, sum_up, INPUT)
    files.reader.find_classes = lambda data_dir: found
    expected = r"find_classes\(\) must return a list of names, one for each class of the model \(3\), found"
    with pytest.raises(UnusableError, match=expected):
        files.name_classes("folder", 3)


@pytest.mark.parametrize(
    ("decoded", "found"),
    [(lambda x: x, r"uint8 \(None, 1, 2\)"), (lambda x: None, "None"), (lambda x: (x,), "a tuple of 1: uint8")],
)
def test_decode_must_return_inputs_and_labels(decoded, found):
    with pytest.raises(
        UnusableError,
        match=rf"^tests/\S+\.py, line \d+: decode\(\) must return the inputs and the labels, found {found}",
    ):
        make_model(multiply, sum_up, INPUT, decoded)


@pytest.mark.parametrize(("name", "file"), [("build_logits", "model.py"), ("decode", "mnist_input.py")])
def test_a_function_that_is_missing_is_told(name, file):
    files = make_files(multiply, sum_up, INPUT)
    files.model.__name__ = "model"
    for module in (files.model, files.reader):
        vars(module).pop(name, None)
    with pytest.raises(UnusableError, match=rf"^{file} has no {name}\(\): see docs/your-own\.md"):
        trace(files, [INPUT], is_training=True, seed=0)


def test_labels_that_are_drawn_are_refused_since_tests_have_them_too():
    def decode(numbers):
        drawn = tf.random.uniform(tf.shape(numbers))
        return tf.cast(numbers, tf.float32) + drawn, drawn

    with pytest.raises(
        UnusableError, match=r"_files\.py, line \d+: decode\(\) draws labels at random, .*: draw in build"
    ):
        make_model(multiply, sum_up, INPUT, decode)


def test_inputs_come_in_the_order_of_input():
    spec = {"b": tf.TensorSpec([], tf.float32), "a": tf.TensorSpec([], tf.float32)}
    columns, names = 3 * [tf.TensorSpec([], tf.float32)], ["a", "b", "label"]
    with pytest.raises(
        UnusableError, match="expected the inputs in the order of INPUT, b, a, found a, b; correct mnist"
    ):
        check_columns(columns, spec, "the examples", names)
    check_columns(columns, {"a": spec["a"], "b": spec["b"]}, "the examples", names)
    check_columns(columns, spec, "the examples", ["x", "y", "label"])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0], "expected an array for labels, found list"),
        (np.array([None], object), "expected .* or text, as labels, found objects, such as None in row 0"),
        (np.array(["a", float("nan")], object), "expected .* or text, as labels, found objects, such as nan in row 1"),
        (np.zeros(1, "M8[s]"), r"expected numbers or text as labels, found datetime64\[s\]"),
        (
            np.ma.masked_greater(np.array([1.0, 1e20]), 9),
            "expected a value in each row of labels, found 1 masked",
        ),
    ],
)
def test_a_part_that_is_no_array_or_has_rows_without_text_is_told_by_its_name(labels, message):
    with pytest.raises(UnusableError, match=f"the examples cannot be used: {message}; correct"):
        check_examples(Examples(np.zeros([1, 2], np.uint8), labels), "the examples")
    check_examples(Examples(np.zeros([2, 2], np.uint8), np.array(["a", b"b"], object)), "the examples")


@pytest.mark.parametrize("found", [tf.TensorSpec([3], tf.uint8), tf.TensorSpec([2], tf.float32)])
def test_examples_that_are_not_as_input_says_are_refused(found):
    message = rf"expected uint8 \(1, 2\), as INPUT says for numbers, found {found.dtype.name} \({found.shape[0]},\)"
    with pytest.raises(UnusableError, match=f"the examples cannot be used: {message}; correct"):
        check_columns([found, tf.TensorSpec([], tf.int64)], INPUT, "the examples")
    check_columns([tf.TensorSpec([2], tf.uint8)], INPUT, "the examples")
    with pytest.raises(UnusableError, match="expected a column for each of numbers, found 0"):
        check_columns([], INPUT, "the examples")


class Clipped(tf.train.GradientDescentOptimizer):
    def compute_gradients(self, *args, **kwargs):
        return [(tf.clip_by_norm(g, 1.0), v) for g, v in super().compute_gradients(*args, **kwargs)]


@pytest.mark.parametrize(
    ("build_optimizer", "message"),
    [
        (lambda rate: Clipped(rate), r"returns a Clipped, whose compute_gradients\(\) is never called here: let"),
        (lambda rate: rate, "must return a tf.train.Optimizer, or a dict of them by variable scope, found float32"),
        (
            lambda rate: tf.train.SyncReplicasOptimizer(Clipped(rate), replicas_to_aggregate=1),
            "returns a SyncReplicasOptimizer: return the optimizer that it wraps, and give --sync_replicas",
        ),
        (lambda rate: tf.keras.optimizers.Adam(rate), "must return .*, found <tf_keras.*\\.Adam object>"),
    ],
)
def test_an_optimizer_must_be_one_whose_apply_gradients_does_it_all(build_optimizer, message):
    with tf.Graph().as_default(), pytest.raises(UnusableError, match=rf"\.py, line \d+: build_optimizer\(\) {message}"):
        make_model(multiply, sum_up, INPUT, build_optimizer=build_optimizer).own.build_optimizer(tf.constant(0.1))
