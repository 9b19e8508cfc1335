"""A mistake in model.py or mnist_input.py is told with its place, and with status 2: no other attempt can succeed."""

import re
import shutil
import subprocess
import sys
import types
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmarks.testbed.processes import PROJECT
from runtime import users_files
from runtime.errors import UnusableError
from runtime.model.files import Files
from runtime.model.trace import trace
from runtime.users_files import check_examples, describe_mistake, inputs_of
from tests.models import make_files, make_model

IN_MODEL = PROJECT / "model.py"
INPUT = tf.TensorSpec([1, 2], tf.uint8, "numbers")


class Examples(NamedTuple):
    numbers: np.ndarray
    labels: np.ndarray


OF_VERSION_1 = r"model\.py has build_parameters\(\), as in version 1: let build_logits\(\) make its variables .*"


def test_a_model_of_version_1_is_refused():
    old = types.SimpleNamespace(build_parameters=dict, build_logits=lambda parameters, images: images)
    with pytest.raises(UnusableError, match=f"^{OF_VERSION_1}"):
        Files(old, types.SimpleNamespace(INPUT=INPUT))


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
        UnusableError, match=r"^mnist_input\.py: INPUT is .*, expected a tf\.TensorSpec of a whole shape"
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
        ({"build_logits": lambda x, t: [1.0]}, r"build_logits\(\) must return a tensor, or a dict of them, found \[1"),
        ({"build_loss": lambda x, y: x}, r"build_loss\(\) must return float32 \[\], found float32 \(None, 1, 2\)"),
        ({"build_loss": lambda x, y: None}, r"build_loss\(\) must return float32 \[\], found None"),
        ({"build_loss": lambda x, y: 1.0}, r"build_loss\(\) must return float32 \[\], found 1\.0"),
        ({"build_loss": lambda x, y: tf.constant(1)}, r"build_loss\(\) must return float32 \[\], found int32 \(\)"),
        ({"build_loss": lambda x, y: 1 / 0}, r"build_loss\(\): ZeroDivisionError: division by zero; correct model\.py"),
        ({"build_metrics": lambda x, y: x}, r"build_metrics\(\) must return a dict by name, found float32"),
        (
            {"build_metrics": lambda x, y: {"a b": sum_up(x, y)}},
            r"build_metrics\(\) must return names of .*, found 'a b'",
        ),
        (
            {"build_metrics": lambda x, y: {"loss": sum_up(x, y)}},
            r"build_metrics\(\) must .*, other than loss, found 'los",
        ),
        ({"build_metrics": lambda x, y: {"a": x}}, r"build_metrics\(\), a must return float32 \[\], found float32"),
        (
            {"build_metrics": lambda x, y: {"a": (x, x)}},
            r"build_metrics\(\), the value of a must return float32 \[\], f",
        ),
        (
            {"build_predictions": lambda x: x},
            r"build_predictions\(\) must return a dict of tensors by name, found floa",
        ),
        (
            {"build_predictions": lambda x: {"a": 1}},
            r"build_predictions\(\) must return a dict of tensors by name, fou",
        ),
        ({"build_logits": make_idle}, "the loss does not depend on idle: use it, or do not make it"),
        ({"build_logits": make_in_tests_only}, "late is not made for training: make it always"),
        ({"build_logits": make_double}, "weight is float64, but what is trained must be float32"),
        ({"build_logits": assign_to_what_is_trained}, "weight is trained, so no other assignment may change it"),
    ],
)
def test_what_cannot_be_trained_is_refused(functions, message):
    with pytest.raises(UnusableError, match=rf"^(model\.py: |model\.py, ){message}"):
        make_model(**{"build_logits": multiply, "build_loss": sum_up, "spec": INPUT, **functions})


@pytest.mark.parametrize(
    ("decoded", "found"), [(lambda x: x, r"uint8 \(None, 1, 2\)"), (lambda x: None, "None"), (lambda x: (x,), r"\(<tf")]
)
def test_decode_must_return_inputs_and_labels(decoded, found):
    with pytest.raises(
        UnusableError, match=rf"^mnist_input\.py: decode\(\) must return the inputs and the labels, found {found}"
    ):
        make_model(multiply, sum_up, INPUT, decoded)


