"""A thread that guards a promise ends its process if it cannot go on."""

import subprocess
import sys

import pytest

from benchmarks.testbed.processes import PROJECT

RUN = """
from runtime import environment, errors, threads
import tensorflow.compat.v1 as tf
import time

def guard(what):
    raise {error}

threads.start_guard("watch", guard, "the promise")
time.sleep(300)
"""


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (
            "ValueError(what)",
            1,
            "the thread watch cannot go on (ValueError: the promise); start this task again",
        ),
        (
            'tf.errors.AbortedError(None, None, "no " + what)',
            1,
            "the thread watch cannot go on (AbortedError: no the promise); start this task again",
        ),
        ('errors.UnusableError(what + ": correct it")', 2, "the promise: correct it"),
    ],
)
def test_a_guard_that_fails_ends_its_process_with_one_line(error, status, line):
    command = [sys.executable, "-c", RUN.format(error=error)]
    process = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=240)
    assert process.returncode == status
    assert process.stderr.splitlines()[-1] == f"error: {line}"
    assert "Traceback" not in process.stderr
