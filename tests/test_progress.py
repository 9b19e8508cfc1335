import logging

import pytest
import tensorflow.compat.v1 as tf

from runtime.cluster.task import Task
from runtime.monitoring import progress
from runtime.updates.exchange import Updates


@pytest.mark.promises("speed-of-full-updates")
@pytest.mark.parametrize(
    ("index", "line", "examples"),
    [
        (0, "worker 0: global step 16/100, local step 8, loss 0.2500, 120 examples/s", 20 * 3 * 10),
        (1, "worker 1: global step 16/100, local step 8, loss 0.2500, 20 examples/s", 10 * 10),
    ],
)
def test_progress_counts_the_cluster_on_the_chief_and_itself_elsewhere(
    graph, monkeypatch, caplog, index, line, examples
):
    """Five runs of a second, each of two local and four global steps, each global step of three batches of ten."""
    now = 0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    task = Task("worker", index, ("a:1",), ("b:2", "c:3"))
    variable = tf.train.create_global_step()
    updates = Updates(
        train_op=None,
        num_steps=tf.constant(2),
        loss=tf.constant(0.25),
        global_step=variable,
        last_step=None,
        last_step_now=None,
        num_replicas=3,
        hooks=[],
        unsaved_variables=[],
        are_finished=[],
        exchange=None,
        pushes=[],
        staleness=None,
    )
    hook = progress.ProgressHook(task, updates, 100, batch_size=10, log_every_secs=4)
    with tf.Session() as session, caplog.at_level(logging.INFO):
        session.run(tf.global_variables_initializer())
        hook.after_create_session(session, tf.train.Coordinator())
        for run in range(1, 6):
            hook.before_run(None)
            now += 1
            hook.after_run(None, tf.train.SessionRunValues([2, 0.25, 4 * run], None, None))
        assert [record.getMessage() for record in caplog.records] == [line]

        session.run(variable.assign(21))  # another worker's last step, after the time that was measured
        hook.end(session)
        recorded, coord = [], tf.train.Coordinator()
        monkeypatch.setattr(progress.events, "record", lambda event, **_: recorded.append(event))
        coord.request_stop()
        hook.after_create_session(session, coord)
        assert not recorded, "it would hide the run that has trained"
    assert hook.num_examples == examples
    assert hook.train_secs == 5
