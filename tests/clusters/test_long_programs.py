"""The programs that take long run as their pages say, but for a moment: another one for each commit.

EVERY_PROGRAM=1 runs all of them. They run in a copy of this checkout, because some write documents.
"""

import os
import re
import shutil
import subprocess
import sys

import pytest

from benchmarks import contenders
from benchmarks.__main__ import BENCHMARKS
from benchmarks.testbed.processes import PROJECT
from tests import browser
from tests.clusters.test_examples import LISTS, WORDS

SMALLEST = {  # the options of each benchmark
    "tune": ["--rounds=1", "--only", contenders.OURS_ASYNC],
    "compare": ["--rounds=1", "--only", contenders.OURS_ASYNC],
    "recommended": ["--rounds=1", "--rounds_of_cnn=1"],
    "accuracy": ["--rounds=1", "--train_steps=64"],
    "replication": ["--rounds=1", "--num_examples=20000"],
    "start": ["--rounds=1"],
    "watching": ["--rounds=1", "--train_steps=2000"],
    "data": ["--rounds=1", "--examples=120000", "--train_steps=2000"],
    "messages": [],
    "processes": ["--percent_of_steps=50", "--max_workers=1"],
    "network": ["--measured_secs=1", "--max_local_steps=1"],
    "encryption": ["--measured_secs=1"],
    "ps": ["--measured_secs=1", "--max_workers=4", "--max_ps=1"],
    "table": ["--rows=20000", "--measured_secs=2"],
    "languages": ["--epochs=1"],
    "flights": ["--epochs=1"],
    "unequal": ["--rounds=1", "--train_steps=1000", "--measured_secs=1"],
    "simulated": ["--measured_secs=1"],
    "real": ["--num_workers=3", "--num_killed=1", "--train_steps=30000"],
}
OTHERS = ("record.py", "pip download")


def chosen():
    """Return what runs at this commit."""
    programs = [*SMALLEST, *OTHERS]
    commit = subprocess.run(["git", "-C", PROJECT, "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    return programs if os.environ.get("EVERY_PROGRAM") else [programs[int(commit or "0", 16) % len(programs)]]


def missing_for(name):
    """Return why a program cannot run here, or nothing."""
    if name == "record.py" and browser.IS_MISSING:
        return "there is no chromium"
    if name == "languages" and not all((WORDS / file).exists() for file, _ in LISTS.values()):
        return "there are no lists of words"
    hosts = name in BENCHMARKS and BENCHMARKS[name].hosts
    return hosts and hosts.missing()


@pytest.mark.slow
@pytest.mark.usefixtures("mnist_dir")
@pytest.mark.parametrize("name", chosen())
def test_a_program_that_takes_long_runs_for_a_moment(tmp_path, name):
    if reason := missing_for(name):
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    project, packages = tmp_path / "project", tmp_path / "packages"
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns(".venv", ".cache", "runs", ".*_cache"))
    environment = {**os.environ, "VENV_DIR": sys.prefix, "PYTHONPATH": str(packages)}

    def run(*arguments):
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    if name == "pip download":
        run("-m", "pip", "download", "-d", "wheels", "-r", "requirements.txt", "-r", "runtime/launch/tensorboard.txt")
        assert list(project.glob("wheels/tensorflow-*.whl"))
        shutil.rmtree(project / "wheels")  # pytest would keep 600 MB
    elif name == "record.py":
        pictures = [path for path in (project / "docs").iterdir() if re.match(r"(display|report)-", path.name)]
        for path in pictures:
            path.unlink()
        run("tests/record.py")
        assert [path for path in pictures if not path.stat().st_size] == []
    else:
        if name == "languages":
            run("-m", "pip", "install", "--target", packages, "-r", "benchmarks/requirements.txt")
        printed = run("-m", "benchmarks", name, *SMALLEST[name])
        assert BENCHMARKS[name].document is None or "| --- |" in printed, "a table"
        shutil.rmtree(packages, ignore_errors=True)
