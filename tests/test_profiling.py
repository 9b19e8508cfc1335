import shutil

import pytest
import tensorflow.compat.v1 as tf

from runtime.cluster.task import Task
from runtime.monitoring import profiling
from runtime.process.errors import UnusableError
from runtime.records.folder import RunFolder

WORKER = Task("worker", 1, ("ps:1",), ("chief:1", "other:1"))


def test_a_worker_whose_traces_cannot_be_written_is_refused(graph, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UnusableError, match=r"no trace can be written to --train_dir .*/file: Not a directory"):
        profiling.ProfileHook(WORKER, tf.train.create_global_step(), "1:2", RunFolder(tmp_path / "file"))


def test_a_disk_that_fails_costs_traces_and_nothing_else(graph, tmp_path, caplog):
    step = tf.train.create_global_step().assign_add(1)
    hooks = [profiling.ProfileHook(WORKER, step, "1:4", RunFolder(tmp_path / "train"))]
    with tf.train.MonitoredSession(hooks=hooks) as session:
        session.run(step)
        shutil.rmtree(tmp_path / "train")
        (tmp_path / "train").touch()  # a file, in which nothing can be written
        while session.run(step) < 6:
            pass
    assert "no trace could be written" in caplog.text


def test_a_task_that_comes_back_after_the_steps_traces_nothing(graph, tmp_path):
    step = tf.train.create_global_step().assign_add(1)
    hooks = [profiling.ProfileHook(WORKER, step, "0:100", RunFolder(tmp_path))]
    scaffold = tf.train.Scaffold(init_op=tf.train.get_global_step().assign(5000))
    with tf.train.MonitoredSession(tf.train.ChiefSessionCreator(scaffold), hooks) as session:
        session.run(step)
    assert list(tmp_path.rglob("*.pb")) == []
