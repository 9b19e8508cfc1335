"""The examples of docs/your-own.md train with everything else as it is."""

import os
import pathlib
import re
import runpy
import shutil
import signal
import sys

import pytest

from benchmarks.testbed.processes import PROJECT, Process, poll_for, running_with

EXAMPLE = PROJECT / "examples" / "fashion_mnist"
FASHION_MNIST = pathlib.Path("/usr/share/datasets/fashion-mnist")
LANGUAGES = PROJECT / "examples" / "languages"
WORDS = pathlib.Path("/usr/share/dict")
WORDS_OF_TEST = 4000  # of each language
LISTS = runpy.run_path(str(LANGUAGES / "mnist_input.py"))["LISTS"]


def copy_project(example, folder):
    """Copy what a user needs into a folder, with the files of an example in the place of MNIST's."""
    for name in ("distributed.py", "run_local_cluster.sh", "requirements.txt"):
        shutil.copy(PROJECT / name, folder)
    shutil.copytree(PROJECT / "runtime", folder / "runtime")
    (folder / ".venv").symlink_to(sys.prefix)
    for path in example.glob("*.py"):
        shutil.copy(path, folder)


@pytest.mark.long
@pytest.mark.skipif(
    not (os.environ.get("CI") or FASHION_MNIST.is_dir()),
    reason="needs Fashion-MNIST (Debian: apt-get install dataset-fashion-mnist)",
)
def test_two_files_of_a_user_train_another_model_on_other_data(tmp_path):
    copy_project(EXAMPLE, tmp_path)
    flags = ["--workers=1", "--train_steps=400", "--local_steps=8", f"--data_dir={FASHION_MNIST}"]
    run = Process(["./run_local_cluster.sh", *flags, "--export_dir=exported"], tmp_path / "output", cwd=tmp_path)
    assert run.wait() == 0, run.output()
    assert float(re.search(r"\ntest accuracy (\S+) ", run.output())[1]) > 0.7
    assert (tmp_path / "exported" / "1" / "saved_model.pb").exists()


def test_the_example_refuses_the_digits(mnist_dir):
    own = runpy.run_path(str(EXAMPLE / "mnist_input.py"))
    with pytest.raises(own["DataError"], match="are not Fashion-MNIST's"):
        own["load"](mnist_dir, "train")


@pytest.mark.long
@pytest.mark.skipif(
    not (os.environ.get("CI") or all((WORDS / name).exists() for name, _ in LISTS.values())),
    reason="needs Debian's lists of words: see examples/languages/mnist_input.py",
)
def test_a_table_tells_the_language_of_a_word_and_survives_the_death_of_a_ps(tmp_path):
    copy_project(LANGUAGES, tmp_path)
    data_dir, train_dir = tmp_path / "words", tmp_path / "train"
    data_dir.mkdir()
    for name, encoding in LISTS.values():
        words = (WORDS / name).read_text(encoding).split()
        (data_dir / name).write_text("\n".join(words[:: len(words) // WORDS_OF_TEST]), encoding)
    flags = ["--ps=2", f"--train_dir={train_dir}", f"--data_dir={data_dir}", "--save_checkpoint_secs=1"]
    flags += ["--optimizer=sgd", "--learning_rate=10", "--local_steps=4", "--train_steps=2500", "--export_dir=exported"]
    run = Process(["./run_local_cluster.sh", *flags], tmp_path / "output", cwd=tmp_path)
    poll_for(lambda: len(list(train_dir.glob("model.ckpt-*.index"))) > 1, "second checkpoint")
    (line,) = [line for line in running_with(str(train_dir), columns="pid,comm,command") if " ps-1 " in line]
    os.kill(int(line.split()[0]), signal.SIGKILL)
    assert run.wait() == 0, run.output()
    assert re.search(r"restored .*/model\.ckpt-[1-9]\d*, at global step", run.output())
    accuracy = float(re.search(r"\ntest accuracy (\S+) ", run.output())[1])
    assert accuracy > 0.4, "15 languages"
    assert "taken for" in (train_dir / "report.html").read_text()

    command = [sys.executable, "predict.py", "--model", "exported", "Schmetterling", "przepraszam"]
    predict = Process(command, tmp_path / "predicted", cwd=tmp_path)
    assert predict.wait() == 0, predict.output()
    assert re.search(r"^schmetterling: German \(.*\nprzepraszam: Polish \(", predict.output(), re.MULTILINE)

    flags = ["--job_name=evaluator", f"--train_dir={train_dir}", f"--data_dir={data_dir}", "--train_steps=2500"]
    evaluator = Process([sys.executable, "distributed.py", *flags], tmp_path / "evaluated", cwd=tmp_path)
    assert evaluator.wait() == 0, evaluator.output()
    assert f"evaluator 0: test accuracy {accuracy:.4f} " in evaluator.output()
