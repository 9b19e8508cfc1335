import os
import pathlib
import re
import shutil
import threading

import pytest
import tensorflow.compat.v1 as tf

from benchmarks.testbed.processes import DEADLINE_SECS
from runtime.cluster.task import Task
from runtime.monitoring import profiling, summaries
from runtime.process.errors import UnusableError
from runtime.records import events
from runtime.records.folder import RunFolder

WORKER = Task("worker", 1, ("ps:1",), ("chief:1", "other:1"))


@pytest.mark.parametrize(
    ("text", "expected"), [(None, True), ("5:9", True), ("5:5", True), ("9:5", False), ("5", False), ("5:", False)]
)
def test_a_range_has_two_steps_of_which_the_first_is_not_above_the_other(text, expected):
    assert profiling.is_step_range(text) == expected


def test_a_worker_whose_traces_cannot_be_written_is_refused(graph, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UnusableError, match=r"no trace can be written to --train_dir .*/file: Not a directory"):
        profiling.ProfileHook(WORKER, tf.train.create_global_step(), "1:2", RunFolder(tmp_path / "file"))


def test_a_disk_that_fails_costs_traces_and_nothing_else(graph, tmp_path, caplog, start_recording):
    start_recording(WORKER, RunFolder(tmp_path))
    step = tf.train.create_global_step().assign_add(1)
    hooks = [profiling.ProfileHook(WORKER, step, "1:4", RunFolder(tmp_path))]
    with tf.train.MonitoredSession(hooks=hooks) as session:
        session.run(step)
        shutil.rmtree(tmp_path / "profile")
        (tmp_path / "profile").touch()  # a file, in which nothing can be written
        while session.run(step) < 6:
            pass
    assert "no trace could be written" in caplog.text


def test_steps_go_on_though_the_folder_never_answers(graph, tmp_path, start_recording, monkeypatch):
    """A pipe without a reader stands for a file server that is away; once it is back, nothing is lost."""
    monkeypatch.setattr(profiling, "WRITING_SECS", 0.0)
    folder = RunFolder(tmp_path)
    start_recording(WORKER, folder)
    step = tf.train.create_global_step().assign_add(1)
    hook = profiling.ProfileHook(WORKER, step, "1:4", folder)
    pipe = pathlib.Path(folder.profile_of(WORKER), "step-2.pb.tmp")
    os.mkfifo(pipe)

    def train():
        with graph.as_default(), tf.train.MonitoredSession(hooks=[hook]) as session:
            while (global_step := session.run(step)) < 50:
                summaries.write_scalars(global_step, {"loss": 0.5})
                events.record("progress", global_step=int(global_step))

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    thread.join(DEADLINE_SECS)
    assert not thread.is_alive()
    said = events.wait_until_written(0)
    assert re.match(rf"\d+ of the records of this task are missing: check that {tmp_path} responds", said)
    threading.Thread(target=pipe.read_bytes, daemon=True).start()
    assert not events.wait_until_written(DEADLINE_SECS)
    progress = [event for event in events.read_run(folder) if event["event"] == "progress"]
    assert [event["global_step"] for event in progress] == [*range(1, 50)]
    (path,) = (tmp_path / "worker-1").iterdir()
    assert [event.step for event in tf.train.summary_iterator(str(path))] == [0, *range(1, 50)]
    assert (tmp_path / "profile" / "worker-1" / "step-4.pb").exists()


def test_a_worker_ends_when_its_traces_are_written(graph, tmp_path, start_recording):
    """Only then may the chief, who merges them, hear that it has trained."""
    start_recording(WORKER, RunFolder(tmp_path))
    step, may_write = tf.train.create_global_step().assign_add(1), threading.Event()
    with tf.train.MonitoredSession(hooks=[profiling.ProfileHook(WORKER, step, "0:1", RunFolder(tmp_path))]) as session:
        events.write_later(lambda *_: may_write.wait(DEADLINE_SECS))
        session.run(step)
        assert list(tmp_path.rglob("*.pb")) == []
        threading.Timer(0.2, may_write.set).start()
    assert [path.name for path in tmp_path.rglob("*.pb")] == ["step-1.pb"]


def test_the_steps_between_the_two_are_traced_and_no_others(graph, tmp_path, start_recording):
    start_recording(WORKER, RunFolder(tmp_path))
    step = tf.train.create_global_step().assign_add(1)
    with tf.train.MonitoredSession(hooks=[profiling.ProfileHook(WORKER, step, "2:4", RunFolder(tmp_path))]) as session:
        for _ in range(6):
            session.run(step)
    assert not events.wait_until_written(DEADLINE_SECS)
    assert sorted(path.name for path in tmp_path.rglob("*.pb")) == ["step-2.pb", "step-3.pb", "step-4.pb"]


def test_a_task_that_comes_back_after_the_steps_traces_nothing(graph, tmp_path, start_recording):
    start_recording(WORKER, RunFolder(tmp_path))
    step = tf.train.create_global_step().assign_add(1)
    hooks = [profiling.ProfileHook(WORKER, step, "0:100", RunFolder(tmp_path))]
    scaffold = tf.train.Scaffold(init_op=tf.train.get_global_step().assign(5000))
    with tf.train.MonitoredSession(tf.train.ChiefSessionCreator(scaffold), hooks) as session:
        session.run(step)
    assert not events.wait_until_written(DEADLINE_SECS)
    assert list(tmp_path.rglob("*.pb")) == []
