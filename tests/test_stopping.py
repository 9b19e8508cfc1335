"""How a worker stops at a signal that comes after training."""

import signal

import pytest

from tests import forked

# The chief's process, told to stop while it tests or exports the model: its session is closed by then.
RUN = """
import os, signal, time, types
from runtime.process import environment
from runtime.roles import program
import tensorflow.compat.v1 as tf
from runtime.cluster.membership import Membership
from runtime.cluster.task import Task
from runtime.cluster.waiting import Timeouts
from runtime.records.folder import RunFolder
from runtime.saving.checkpoint_hook import CheckpointHook
from runtime.session.stopping import StopOnSignalHook

def main():
    tf.disable_eager_execution()
    task = Task("worker", 0, ("a:1",), ("b:2",))
    checkpoint_hook = CheckpointHook(task, RunFolder("{train_dir}"), tf.train.Scaffold(), save_secs=60, train_steps=100)
    checkpoint_hook.saved_step, checkpoint_hook.failure, checkpoint_hook.remedy = 7, "{failure}", "; make room"
    step = tf.constant(0)
    scaffold = types.SimpleNamespace(found_session=None, note_ready=bool)
    hook = StopOnSignalHook(Membership(task, Timeouts(60, 60)), scaffold, checkpoint_hook, 25)
    with tf.train.SingularMonitoredSession([hook]) as session:
        session.run(step)
    os.kill(os.getpid(), signal.{number})
    time.sleep(60)

program.start(main)
"""

GO_ON = "; restart it to resume"
UNSAVED = "; nothing is saved: restart it while the ps tasks still run, or training starts over"


@pytest.mark.promises("stop-status")
@pytest.mark.parametrize(
    ("train_dir", "failure", "number", "how", "lost"),
    [
        ("a", "", signal.SIGTERM, "stopped and saved global step 7", ""),
        (
            "a",
            "no space",
            signal.SIGTERM,
            "stopped",
            f", and could not save the last steps (no space); make room{GO_ON}",
        ),
        ("", "", signal.SIGINT, "stopped", UNSAVED),
        ("", "a ps is away", signal.SIGINT, "stopped", UNSAVED),  # it would save nothing
    ],
)
def test_a_signal_after_training_says_whether_the_last_checkpoint_is_saved(train_dir, failure, number, how, lost):
    process = forked.run("-c", RUN.format(train_dir=train_dir, failure=failure, number=number.name))
    assert process.returncode == 128 + number
    line = f"{'error: ' * (lost[:1] == ',')}worker 0 {how} because of {number.name}{lost or GO_ON}"
    assert process.stderr.splitlines()[-1] == line
