"""How the memory of a process is judged: by the end against the time after the warm-up."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from benchmarks.testbed.processes import poll_for
from tests import memory
from tests.memory import MIN_LIFE_SECS, WARM_UP_SECS, Life, Sample, Sampler


def life(mebibytes, secs=240):
    """A process whose memory is a function of its age in seconds."""
    return Life("ps 0", 0.0, [Sample(age, mebibytes(age)) for age in range(secs + 1)])


def test_the_warm_up_is_no_growth():
    assert life(lambda age: min(400.0, 100.0 + 300.0 * age / WARM_UP_SECS)).growth == 0.0


def test_one_sample_is_no_growth():
    assert life(lambda age: 900.0 if age in (130, 240) else 400.0).growth == 0.0


def test_a_leak_is_growth():
    grown = life(lambda age: 400.0 + age / 3)  # 445 in the middle of the first window, 475 in that of the last
    assert grown.growth == pytest.approx(475 / 445 - 1)
    assert grown.secs >= MIN_LIFE_SECS
    assert grown.curve() == [410.0, 430.0, 450.0, 470.0]


def test_a_process_that_ends_does_not_end_the_sampling(monkeypatch):
    monkeypatch.setattr(memory, "SAMPLE_SECS", 0.01)
    monkeypatch.setattr(memory, "MIN_LIFE_SECS", 0.01)
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as ended:
        pass
    with subprocess.Popen(command, stdin=subprocess.PIPE) as running:
        tasks = {"a": SimpleNamespace(pid=ended.pid), "b": SimpleNamespace(pid=running.pid)}
        with Sampler(SimpleNamespace(tasks=tasks)) as sampler:
            sampler.watch_new()
            (life,) = poll_for(sampler.judged_lives, "samples")
    assert life.task == "b"
