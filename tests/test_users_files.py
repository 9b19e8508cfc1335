"""A mistake in model.py or mnist_input.py is told with its place, and with status 2: no other attempt can succeed."""

import re
import shutil
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import distributed
from benchmarks.testbed.processes import PROJECT
from runtime import users_files
from runtime.errors import UnusableError
from runtime.users_files import build_parameters, check_examples, describe_mistake

IN_MODEL = PROJECT / "model.py"
INPUT = tf.TensorSpec([1, 2], tf.uint8, "numbers")


class Model:
    """A user's model.py, whose function returns what it is told."""

    def __init__(self, parameters):
        self.build_parameters = lambda model, hidden_units: parameters()


class Examples(NamedTuple):
    numbers: np.ndarray
    labels: np.ndarray


@pytest.mark.parametrize(
    ("parameters", "found"),
    [
        (lambda: [tf.get_variable("weights", [2])], "must return a dict of variables by name, found list"),
        (lambda: {"a": tf.constant([1.0])}, "must return variables, found .*Tensor for a"),
        (lambda: {"a": [1.0, 2.0]}, "must return variables, found list for a"),
        (lambda: {"a": 1.0}, "must return variables, found float for a"),
    ],
)
def test_parameters_that_cannot_be_made_are_refused(graph, parameters, found):
    with pytest.raises(UnusableError, match=rf"model\.py: build_parameters\(\) {found}"):
        build_parameters(Model(parameters), "mlp", 100)


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
            "from absl import flags\nMODELS = ['a']\nflags.DEFINE_integer('batch_size', 1, '')",
            2,
            "model.py defines --batch_size, which is a flag of distributed.py: give it another name",
        ),
        ("model.py", "raise SystemExit(0)", 2, "model.py, line 1: SystemExit: 0; correct model.py"),
        ("model.py", "raise OSError(5, 'away')", 1, "model.py, line 1: OSError: .* away; start this task again"),
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
    expected, found = r"uint8 \[n, 2\], as INPUT says", rf"{numbers.dtype} \[1, {numbers.shape[1]}\]"
    with pytest.raises(
        UnusableError, match=f"the examples cannot be used: expected {expected}, found {found}; correct"
    ):
        check_examples(Examples(numbers, np.zeros(1, int)), INPUT, "the examples")


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (lambda: None, "found NoneType"),
        (lambda: tf.constant([1, 2]), r"found int32 \(2,\)"),
        (lambda: tf.constant([1.0, 2.0]), r"found float32 \(2,\)"),
    ],
)
def test_logits_that_are_none_are_refused(graph, monkeypatch, value, found):
    def build_logits(parameters, images):
        return value()

    monkeypatch.setattr(distributed.model, "build_logits", build_logits)
    with pytest.raises(
        UnusableError, match=rf"^model\.py: build_logits\(\) must return float32 \[b, classes\], {found}"
    ):
        distributed.build_logits({}, tf.zeros([2, 784]))
