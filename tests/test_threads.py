"""A thread that guards a promise ends its process if it cannot go on."""

import subprocess
import sys

import pytest

from benchmarks.testbed.processes import PROJECT

RUN = """
from runtime import environment, threads
import tensorflow.compat.v1 as tf
import time

def guard(what):
    raise {error}

threads.start_guard("watch", guard, "the promise")
time.sleep(300)
"""


@pytest.mark.parametrize(
    ("error", "line"),
    [
        ("ValueError(what)", "ValueError: the promise"),
        ('tf.errors.AbortedError(None, None, "no " + what)', "AbortedError: no the promise"),
    ],
)
def test_a_guard_that_fails_ends_its_process_with_one_line(error, line):
    command = [sys.executable, "-c", RUN.format(error=error)]
    process = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=240)
    assert process.returncode == 1
    last = process.stderr.splitlines()[-1]
    assert last == f"error: the thread watch cannot go on ({line}); start this task again"
    assert "Traceback" not in process.stderr
