"""The examples of docs/your-own.md train where they lie, with everything else as it is."""

import contextlib
import itertools
import json
import os
import pathlib
import re
import runpy
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import mnist_input
from benchmarks import tables
from benchmarks.testbed.processes import PROJECT, Cluster, Process, poll_for, running_with
from runtime.launch.ports import choose_ports
from runtime.records.events import read_run
from runtime.records.folder import RunFolder
from runtime.saving.checkpoints import find_last_step
from tests import forked, idx_files

EXAMPLE = PROJECT / "examples" / "fashion_mnist"
FASHION_MNIST = pathlib.Path("/usr/share/datasets/fashion-mnist")
PICTURES = PROJECT / "examples" / "pictures"
ICONS = pathlib.Path("/usr/share/icons/Adwaita/48x48")
LANGUAGES = PROJECT / "examples" / "languages"
CLASSIC = PROJECT / "examples" / "classic" / "mnist_replica.py"
FLIGHTS = PROJECT / "examples" / "flights"
WORDS = pathlib.Path("/usr/share/dict")
WORDS_OF_TEST = 4000  # of each language
LISTS = runpy.run_path(str(LANGUAGES / "mnist_input.py"))["LISTS"]


def copy_files(example, folder):
    """Make a user's folder of the two files of an example, to change them."""
    for name in ("model.py", "mnist_input.py"):
        shutil.copy(example / name, folder)


def launch(folder, user_dir, *flags, train_dir="train"):
    """Start what trains the model of the files in `user_dir`, from another folder, and puts its results there."""
    command = [sys.executable, PROJECT / "runtime" / "launch", "prepare"]
    command += [f"--user_dir={user_dir}", f"--train_dir={train_dir}"]
    return Process([*command, *flags], folder / f"{pathlib.Path(train_dir).name}.output", cwd=folder)


def listings(page):
    """Return the blocks of Python that a page of docs/ shows."""
    return re.findall(r"^```python\n(.*?)^```", (PROJECT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)


def read_result(folder):
    return json.loads((folder / "result.json").read_text())


@pytest.mark.slow
@pytest.mark.skipif(
    not (os.environ.get("CI") or FASHION_MNIST.is_dir()),
    reason="needs Fashion-MNIST (Debian: apt-get install dataset-fashion-mnist)",
)
def test_two_files_of_a_user_train_another_model_on_other_data_beside_the_first_one(tmp_path, black_and_white_dir):
    flags = ["--workers=1", "--train_steps=400"]
    own = [*flags, "--local_steps=8", f"--data_dir={FASHION_MNIST}", "--export_dir=exported"]
    run = launch(tmp_path, os.path.relpath(EXAMPLE, tmp_path), *own)
    other = launch(tmp_path, PROJECT, *flags, f"--data_dir={black_and_white_dir}", train_dir="other")
    assert (run.wait(), other.wait()) == (0, 0), run.output() + other.output()
    assert float(re.search(r"\ntest accuracy (\S+) ", run.output())[1]) > 0.7
    assert (tmp_path / "exported" / "1" / "saved_model.pb").exists()
    assert read_result(tmp_path / "train").items() >= {"user_dir": str(EXAMPLE), "dropout": 0.2}.items()
    assert read_result(tmp_path / "other").items() >= {"user_dir": str(PROJECT), "model": "mlp"}.items()
    assert f"user_dir: {EXAMPLE}" in (tmp_path / "train" / "report.html").read_text()


def test_the_two_files_that_the_page_shows_train(tmp_path, monkeypatch):
    make_data, inputs, model, of_csv = listings("your-own.md")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "make_data.py").write_text(make_data)
    runpy.run_path("make_data.py")
    (tmp_path / "own" / "mnist_input.py").write_text(inputs)
    (tmp_path / "own" / "model.py").write_text(model)
    header = ",".join(f"column{i}" for i in range(21))
    for split in ("train", "t10k"):
        arrays = np.load(tmp_path / "own" / "data" / f"{split}.npz")
        rows = np.column_stack([arrays["x"], arrays["y"]])
        np.savetxt(tmp_path / "own" / "data" / f"{split}.csv", rows, delimiter=",", header=header, comments="")
    run = launch(tmp_path, "own", "--data_dir=own/data", "--train_steps=2000")
    assert run.wait() == 0, run.output()
    assert float(re.search(r"\ntest accuracy (\S+) ", run.output())[1]) > 0.95

    (tmp_path / "csv.py").write_text(inputs + of_csv)
    for split in ("train", "t10k"):
        from_npz, from_csv = (
            runpy.run_path(str(path))["load"](str(tmp_path / "own" / "data"), split)
            for path in (tmp_path / "own" / "mnist_input.py", tmp_path / "csv.py")
        )
        assert [array.dtype for array in from_csv] == [array.dtype for array in from_npz]
        assert all(map(np.array_equal, from_csv, from_npz))


