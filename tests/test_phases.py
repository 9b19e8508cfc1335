"""An error before the first step is one of the user's files, told with its line; after that, it may pass."""

import errno
import os
import re
import runpy
import shutil
import ssl
import subprocess
import sys
import urllib.error

import psutil
import pytest
import requests  # which TensorFlow needs
import tensorflow.compat.v1 as tf

from benchmarks.testbed.processes import DEADLINE_SECS, PROJECT
from runtime.launch.ports import choose_ports
from runtime.process import phases
from runtime.process.errors import DataLostError, UnusableError
from runtime.records import events
from runtime.records.folder import RunFolder
from tests.full_disk import NEEDS_PRIVATE_MOUNTS
from tests.models import make_model
from tests.test_users_files import INPUT, sum_up

IN_MODEL = PROJECT / "model.py"


@pytest.fixture(autouse=True)
def _before_the_first_step(monkeypatch):
    monkeypatch.setattr(phases, "_has_stepped", False)


def in_model(text, **values):
    """Return what some lines define that stand in model.py."""
    values["tf"] = tf
    exec(compile(text, IN_MODEL, "exec"), values)
    return values


def prepare(text):
    with phases.preparing("model.py, build_loss()"):
        in_model(text)


@pytest.mark.parametrize(
    ("text", "line", "mistake"),
    [
        ("x = 0\n1 / x", 2, "ZeroDivisionError: division by zero"),
        ("open('/no/such/file')", 1, "FileNotFoundError: [Errno 2] No such file or directory: '/no/such/file'"),
        ("import gzip\ngzip.decompress(b'text')", 2, "BadGzipFile: Not a gzipped file (b'te')"),
        ("open('/')", 1, "IsADirectoryError: [Errno 21] Is a directory: '/'"),
        ("raise SystemExit(3)", 1, "SystemExit: 3"),
        ("raise ValueError('two\\nlines')", 1, "ValueError: two lines"),
        ("\ntf.zeros([2, 3]) @ tf.zeros([2, 3])", 2, "ValueError: Dimensions must be equal, but are 3 and 2 for"),
    ],
)
def test_a_mistake_is_told_as_python_does_and_in_one_line(capsys, text, line, mistake):
    with pytest.raises(UnusableError) as error, tf.Graph().as_default():
        prepare(text)
    assert str(error.value).startswith(f"model.py, line {line}: {mistake}")
    assert str(error.value).endswith("; correct model.py")
    told = capsys.readouterr().err
    assert told.startswith("Traceback (most recent call last):\n")
    files = re.findall('File "(.*?)", line', told)
    assert files == [__file__, __file__, str(IN_MODEL)], "neither this program nor TensorFlow"


DATA = ", --data_dir, or the data there"


@pytest.mark.parametrize(("error", "remedy"), [(EOFError, DATA), (FileNotFoundError, DATA), (NameError, "")])
def test_a_file_that_cannot_be_read_may_be_what_is_wrong_not_the_code_that_reads_it(tmp_path, error, remedy):
    path = tmp_path / "mnist_input.py"
    path.write_text(f"def load(): raise {error.__name__}({'2, ' * issubclass(error, OSError)}'x')\n")
    with pytest.raises(UnusableError) as raised, phases.preparing():
        runpy.run_path(str(path))["load"]()
    assert str(raised.value).endswith(f"; correct {path}{remedy}")


def test_a_mistake_without_a_line_of_its_own_is_told_with_what_was_called(capsys):
    with pytest.raises(UnusableError, match=r"^tests/test_phases\.py, line \d+: build_logits\(\): TypeError: '<' not"):
        make_model(lambda inputs, is_training: {"a": inputs, 1: inputs}, sum_up, INPUT)
    assert "tf.nest.flatten(logits)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EIO, "the server is away"),
        urllib.error.URLError("no such host"),
        ssl.SSLError(1, "the server hung up"),
        requests.ConnectionError("the server is away"),
        TimeoutError("nobody came"),
        UnusableError("a bad flag"),
        tf.errors.UnavailableError(None, None, "a ps is away"),
    ],
)
def test_what_may_pass_and_what_is_told_already_is_no_mistake(capsys, error):
    with pytest.raises(type(error)) as raised, phases.preparing():
        raise error
    assert raised.value is error
    assert capsys.readouterr().err == ""