@pytest.mark.parametrize(("name", "file"), [("build_logits", "model.py"), ("decode", "mnist_input.py")])
def test_a_function_that_is_missing_is_told(name, file):
    files = make_files(multiply, sum_up, INPUT)
    for module in (files._model, files._input):
        vars(module).pop(name, None)
    with pytest.raises(UnusableError, match=rf"^{file} has no {name}\(\): docs/your-own\.md says what it must have"):
        trace(files, [INPUT], is_training=True, seed=0)


def in_model(text):
    """Return what some lines define that stand in model.py."""
    values = {"tf": tf}
    exec(compile(text, IN_MODEL, "exec"), values)
    return values


def test_an_error_of_a_function_is_told_with_the_line_and_not_with_its_traceback():
    build_logits = in_model("def build_logits(inputs, is_training):\n    return inputs @ inputs\n")["build_logits"]
    with pytest.raises(UnusableError, match=r"^model\.py, line 2: \w+: .*; correct model\.py$"):
        make_model(build_logits, sum_up, INPUT)


def test_what_is_kept_from_one_call_for_the_next_is_told():
    def build_logits(inputs, is_training):
        weights.append(tf.get_variable("weight", []))
        return tf.cast(inputs, tf.float32) * weights[0]

    weights = []
    with pytest.raises(UnusableError, match=r"same graph as .* \(each call of a function has a graph of its own: let"):
        make_model(build_logits, sum_up, INPUT)


def test_an_error_of_an_op_is_told_with_the_line_that_its_copies_come_from(graph):
    text = (
        "def build_logits(inputs, is_training):\n"
        "    scale = tf.get_variable('scale', [])\n"
        "    return scale * tf.gather([1.0, 2.0], tf.cast(inputs, tf.int32))\n"
    )
    model = make_model(in_model(text)["build_logits"], sum_up, INPUT)
    numbers = tf.placeholder(tf.uint8, [None, 1, 2])
    loss, gradients = model.build_gradients({"scale": tf.constant(1.0)}, [numbers])
    with tf.Session() as session:
        assert session.run([loss, gradients["scale"]], {numbers: [[[0, 1]]]}) == [3, 3]
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            session.run(loss, {numbers: [[[0, 7]]]})
    assert describe_mistake(error.value).startswith(
        "model.py, line 3: InvalidArgumentError: indices[0,0,1] = 7 is not in"
    )


def raised_in_model(text):
    """Return the error of some lines that stand in model.py."""
    try:
        exec(compile(text, IN_MODEL, "exec"))
    except (Exception, SystemExit) as error:
        return error


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("x = 0\n1 / x", "model.py, line 2: ZeroDivisionError: division by zero; correct model.py"),
        ("raise OSError('the server is away')", ""),
        ("open('/no/such/file')", "model.py, line 1: FileNotFoundError: [Errno 2] No such file or directory: "),
        ("raise MemoryError", ""),
        ("raise SystemExit(3)", "model.py, line 1: SystemExit: 3; correct model.py"),
        ("raise ValueError('two\\nlines')", "model.py, line 1: ValueError: two lines; correct model.py"),
    ],
)
def test_an_error_that_a_users_file_has_raised_is_told_with_its_place(text, mistake):
    assert describe_mistake(raised_in_model(text)).startswith(mistake)
    assert bool(describe_mistake(raised_in_model(text))) == bool(mistake)


def test_an_error_of_an_op_that_a_users_file_has_made_is_told_with_its_place(graph):
    text = "\nloss = tf.nn.sparse_softmax_cross_entropy_with_logits(logits=tf.zeros([1, 3]), labels=labels)"
    values = {"tf": tf, "labels": tf.placeholder(tf.int32, [1])}
    exec(compile(text, IN_MODEL, "exec"), values)
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError) as error:
        session.run(values["loss"], {values["labels"]: [7]})
    mistake = describe_mistake(error.value)
    assert mistake.startswith("model.py, line 2: InvalidArgumentError: Received a label value of 7 which is outside")