WATCHED = """

import weakref

load_all = load


def load(data_dir, split):
    examples = load_all(data_dir, split)
    if split == "train":
        weakref.finalize(examples.images, print, "what load() has returned is gone", flush=True)
    return examples
"""


def test_a_worker_keeps_no_more_than_its_share_of_what_load_returns(tmp_path, black_and_white_dir):
    copy_files(PROJECT, tmp_path)
    with open(tmp_path / "mnist_input.py", "a") as file:
        file.write(WATCHED)
    run = launch(tmp_path, ".", "--train_steps=100", f"--data_dir={black_and_white_dir}")
    assert run.wait() == 0, run.output()
    assert re.search(r"what load\(\) has returned is gone(?s:.*)worker 0: finished at", run.output())


def test_a_worker_whose_folder_has_another_model_says_so(tmp_path, black_and_white_dir):
    copy_files(PROJECT, tmp_path)
    (tmp_path / "layers.py").write_text("import tensorflow.compat.v1 as tf\n\nactivate = tf.tanh\n")
    path = tmp_path / "model.py"
    path.write_text(
        f"import layers\n\n{path.read_text()}".replace("tf.nn.relu(_build_dense", "layers.activate(_build_dense")
    )
    with Cluster(tmp_path, 1, 2, "--train_steps=1000000", f"--data_dir={black_and_white_dir}") as cluster:
        cluster.start("ps 0", "worker 0")
        cluster.start_with("worker 1", *cluster.role("worker 1"), *cluster.flags, "--user_dir=.")
        assert cluster["worker 1"].wait() == 2
        for name in ("ps 0", "worker 0"):
            cluster[name].kill()
        told = (
            r"error: worker 1 has a different graph than the model .* give all workers the same model\.py, or restart"
        )
        assert re.search(told, cluster["worker 1"].output())


@pytest.mark.slow
@pytest.mark.skipif(
    not (os.environ.get("CI") or ICONS.is_dir()),
    reason="needs pictures by class (Debian: apt-get install adwaita-icon-theme)",
)
def test_pictures_of_any_size_are_read_by_class(tmp_path):
    before = set(ICONS.rglob("*"))
    flags = [f"--data_dir={ICONS}", "--train_steps=300", "--batch_size=32", "--export_dir=exported"]
    run = launch(tmp_path, PICTURES, *flags)
    assert run.wait() == 0, run.output()
    assert float(re.search(r"\ntest accuracy (\S+) ", run.output())[1]) > 0.4, "10 classes, of which one has a third"
    names = (tmp_path / "exported" / "1" / "assets" / "class_names.txt").read_text().splitlines()
    assert names == read_result(tmp_path / "train")["class_names"] == sorted(path.name for path in ICONS.iterdir())
    picture = next((ICONS / "mimetypes").iterdir())
    command = [sys.executable, PICTURES / "predict.py", "--model=exported", picture, "no.png"]
    predicted = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert re.fullmatch(rf"{re.escape(str(picture))}: ({'|'.join(names)}) \(\d+\.\d%\)\n", predicted.stdout)
    assert (predicted.returncode, "error: no.png cannot be read as a picture: " in predicted.stderr) == (2, True)
    refused = subprocess.run([*command[:2], "--model=nothing", picture], cwd=tmp_path, capture_output=True, text=True)
    assert (refused.returncode, "error: --model nothing has no exported model (" in refused.stderr) == (2, True)
    assert ">actions<" in (tmp_path / "train" / "report.html").read_text(), "in the confusion matrix"
    assert set(ICONS.rglob("*")) == before


@contextlib.contextmanager
def run_classic(script, folder, mnist_dir):
    """Train with a script of the classic form; yield the processes of the ps and of two workers."""
    env = {"GRPC_FAIL_FAST": "use_caller"}  # TensorFlow's default, in place of ours: a task waits for the others
    ps, *workers = (f"localhost:{port}" for port in choose_ports(3))
    command = [sys.executable, script, f"--ps_hosts={ps}", f"--worker_hosts={','.join(workers)}"]
    command += [f"--data_dir={mnist_dir}", "--train_steps=800"]
    processes = []
    for job, index in [("ps", 0), ("worker", 0), ("worker", 1)]:
        role = [f"--job_name={job}", f"--task_index={index}"]
        processes.append(Process([*command, *role], folder / f"{job}-{index}", env))
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()