def test_more_memory_than_the_machine_has_is_a_mistake():
    with pytest.raises(UnusableError) as error:
        prepare("import numpy\n\nnumpy.empty(10**15)")
    assert re.fullmatch(
        r"model\.py, line 3: \w*MemoryError: Unable to allocate .* \(run fewer tasks on this machine, or let .*"
        r" read what does not fit\); correct model\.py",
        str(error.value),
    )


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.EROFS])
def test_a_file_that_no_later_attempt_can_open_is_a_mistake(capsys, number):
    with pytest.raises(UnusableError, match=f"{os.strerror(number)}.*; correct "), phases.preparing("mnist_input.py"):
        raise OSError(number, os.strerror(number), "cache.npy")
    assert "Traceback" in capsys.readouterr().err


def test_what_is_kept_from_one_call_for_the_next_is_told():
    def build_logits(inputs, is_training):
        weights.append(tf.get_variable("weight", []))
        return tf.cast(inputs, tf.float32) * weights[0]

    weights = []
    with pytest.raises(UnusableError, match=r"same graph as .* \(each call of a function builds a graph of its own: c"):
        make_model(build_logits, sum_up, INPUT)


def test_an_import_without_the_package_of_old_layers_names_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "tf_keras", raising=False)
    with pytest.raises(UnusableError) as error:
        prepare("raise ImportError('Keras cannot be imported.')")
    line = (
        "model.py, line 1: ImportError: Keras cannot be imported. (tf.layers, tf.nn.rnn_cell and tf.keras.layers need"
    )
    assert str(error.value).startswith(f"{line} the package tf_keras: pip install")
    assert "; for optimizers and rates, use those of tf.train); correct model.py" in str(error.value)


IN_GRAPH, NO_VALUES = (
    r" \(each call of a function builds a graph .*\)",
    r" \(a function builds a graph, once, .* values\)",
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("raise RuntimeError('Attempting to capture an EagerTensor')", f".* an EagerTensor{IN_GRAPH}"),
        ("raise RuntimeError('no placeholder() with eager execution.')", rf".* with eager execution\.{IN_GRAPH}"),
        ("tf.Session().run(tf.placeholder(tf.int64, []))", f"InvalidArgumentError: You must .*{NO_VALUES}"),
        ("tf.zeros([2]).eval()", f"ValueError: Cannot evaluate .*{NO_VALUES}"),
        ("float(tf.zeros([]))", f"TypeError: .*'SymbolicTensor'{NO_VALUES}"),
        (
            "tf.nn.sparse_softmax_cross_entropy_with_logits(labels=['a'], logits=[[1.0, 2.0]])",
            r"TypeError: .* DataType string .* \(a label must be a number: let decode\(\) .*\)",
        ),
        ("raise ImportError('no known parent package')", r"ImportError: .* \(write `import name`, without a dot: .*\)"),
        ("tf.app.run(lambda argv: 5 / 0)", r"ZeroDivisionError: .* \(the file is imported: write `if __name__ == .*\)"),
        ("import numpy.nowhere", "ModuleNotFoundError: No module named 'numpy.nowhere'"),
    ],
)
def test_what_a_message_does_not_say_is_told(graph, capsys, monkeypatch, text, told):
    monkeypatch.setattr(sys, "argv", ["distributed.py"])
    with pytest.raises(UnusableError, match=rf"^model\.py, line 1: {told}; correct model\.py$"):
        prepare(text)
    assert "Original stack trace" not in capsys.readouterr().err


def test_a_package_that_is_missing_is_told_with_what_installs_it():
    remedy = f"correct model.py, or install its package, for example with {sys.executable} -m pip install nowhere"
    with pytest.raises(UnusableError, match=f"ModuleNotFoundError: No module named 'nowhere'; {re.escape(remedy)}$"):
        prepare("import nowhere.part")


def fail(output, feed_dict):
    with tf.Session() as session, pytest.raises(tf.errors.OpError) as error:
        session.run(output, feed_dict)
    return error.value


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
    status, line = phases.describe_failure(fail(loss, {numbers: [[[0, 7]]]}))
    assert status == 2
    assert line.startswith("model.py, line 3: InvalidArgumentError: indices[0,0,1] = 7 is not in")
    assert line.endswith("; correct model.py, or the examples that it gets")


def test_an_error_of_an_op_may_pass_once_there_was_a_step(graph):
    text = "\nloss = tf.nn.sparse_softmax_cross_entropy_with_logits(logits=tf.zeros([1, 3]), labels=labels)"
    labels = tf.placeholder(tf.int32, [1])
    error = fail(in_model(text, labels=labels)["loss"], {labels: [7]})
    line = "model.py, line 2: InvalidArgumentError: Received a label value of 7 which is outside"
    for status, remedy in ((2, "correct model.py, or the examples that it gets"), (1, "start this task again")):
        found, told = phases.describe_failure(error)
        assert found == status
        assert told.startswith(line)
        assert told.endswith(f"; {remedy}")
        phases.note_step()


