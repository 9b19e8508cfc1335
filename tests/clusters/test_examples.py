"""The examples of docs/your-own.md train with everything else as it is."""

import os
import pathlib
import re
import runpy
import shutil
import sys

import pytest

from benchmarks.testbed.processes import PROJECT, Process

EXAMPLE = PROJECT / "examples" / "fashion_mnist"
FASHION_MNIST = pathlib.Path("/usr/share/datasets/fashion-mnist")


@pytest.mark.long
@pytest.mark.skipif(
    not (os.environ.get("CI") or FASHION_MNIST.is_dir()),
    reason="needs Fashion-MNIST (Debian: apt-get install dataset-fashion-mnist)",
)
def test_two_files_of_a_user_train_another_model_on_other_data(tmp_path):
    for name in ("distributed.py", "run_local_cluster.sh", "requirements.txt"):
        shutil.copy(PROJECT / name, tmp_path)
    shutil.copytree(PROJECT / "runtime", tmp_path / "runtime")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    for path in EXAMPLE.glob("*.py"):
        shutil.copy(path, tmp_path)
    flags = ["--workers=1", "--train_steps=400", "--local_steps=8", f"--data_dir={FASHION_MNIST}"]
    run = Process(["./run_local_cluster.sh", *flags, "--export_dir=exported"], tmp_path / "output", cwd=tmp_path)
    assert run.wait() == 0, run.output()
    assert float(re.search(r"\ntest accuracy (\S+) ", run.output())[1]) > 0.7
    assert (tmp_path / "exported" / "1" / "saved_model.pb").exists()


def test_the_example_refuses_the_digits(mnist_dir):
    own = runpy.run_path(str(EXAMPLE / "mnist_input.py"))
    with pytest.raises(own["DataError"], match="are not Fashion-MNIST's"):
        own["load"](mnist_dir, "train")
