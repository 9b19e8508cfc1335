"""An error in a thread ends its process, as it would in the main thread; what may pass has another try."""

import queue
import subprocess
import sys
import threading
import time

import pytest
import tensorflow.compat.v1 as tf

from benchmarks.testbed.processes import PROJECT
from runtime.process import threads
from tests import forked

RUN = """
from runtime.process import environment, threads
from runtime.roles import program
from runtime.process.errors import UNUSABLE, AwayError, UnusableError
import tensorflow.compat.v1 as tf
import time

def act():
    {statement}

def main():
    {start}
    time.sleep(300)

{run}
"""
START = 'threads.start_guard("watch", act)'
REPEAT = """threads.SessionThread("watch", lambda *_: act(), 0.01, "it failed")._repeat(None, tf.train.Coordinator())"""
PROGRAM = "UNUSABLE.append(KeyError)  # as a user's DataError is\nprogram.start(main)"


@pytest.mark.slow
@pytest.mark.parametrize("start", [START, REPEAT])
@pytest.mark.parametrize(
    ("statement", "status", "message"),
    [
        ("raise UnusableError('an accuracy of 2')", 2, "error: an accuracy of 2\n"),
        ("raise KeyError('a bad file')", 2, "error: 'a bad file'\n"),
        ("raise AwayError('waited')", 1, "error: waited\n"),
        ("raise ValueError('no', 'way')", 1, "error: ValueError: ('no', 'way'); start this task again\n"),
        (
            "raise tf.errors.InvalidArgumentError(None, None, 'a shape')",
            1,
            "error: InvalidArgumentError: a shape; start this task again\n",
        ),
    ],
)
def test_a_thread_ends_its_process_as_the_main_thread_does(start, statement, status, message):
    forked.check_end(RUN.format(statement=statement, start=start, run=PROGRAM), status, message)


@pytest.mark.slow
def test_a_thread_of_another_program_ends_it_too():
    script = RUN.format(statement="raise tf.errors.AbortedError(None, None, 'no')", start=START, run="main()")
    process = subprocess.run([sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, timeout=240)
    assert process.returncode == 1
    assert process.stderr.splitlines()[-1] == "error: AbortedError: no; start this task again"


def beside(act):
    """Return what acts beside the steps of a session, often."""
    return threads.SessionThread("act", lambda *_: act(), 0.01, "worker 0 could not act")


def test_only_what_may_pass_has_another_try(caplog):
    errors = iter([*threads.PASSING, tf.errors.UnimplementedError, None])

    def act():
        raise next(errors)(None, None, "sorry")

    with pytest.raises(tf.errors.UnimplementedError):
        beside(act)._repeat(None, tf.train.Coordinator())
    assert caplog.text.count("worker 0 could not act (UnavailableError: sorry): trying again") == 1
    assert next(errors) is None, "each had its turn"


def test_it_acts_once_in_a_period():
    coord, times = tf.train.Coordinator(), []

    def act():
        times.append(time.monotonic())
        if len(times) == 3:
            coord.request_stop()

    beside(act)._repeat(None, coord)
    assert times[2] - times[0] >= 0.02


def test_no_error_counts_once_the_session_has_ended():
    coord = tf.train.Coordinator()

    def act():
        coord.request_stop()
        raise RuntimeError("Attempted to use a closed Session.")

    beside(act)._repeat(None, coord)


def test_a_thread_acts_from_the_first_step_of_a_session_until_it_is_done():
    acts = queue.SimpleQueue()

    def act():
        acts.put(1)
        return acts.qsize() == 2

    hook = beside(act)
    hook.after_create_session(None, tf.train.Coordinator())
    assert not hook._thread.is_alive(), "a hook after it may fail"
    for _ in range(2):
        hook.before_run(None)
    hook._thread.join(60)
    assert acts.qsize() == 2


def test_a_thread_acts_no_more_once_the_next_session_is_made():
    coord, is_acting, has_acted = tf.train.Coordinator(), threading.Event(), threading.Event()

    def act():
        is_acting.set()
        time.sleep(0.2)
        has_acted.set()

    hook = beside(act)
    hook.after_create_session(None, coord)
    hook.before_run(None)
    assert is_acting.wait(60)
    coord.request_stop()
    hook.after_create_session(None, tf.train.Coordinator())
    assert has_acted.is_set()
