"""The benchmarks run as their page says, from the command line, but for a moment."""

import subprocess
import sys

import pytest

from benchmarks import contenders
from benchmarks.__main__ import BENCHMARKS
from benchmarks.testbed.processes import PROJECT

SMALLEST = {
    "compare": ["--rounds=1", "--only", contenders.OURS_ASYNC],
    "accuracy": ["--rounds=1", "--train_steps=64"],
    "replication": ["--rounds=1", "--num_examples=20000"],
    "start": ["--rounds=1"],
    "watching": ["--rounds=1", "--train_steps=2000"],
    "data": ["--rounds=1", "--examples=120000", "--train_steps=2000"],
    "messages": [],
    "processes": ["--percent_of_steps=10"],
    "encryption": ["--measured_secs=1"],
    "table": ["--rows=1000", "--measured_secs=1", "--num_ps=1"],
    "unequal": ["--rounds=1", "--train_steps=2000", "--measured_secs=1"],
    "simulated": ["--measured_secs=1"],
    "real": ["--num_workers=2", "--num_killed=1", "--train_steps=20000"],
}


@pytest.mark.slow
@pytest.mark.usefixtures("mnist_dir")
def test_a_benchmark_runs_from_the_command_line():
    """Another one for each commit: all of them take a quarter of an hour."""
    commit = subprocess.run(["git", "-C", PROJECT, "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    name = sorted(SMALLEST)[int(commit or "0", 16) % len(SMALLEST)]
    if (hosts := BENCHMARKS[name].hosts) and (reason := hosts.missing()):
        pytest.skip(f"{name} needs hosts of its own: {reason}")
    command = [sys.executable, "-m", "benchmarks", name, *SMALLEST[name]]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "| --- |" in done.stdout, "a table"