def test_an_error_in_a_branch_is_told_with_its_line_and_is_final_the_second_time(graph, tmp_path, start_recording):
    text = (
        "def build_logits(inputs, is_training):\n"
        "    scale = tf.get_variable('scale', [])\n"
        "    with tf.control_dependencies([tf.Assert(scale < 1, ['too big', scale])]):\n"
        "        return scale * tf.cast(inputs, tf.float32)\n"
    )
    model = make_model(in_model(text)["build_logits"], sum_up, INPUT)
    loss, _ = model.build_gradients({"scale": tf.constant(2.0)}, [tf.zeros([1, 1, 2], tf.uint8)])
    error = fail(loss, {})
    line = "model.py, line 3: InvalidArgumentError: assertion failed: [too big] [2]; "
    assert phases.describe_failure(error) == (2, f"{line}correct model.py, or the examples that it gets")
    phases.note_step()
    start_recording("worker 0", RunFolder(tmp_path))
    status, told = phases.describe_failure(error)
    assert (status, told) == (1, f"{line}start this task again")
    events.record("ended", status=status, message=told)
    assert not events.wait_until_written(DEADLINE_SECS)
    assert phases.describe_failure(error) == (2, f"{line}correct model.py, or the examples that it gets")


def test_a_record_that_is_lost_is_final_the_second_time(tmp_path, start_recording):
    start_recording("worker 0", RunFolder(tmp_path))
    error = DataLostError("a: record 7 is corrupt; copy the file again")
    line = f"DataLostError: {error}"
    assert phases.describe_failure(error) == (1, f"{line}; start this task again")
    events.record("ended", status=1, message=f"{line}; start this task again")
    assert not events.wait_until_written(DEADLINE_SECS)
    assert phases.describe_failure(error) == (2, line)


def test_an_error_in_a_function_of_python_is_told_with_the_place_of_its_op(graph):
    text = "fails = tf.py_func(lambda x: 1 / int(x), [tf.constant(0)], tf.float64)"
    status, line = phases.describe_failure(fail(in_model(text)["fails"], {}))
    assert line.startswith("model.py, line 1: UnknownError: ZeroDivisionError: division by zero")
    assert (status, line[-25:]) == (2, "the examples that it gets"), "another UnknownError may be one of a device"


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """The folder of a user's two files."""
    for name in ("model.py", "mnist_input.py"):
        shutil.copy(PROJECT / name, tmp_path)
    monkeypatch.setenv("USER_DIR", ".")
    return tmp_path


def run(copy, *command, env=None):
    """Run a command there; return its status, its error and its traceback."""
    done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, timeout=100)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    return done.returncode, line, done.stderr[: done.stderr.index(line)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text", "status", "mistake"),
    [
        ("model.py", "def build(:", 2, r"model.py, line 1: SyntaxError: .*; correct \S+/model\.py"),
        ("mnist_input.py", "\nimport nowhere", 2, "mnist_input.py, line 2: ModuleNotFoundError: .*; correct .*"),
        (
            "model.py",
            "from absl import flags\nflags.DEFINE_integer('batch_size', 1, '')",
            2,
            "model.py defines --batch_size, which is a flag of distributed.py: give it another name",
        ),
        ("model.py", "raise SystemExit(0)", 2, r"model.py, line 1: SystemExit: 0 \(.*\); correct \S+/model\.py"),
        (
            "model.py",
            "import sys; sys.argv = ['x']",
            2,
            r"model.py changes sys\.argv to \['x'\]: do not change it, .*",
        ),
        ("model.py", "raise OSError(5, 'away')", 1, "OSError: .* away; start this task again"),
        (
            "mnist_input.py",
            "INPUT = 28",
            2,
            "mnist_input.py: INPUT is 28, expected a tf.TensorSpec with a fully defined shape .*",
        ),
    ],
)
def test_a_file_that_cannot_be_imported_is_told(copy, name, text, status, mistake):
    (copy / name).write_text(text)
    command = [sys.executable, PROJECT / "distributed.py", "--job_name=ps", "--task_index=0"]
    if "SystemExit" in mistake:
        command = [sys.executable, PROJECT / "runtime" / "launch", "prepare", f"--train_dir={copy / 'run'}"]
    found, line, traceback = run(copy, *command)
    assert found == status
    assert re.fullmatch(f"error: ({copy}/)?{mistake}", line)
    assert f'File "{PROJECT}/' not in traceback
    assert ('File "' in traceback) == ("; correct" in mistake)