def test_the_classic_script_learns_and_its_ps_never_ends(tmp_path, mnist_dir):
    with run_classic(CLASSIC, tmp_path, mnist_dir) as (ps, *workers):
        assert [process.wait() for process in workers] == [0, 0], workers[0].output()
        assert float(re.search(r"^test accuracy (\S+)", workers[0].output(), re.MULTILINE)[1]) > 0.85
        assert ps.is_running()
        page = (PROJECT / "docs" / "tutorial.md").read_text()
        for line in itertools.chain(*map(str.splitlines, re.findall(r"^```text\n(.*?)^```", page, re.M | re.S))):
            pattern = re.sub(r"\d[\d.]*", r"\\d[\\d.]*", ".*".join(map(re.escape, line.replace(".", "").split("…"))))
            assert re.search(pattern, workers[0].output().replace(".", "")), line


def advised():
    """Return what docs/porting.md adds to a script that is kept, by the place where it goes: its ps then ends."""
    page = (PROJECT / "docs" / "porting.md").read_text()
    (diff,) = re.findall(r"^```diff\n(\+def make_done(?s:.*?))^```", page, re.MULTILINE)
    parts = [re.findall(r"^\+(.*)", part, re.MULTILINE) for part in diff.split("\n ...\n")]
    done, wait, enqueue, last = ("".join(f"{line}\n" for line in lines) for lines in parts)
    filters = 'config=tf.ConfigProto(device_filters=["/job:ps", worker])'
    return {
        r"^def main\(_\):": f"{done}\n\ndef main(_):",
        r"^ +server\.join\(\).*\n": wait,
        r"import gzip\n": "import gzip\nimport time\n",
        r"^(    # The session:)": rf"{enqueue}\1",
        r"prepare_or_wait_for_session\(server\.target\)": f"prepare_or_wait_for_session(server.target, {filters})",
        r"\n\n\nif __name__": f"\n{last}\n\nif __name__",
    }


def test_a_script_that_is_kept_ends_with_its_ps_and_needs_no_second_worker_to_start(tmp_path, mnist_dir):
    script = CLASSIC.read_text()
    for pattern, text in advised().items():
        script, count = re.subn(pattern, text, script, flags=re.MULTILINE)
        assert count == 1, pattern
    (tmp_path / "kept.py").write_text(script)
    with run_classic(tmp_path / "kept.py", tmp_path, mnist_dir) as processes:
        assert [process.wait() for process in processes] == [0, 0, 0], processes[0].output()


def test_the_example_refuses_the_digits(tmp_path, mnist_dir):
    images, labels = mnist_input.load(mnist_dir, "t10k")
    idx_files.write(tmp_path, "t10k", images.reshape(-1, 28, 28), labels)
    own = runpy.run_path(str(EXAMPLE / "mnist_input.py"))
    with pytest.raises(own["DataError"], match="are not Fashion-MNIST's"):
        own["load"](str(tmp_path), "t10k")


