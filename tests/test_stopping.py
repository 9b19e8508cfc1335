"""How a worker stops at a signal that comes after training."""

import signal

import pytest

from tests import forked

# The chief's process, told to stop while it tests or exports the model: its session is closed by then.
RUN = """
import os, signal, time
from runtime import environment, program
import tensorflow.compat.v1 as tf
from runtime.cluster.roll_call import RollCall
from runtime.cluster.task import Task
from runtime.folder import RunFolder
from runtime.saving.checkpoints import CheckpointHook
from runtime.session.stopping import StopOnSignalHook

def main():
    tf.disable_eager_execution()
    task = Task("worker", 0, ("a:1",), ("b:2",))
    with tf.Graph().as_default():
        roll_call = RollCall(task)
    checkpoint_hook = CheckpointHook(task, RunFolder("{train_dir}"), tf.train.Scaffold(), save_secs=60)
    checkpoint_hook.failure = "{failure}"
    step = tf.constant(0)
    with tf.train.SingularMonitoredSession([StopOnSignalHook(task, roll_call, checkpoint_hook)]) as session:
        session.run(step)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)

program.start(main, KeyError)
"""


@pytest.mark.parametrize(
    ("train_dir", "failure", "saved"),
    [
        ("a", "", "; the last checkpoint is saved: start all tasks again to test the model and export it"),
        ("a", "no space", "; the last checkpoint could not be written (no space): the last steps are lost"),
        ("", "", ""),
    ],
)
def test_a_signal_after_training_says_whether_the_last_checkpoint_is_saved(train_dir, failure, saved):
    process = forked.run("-c", RUN.format(train_dir=train_dir, failure=failure))
    assert process.returncode == 128 + signal.SIGTERM
    assert process.stderr.splitlines()[-1] == f"error: worker 0 stopped because of SIGTERM after training{saved}"
