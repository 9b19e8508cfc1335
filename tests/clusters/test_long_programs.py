"""The benchmarks run as their page says, from the command line, but for a moment."""

import subprocess
import sys

import pytest

from benchmarks import contenders
from benchmarks.testbed.processes import PROJECT

SMALLEST = {
    "compare": ["--rounds=1", "--only", contenders.OURS_ASYNC],
    "accuracy": ["--rounds=1", "--train_steps=64"],
    "replication": ["--rounds=1", "--num_examples=20000"],
    "start": ["--rounds=1"],
    "watching": ["--rounds=1", "--train_steps=2000"],
    "data": ["--rounds=1", "--examples=120000", "--train_steps=2000"],
    "messages": [],
}


@pytest.mark.slow
@pytest.mark.usefixtures("mnist_dir")
def test_a_benchmark_runs_from_the_command_line():
    """Another one for each commit: all of them take minutes."""
    commit = subprocess.run(["git", "-C", PROJECT, "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    name = sorted(SMALLEST)[int(commit or "0", 16) % len(SMALLEST)]
    command = [sys.executable, "-m", "benchmarks", name, *SMALLEST[name]]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "| --- |" in done.stdout, "a table"