def test_an_error_in_a_function_of_python_is_told_with_the_place_of_its_op(graph):
    values = {"tf": tf}
    exec(compile("fails = tf.py_func(lambda x: 1 / int(x), [tf.constant(0)], tf.float64)", IN_MODEL, "exec"), values)
    with tf.Session() as session, pytest.raises(tf.errors.OpError) as error:
        session.run(values["fails"])
    assert describe_mistake(error.value).startswith(
        "model.py, line 1: UnknownError: ZeroDivisionError: division by zero"
    )


def test_an_error_of_another_module_of_the_user_is_told_with_the_place_there():
    def use():
        exec(compile("def helper(): return {}['key']", PROJECT / "helper.py", "exec"), helper)
        exec(compile("helper()", IN_MODEL, "exec"), helper)

    helper = {}
    with pytest.raises(KeyError) as error:
        use()
    assert describe_mistake(error.value) == "helper.py, line 1: KeyError: 'key'; correct helper.py"


@pytest.mark.parametrize(
    ("name", "text", "status", "mistake"),
    [
        ("model.py", "def build(:", 2, "model.py, line 1: SyntaxError: .*; correct model.py"),
        ("mnist_input.py", "\nimport nowhere", 2, "mnist_input.py, line 2: ModuleNotFoundError: .*; correct mnist_.*"),
        (
            "model.py",
            "from absl import flags\nflags.DEFINE_integer('batch_size', 1, '')",
            2,
            "model.py defines --batch_size, which is a flag of distributed.py: give it another name",
        ),
        ("model.py", "raise SystemExit(0)", 2, "model.py, line 1: SystemExit: 0; correct model.py"),
        ("model.py", "raise OSError(5, 'away')", 1, "model.py, line 1: OSError: .* away; start this task again"),
        ("model.py", "def build_parameters(model, hidden_units): ...", 2, OF_VERSION_1),
        (
            "mnist_input.py",
            "INPUT = 28",
            2,
            "mnist_input.py: INPUT is 28, expected a tf.TensorSpec of a whole shape, .*",
        ),
    ],
)
def test_a_file_that_cannot_be_imported_is_told_in_one_line(tmp_path, name, text, status, mistake):
    for path in ("runtime", "distributed.py", "model.py", "mnist_input.py", "pyproject.toml"):
        (shutil.copytree if (PROJECT / path).is_dir() else shutil.copy)(PROJECT / path, tmp_path / path)
    (tmp_path / name).write_text(text)
    command = [sys.executable, "distributed.py", "--job_name=ps", "--task_index=0"]
    if "SystemExit" in mistake:  # which by hand ends the program, as in every Python program
        command = [sys.executable, "-m", "runtime.launch", f"--train_dir={tmp_path / 'run'}"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == status
    (line,) = [line for line in process.stderr.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in process.stderr
    assert re.fullmatch(f"error: {mistake}", line)


def test_what_cannot_be_imported_from_elsewhere_keeps_its_traceback(capfd):
    error = ValueError("elsewhere")
    users_files._tell_mistake(ValueError, error, None)
    assert "ValueError: elsewhere" in capfd.readouterr().err


@pytest.mark.parametrize("numbers", [np.zeros([1, 3], np.uint8), np.zeros([1, 2], np.float32)])
def test_examples_that_are_not_as_input_says_are_refused(numbers):
    expected, found = r"uint8 \[n, 2\], as INPUT says for numbers", rf"{numbers.dtype} \[1, {numbers.shape[1]}\]"
    with pytest.raises(
        UnusableError, match=f"the examples cannot be used: expected {expected}, found {found}; correct"
    ):
        check_examples(Examples(numbers, np.zeros(1, int)), INPUT, "the examples")


def test_what_lies_in_an_environment_in_the_checkout_is_no_file_of_a_user(monkeypatch):
    monkeypatch.setattr(users_files, "LIBRARIES", (str(PROJECT / "venv"),))
    assert not users_files._is_users(PROJECT / "venv" / "lib" / "session.py")
    assert users_files._is_users(PROJECT / "model.py")


def test_an_import_without_the_package_of_old_layers_names_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "tf_keras", raising=False)
    line = users_files.tell_mistake("model.py, line 3", ImportError("Keras cannot be imported."))
    assert line.startswith("model.py, line 3: ImportError: Keras cannot be imported. (tf.layers, ")
    assert "the package tf_keras: pip install" in line
    assert line.endswith("; correct model.py")