@pytest.mark.slow
@pytest.mark.parametrize(("program", "stage"), [("distributed.py", []), ("runtime/launch", ["prepare"])])
def test_a_set_has_the_same_order_in_every_process(copy, program, stage):
    (copy / "model.py").write_text("raise ValueError(*{*map(str, range(9))})")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    command = [sys.executable, PROJECT / program, *stage, f"--train_dir={copy / 'run'}", "--data_dir=/"]
    lines = {run(copy, *command, env=environment)[1] for _ in range(2)}
    assert len(lines) == 1, lines
    assert run(copy, *command, env={**environment, "PYTHONHASHSEED": "7"})[1] not in lines


def have_packages_of_another_python(folder):
    (folder / "tensorflow").mkdir()
    (folder / "tensorflow" / "__init__.py").write_text("import tensorflow.native")  # which has another name there
    return [], {"PYTHONPATH": f"/no/such/folder:{folder}"}, []


def have_no_packages(folder):
    return [], {}, ["-S"]


def have_another_library(folder):
    (folder / "libstdc++.so.6").touch()
    return [], {"LD_LIBRARY_PATH": str(folder)}, []


def forbid_to_execute(folder):
    mount = 'mount --bind "$0" "$0" && mount -o remount,bind,noexec "$0" && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, os.path.dirname(psutil.__file__)]
    return command, {}, []


@pytest.mark.slow
@pytest.mark.promises("status-2")
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            have_packages_of_another_python,
            "ModuleNotFoundError: No module named 'tensorflow.native': remove {folder} from PYTHONPATH: its packages",
        ),
        (
            have_no_packages,
            r"ModuleNotFoundError: No module named '(psutil|absl)': install requirements.txt for {python} again",
        ),
        (
            have_another_library,
            r"ImportError: {folder}/libstdc\+\+.so.6: file too short: unset LD_LIBRARY_PATH, which is {folder}$",
        ),
        pytest.param(
            forbid_to_execute,
            r"ImportError: .*failed to map segment .*: {prefix} is mounted noexec: install it elsewhere; the launcher",
            marks=NEEDS_PRIVATE_MOUNTS,
        ),
    ],
)
@pytest.mark.parametrize("program", [["distributed.py", "--job_name=ps"], ["runtime/launch", "cluster"]])
def test_a_package_that_cannot_be_imported_is_told_with_the_remedy(tmp_path, spoil, message, program):
    before, environment, options = spoil(tmp_path)
    name, *others = program
    command = [*before, sys.executable, *options, PROJECT / name, *others, f"--train_dir={tmp_path / 'run'}"]
    environment = {**os.environ, "PYTHONHASHSEED": "0", **environment}
    process = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    message = message.format(folder=tmp_path, python=sys.executable, prefix=sys.prefix)
    assert re.search(f"^error: {message}", process.stderr, re.MULTILINE), process.stderr
    assert "Traceback" not in process.stderr
    assert process.returncode == 2
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.promises("status-2")
@pytest.mark.parametrize(
    ("name", "old", "new", "line"),
    [
        (
            "mnist_input.py",
            "    if len(images) != len(labels):",
            "    {}['no such key']\n    if len(images) != len(labels):",
            r"mnist_input\.py, line \d+: KeyError: .*; correct \S+/mnist_input\.py, --data_dir, or the data there",
        ),
        (
            "model.py",
            "tf.matmul(inputs, weights)",
            "tf.matmul(inputs, tf.transpose(weights))",
            r"model\.py, line \d+: ValueError: Dimensions must be equal, .*; correct \S+/model\.py",
        ),
    ],
)
def test_an_error_while_data_is_read_or_the_graph_is_built_is_final(copy, black_and_white_dir, name, old, new, line):
    """In an environment that lies in the user's folder under any name, too."""
    text = (copy / name).read_text()
    assert old in text
    (copy / name).write_text(text.replace(old, new))
    os.symlink(sys.prefix, copy / "venv")
    (port,) = choose_ports(1)
    code = f"import sys, runpy; sys.path[0] = '{PROJECT}'; from runtime.cluster import agreement"
    code += f"; agreement.TELLING_SECS = 0.0; runpy.run_path('{PROJECT}/distributed.py', run_name='__main__')"
    command = [
        copy / "venv" / "bin" / "python",
        "-c",
        code,
        "--job_name=worker",
        "--task_index=0",
        f"--worker_hosts=localhost:{port}",
    ]
    status, told, traceback = run(copy, *command, f"--data_dir={black_and_white_dir}")
    assert status == 2
    assert re.fullmatch(f"error: {copy}/{line}", told)
    assert "Traceback" in traceback
    files = re.findall('File "(.*?)", line', traceback)
    assert {os.path.basename(file) for file in files} == {name}