@pytest.mark.slow
@pytest.mark.skipif(
    not (os.environ.get("CI") or all((WORDS / name).exists() for name, _ in LISTS.values())),
    reason="needs Debian's lists of words: see examples/languages/mnist_input.py",
)
def test_a_table_tells_the_language_of_a_word_and_survives_the_death_of_a_ps(tmp_path):
    data_dir, train_dir = tmp_path / "words", tmp_path / "train"
    data_dir.mkdir()
    for name, encoding in LISTS.values():
        words = (WORDS / name).read_text(encoding).split()
        (data_dir / name).write_text("\n".join(words[:: len(words) // WORDS_OF_TEST]), encoding)
    flags = ["--ps=2", f"--data_dir={data_dir}", "--save_checkpoint_secs=1", "--optimizer=sgd", "--learning_rate=10"]
    flags += ["--local_steps=4", "--train_steps=2500", "--export_dir=languages"]
    run = launch(tmp_path, LANGUAGES, *flags, train_dir=train_dir)
    poll_for(lambda: find_last_step(RunFolder(train_dir)), "checkpoint of a step")
    (ps,) = [process for process in running_with(str(train_dir)) if process.name == "ps-1"]
    os.kill(ps.pid, signal.SIGKILL)
    assert run.wait() == 0, run.output()
    assert re.search(r"restored .*/model\.ckpt-[1-9]\d*, at global step", run.output())
    accuracy = float(re.search(r"\ntest accuracy (\S+) ", run.output())[1])
    assert accuracy > 0.4, "15 languages"
    assert "taken for" in (train_dir / "report.html").read_text()
    assert re.search(rf"\npredict   \S+ {LANGUAGES}/predict\.py --model=languages WORD\.\.\.\n", run.output())

    command = [sys.executable, LANGUAGES / "predict.py", "--model", "languages", "Schmetterling", "przepraszam"]
    predicted = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert predicted.returncode == 0, predicted.stderr
    assert re.match(r"schmetterling: \w+ \(.*\nprzepraszam: Polish \(", predicted.stdout)

    flags = ["--job_name=evaluator", f"--train_dir={train_dir}", f"--data_dir={data_dir}", "--train_steps=2500"]
    command = [sys.executable, PROJECT / "distributed.py", *flags]
    evaluator = Process(command, tmp_path / "evaluated", {"USER_DIR": str(LANGUAGES)}, tmp_path, forked.Popen)
    assert evaluator.wait() == 0, evaluator.output()
    evaluated = re.findall(r"evaluator 0: test accuracy (\S+) ", evaluator.output())
    assert float(evaluated[-1]) == accuracy, evaluated


@pytest.mark.slow
def test_wide_and_deep_rank_late_flights_like_one_plain_process(tmp_path, flights_dir, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # pip takes the archive from a folder here, as from an index
    monkeypatch.setenv("PIP_FIND_LINKS", flights_dir)
    flags = [f"--data_dir={tmp_path / 'flights'}", "--learning_rate=0.05", "--train_steps=600"]
    run = launch(tmp_path, FLIGHTS, *flags, "--export_dir=exported")
    assert run.wait() == 0, run.output()
    auc = float(re.search(r"\ntest auc (\S+) ", run.output())[1])
    archive = runpy.run_path(str(FLIGHTS / "mnist_input.py"))["ARCHIVE"]
    assert sorted(os.listdir(tmp_path / "flights")) == [archive, "t10k.csv", "train.csv"]

    expected = tables.train_alone(str(tmp_path), FLIGHTS, flags)
    assert 0.6 < expected["test_auc"] < 0.75
    assert expected["test_auc"] - 0.02 < auc < 0.75, "asynchronous workers take their steps in any order"

    result = read_result(tmp_path / "train")
    assert {"test_auc", "test_accuracy", "test_loss"} < result.keys()
    assert (result["layers"], result["optimizer"]) == ([64, 32], "build_optimizer")
    (tmp_path / "evaluated.flags").write_text(f"--user_dir={FLIGHTS}\n")
    command = [sys.executable, PROJECT / "distributed.py", "--flagfile=evaluated.flags", "--job_name=evaluator"]
    command += [*flags, "--train_dir=train"]
    evaluator = Process(command, tmp_path / "evaluated", cwd=tmp_path, popen=forked.Popen)
    assert evaluator.wait() == 0, evaluator.output()
    *_, evaluated = [
        event for event in read_run(RunFolder(tmp_path / "train"), "evaluated") if event["event"] == "evaluated"
    ]
    assert {name: evaluated[name] for name in ("test_auc", "test_accuracy")} == pytest.approx(
        {name: result[name] for name in ("test_auc", "test_accuracy")}, abs=1e-5
    )

    command = [sys.executable, "-c", RANK, str(tmp_path)]
    served = subprocess.run(command, cwd=FLIGHTS, capture_output=True, text=True)
    assert served.returncode == 0, served.stderr
    assert float(served.stdout) == pytest.approx(auc, abs=0.001), "from the ranks of all test examples"


RANK = """
import sys
import numpy as np
import tensorflow as tf
import mnist_input

serve = tf.saved_model.load(f"{sys.argv[1]}/exported/1").signatures["serving_default"]
files = tf.data.Dataset.from_tensor_slices(mnist_input.list_files(f"{sys.argv[1]}/flights", "t10k"))
inputs, labels = next(iter(mnist_input.build_dataset(files, "t10k").batch(100_000)))
ranks = serve(**inputs)["probability"].numpy().argsort().argsort()
late = labels.numpy() == 1
print((ranks[late].mean() - (late.sum() - 1) / 2) / (~late).sum())
"""


def test_a_flag_that_a_function_of_the_model_replaces_is_refused(flights_dir):
    flags = ["--job_name=worker", "--task_index=0", f"--user_dir={FLIGHTS}", f"--data_dir={flights_dir}"]
    run = forked.run("distributed.py", *flags, "--optimizer=sgd")
    assert run.returncode == 2
    assert "error: --optimizer has no effect, since model.py has build_optimizer(): remove one of them" in run.stderr


def predict_languages(folder, *words):
    command = [sys.executable, LANGUAGES / "predict.py", "--model=exported", *words]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return ended.returncode, ended.stdout, ended.stderr


def test_what_is_no_word_is_told_beside_the_answers(tmp_path, graph):
    words = tf.placeholder(tf.int32, [None, 24])
    guess = tf.one_hot(tf.reduce_max(words, axis=1) - 97, 15)  # its last letter is the language
    with tf.Session() as session:
        exported = str(tmp_path / "exported" / "1")
        tf.saved_model.simple_save(session, exported, {"words": words}, {"probabilities": guess})
    status, answers, errors = predict_languages(tmp_path, "abc", "4 2", 25 * "a", "E\N{COMBINING ACUTE ACCENT}", "AbD")
    assert status == 2
    assert re.fullmatch(r"abc: Dutch \(100.*\n\u00e9: .*\nabd: English \(100.*\n", answers)
    no_word, too_long = errors.splitlines()[-2:]
    assert no_word == "error: '4 2' is not a word of letters only: give each word as an argument of its own"
    assert too_long.startswith("error: aaaaaaaaaaaaaaaaaaaaaaaaa has 25 letters, expected at most 24: ")
    assert " I " not in errors, "the log of TensorFlow"


def test_the_example_of_words_ends_with_2_where_it_cannot_do_what_it_is_told(tmp_path):
    status, answers, errors = predict_languages(tmp_path, "abc")
    assert (status, answers) == (2, "")
    assert errors.splitlines()[-1].startswith("error: --model exported has no exported model of words ([Errno 2]")


OLD_SCRIPT = """
import sys
import tensorflow.compat.v1 as tf

import mnist_input

tf.disable_v2_behavior()
step_type, folder = getattr(tf, sys.argv[1]), sys.argv[2]
global_step = tf.get_variable("global_step", [], step_type, initializer=tf.constant_initializer(7), trainable=False)
x = tf.zeros([1, 784])
for name, shape in (("hidden", [784, 128]), ("out", [128, 10])):  # as tf.layers.dense() names them
    kernel = tf.get_variable(f"{name}/kernel", shape)
    x = tf.matmul(x, kernel) + tf.get_variable(f"{name}/bias", shape[1:], initializer=tf.zeros_initializer())
tf.train.AdamOptimizer().minimize(tf.reduce_sum(x))
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    tf.train.Saver().save(session, f"{folder}/model.ckpt", 7)
"""

FITS = r"ckpt-7 has all variables of this model; not needed: beta1_power, beta2_power\n"


def test_a_ported_script_trains_from_the_checkpoint_of_the_old_one(tmp_path, mnist_dir):
    copy_files(PROJECT, tmp_path)
    _, ported = listings("porting.md")  # before and after
    (tmp_path / "model.py").write_text(ported)
    for step_type in ("int64", "int32"):
        (tmp_path / step_type).mkdir()
        assert forked.run("-c", OLD_SCRIPT, step_type, str(tmp_path / step_type)).returncode == 0
    data = f"--data_dir={mnist_dir}"
    with Cluster(tmp_path, 1, 1, "--user_dir=.", f"--train_dir={tmp_path / 'int64'}", data) as cluster:
        alone = cluster.start("worker 0")
        alone.wait_for_output(FITS)
        alone.send(signal.SIGINT)
        assert alone.wait() == 128 + signal.SIGINT
    train_dir = tmp_path / "int32"
    run = launch(tmp_path, ".", "--workers=1", "--train_steps=1000", "--issync", data, train_dir=train_dir)
    assert run.wait() == 0, run.output()
    assert f"restored {train_dir}/with_int64_step.ckpt-7, at global step 7" in run.output()
    assert re.search(FITS, run.output())
    assert (train_dir / "model.ckpt-7.index").exists(), "the old script's checkpoint stays"
    assert float(re.search(r"\ntest accuracy (\S+) ", run.output())[1]) > 0.9
