import collections
import logging
import math
import os
import threading
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmarks.testbed.processes import DEADLINE_SECS, poll_for
from mnist_input import Examples
from runtime.cluster import status
from runtime.cluster.board import TRAINING
from runtime.cluster.membership import Membership
from runtime.cluster.status import Status, ask
from runtime.cluster.task import Task
from runtime.cluster.waiting import Timeouts
from runtime.data.memory import MemorySource
from runtime.process import threads
from runtime.process.errors import UnusableError
from runtime.records.folder import RunFolder
from runtime.saving.result import Goal, describe_result
from runtime.session import scaffold, stopping
from runtime.session.scaffold import Job, TrainingScaffold
from runtime.session.steps import StepsHook
from runtime.session.stopping import AbandonSessionHook
from runtime.updates.exchange import Updates


class Worker:
    """A worker with a model of one variable on the ps, and a scaffold."""

    def __init__(self, servers, index, train_dir="", startup_timeout_secs=20, last_step=100):
        self.task = servers.task("worker", index)
        self.membership = servers.membership("worker", index, startup_timeout_secs, recovery_secs=20)
        self.membership.describe_result = lambda: describe_result(RunFolder(train_dir), Goal(100))
        self.connection = servers.connection("worker", index)
        self.graph = tf.Graph()
        if train_dir:
            (train_dir / "chief.lock").touch()  # as open_train_dir() does
        with self.graph.as_default():
            spec = tf.train.ClusterSpec(self.task.jobs)
            with tf.device(tf.train.replica_device_setter(worker_device=self.task.device, cluster=spec)):
                global_step = tf.train.create_global_step()
                tf.get_variable("w", [3, 2])
                self.step = global_step.assign_add(1)
                last_step = tf.Variable(np.int64(last_step), trainable=False, collections=[], name="last_step")
                steps = tf.constant(1), tf.constant(0.0), self.step, last_step.read_value(), last_step
                self.updates = Updates([], *steps, [last_step], [], None, [])
                job = Job({}, self.updates, RunFolder(train_dir), "ps", keep_checkpoints=5, goal=Goal(100, None))
                self.scaffold = TrainingScaffold(self.membership, self.connection, job)

    def session(self, hooks=(), is_ready=True):
        ready = tf.train.SessionRunHook()
        ready.after_create_session = lambda session, coord: self.scaffold.note_ready() if is_ready else None
        with self.graph.as_default():
            return tf.train.MonitoredTrainingSession(
                self.connection.target,
                self.task.is_chief,
                scaffold=self.scaffold,
                hooks=[*hooks, ready],
                config=self.connection.config,
            )


@pytest.mark.promises("chief-keeps-model")
def test_a_chief_initialises_then_keeps_what_lives_on_the_ps(local_servers, caplog):
    servers = local_servers(2, 1)
    worker = Worker(servers, 0)
    with caplog.at_level(logging.INFO), worker.session() as session:
        assert "worker 0: initialised a new model, at global step 0" in caplog.text
        states = [record.state for record in worker.membership.board.records()]
        assert states[0] == TRAINING, "or a ps that is stopped would not wait for a save"
    worker = Worker(servers, 0)
    with worker.session() as session:
        session.run(worker.step)
        session.run(worker.step)
    with caplog.at_level(logging.INFO), Worker(servers, 0).session():
        assert "the ps tasks still hold the model: keeping it, at global step 2" in caplog.text


def test_a_session_that_is_long_in_the_making_is_told_until_it_is_ready(local_servers, monkeypatch, caplog):
    monkeypatch.setattr(scaffold, "PREPARING_SECS", 0.05)
    caplog.set_level(logging.INFO)
    worker, others = Worker(local_servers(1, 1), 0), {*threading.enumerate()}
    with worker.session(is_ready=False):
        (reminder,) = [thread for thread in {*threading.enumerate()} - others if thread.name == "remind"]
        poll_for(lambda: caplog.text.count("worker 0: still preparing its session") > 1, "a second line")
        worker.scaffold.note_ready()
        reminder.join(DEADLINE_SECS)
        assert not reminder.is_alive()


@pytest.mark.promises("lost-ps")
def test_a_chief_restores_where_nothing_lives_and_a_living_model_wins(local_servers, tmp_path, caplog):
    worker = Worker(local_servers(1, 1), 0, tmp_path)
    with worker.session() as session:
        session.run(worker.step)
        with worker.connection.session(worker.graph) as saving:
            worker.scaffold.saver.save(saving, str(tmp_path / "model.ckpt"), global_step=1)
        session.run(worker.step)

    servers = local_servers(1, 1)
    with caplog.at_level(logging.INFO), Worker(servers, 0, tmp_path).session():
        assert f"restored {tmp_path}/model.ckpt-1, at global step 1" in caplog.text
    worker = Worker(servers, 0, tmp_path)
    with worker.session() as session:
        session.run(worker.step)
    with caplog.at_level(logging.INFO), Worker(servers, 0, tmp_path).session():
        assert "keeping it, at global step 2" in caplog.text


@pytest.mark.parametrize("has_folder", [True, False])
@pytest.mark.promises("model-of-another-run")
def test_a_model_left_by_an_earlier_run_replaces_no_other(local_servers, tmp_path, caplog, has_folder):
    left, other, new = (tmp_path / name for name in ("left", "other", "new"))
    for folder in (left, other, new):
        folder.mkdir()
    worker = Worker(local_servers(1, 1), 0, other)
    with worker.session() as session:
        session.run(worker.step)
        with worker.connection.session(worker.graph) as saving:
            worker.scaffold.saver.save(saving, str(other / "model.ckpt"), global_step=1)

    servers = local_servers(1, 1)
    with Worker(servers, 0, left if has_folder else "").session():
        pass
    found = rf"with {left if has_folder else 'no --train_dir'}, which would take the place of {other}/model.ckpt-1: "
    with pytest.raises(UnusableError, match=found):
        Worker(servers, 0, other).session()
    (tmp_path / "link").symlink_to(left)
    for folder in (left, tmp_path / "link", new):  # an empty folder may rescue a model
        with caplog.at_level(logging.INFO), Worker(servers, 0, folder).session():
            assert "keeping it, at global step 0" in caplog.text
        caplog.clear()


def test_a_restore_that_a_file_server_fails_is_told_and_tried_again(local_servers, tmp_path, monkeypatch, caplog):
    restore, attempts = tf.train.Saver.restore, []

    def restore_or_fail(*arguments):
        attempts.append("restore")
        if len(attempts) == 1:
            raise tf.errors.DeadlineExceededError(None, None, "Connection timed out")
        restore(*arguments)

    worker = Worker(local_servers(1, 1), 0)
    with worker.session() as session:
        worker.scaffold.saver.save(session._tf_sess(), f"{tmp_path}/model.ckpt")
    monkeypatch.setattr(tf.train.Saver, "restore", restore_or_fail)
    with Worker(local_servers(1, 1), 0, tmp_path).session():
        assert len(attempts) == 2
    told = f"{tmp_path}/model.ckpt could not be restored (DeadlineExceededError: Connection timed out): trying again"
    assert told in caplog.text


def test_a_ps_whose_file_server_fails_for_a_moment_is_asked_again_whether_it_sees_the_folder(local_servers, tmp_path):
    class Session:
        """One in which the first look at a file fails."""

        def run(self, *_):
            if not asked:
                (content,) = folder._content_on.values()
                raise tf.errors.AbortedError(None, content.op, "Stale file handle")
            return b""

    asked = []
    folder = Worker(local_servers(1, 1), 0, tmp_path).scaffold._shared_folder
    folder.check(Session(), lambda: asked.append("every ps"), timeout_secs=60)
    assert asked == ["every ps"]


def test_a_worker_that_looks_before_the_chief_is_there_trains_at_once_when_it_is(local_servers):
    servers = local_servers(1, 2)
    other, trained = Worker(servers, 1), threading.Event()

    def train():
        with other.session() as session:
            session.run(other.step)
            trained.set()

    threading.Thread(target=train, daemon=True).start()
    assert not trained.wait(0.5)
    with Worker(servers, 0).session():
        assert trained.wait(25), "TensorFlow's own wait is a nap of 30 s"


def test_a_worker_whose_chief_never_comes_says_so(local_servers):
    worker = Worker(local_servers(1, 2), 1, startup_timeout_secs=0.3)
    awaited = r"worker 1 waited 0 s for the chief, worker 0 at localhost:.*"
    with pytest.raises(TimeoutError, match=awaited + "start the chief, or, if it is still reading"):
        worker.session()


def test_a_worker_makes_no_session_with_a_ps_that_has_other_host_lists(local_servers):
    servers = local_servers(1, 1)
    Membership(Task("ps", 0, servers.ps_hosts, ("other:1",)), Timeouts(60, 60)).agreement.publish()
    with pytest.raises(
        TimeoutError,
        match=r"s for the host lists of ps 0 at .* to match those of this task.*its own address.*large packets",
    ):
        Worker(servers, 0, startup_timeout_secs=0.3).session()


def test_a_worker_that_meets_its_cluster_with_other_lists_names_both_values(local_servers):
    """As one that was left over when all others were started again."""
    servers = local_servers(1, 1)
    lists = servers.ps_hosts, (*servers.worker_hosts, "more:1")
    Membership(Task("ps", 0, *lists), Timeouts(60, 60)).agreement.publish()
    with pytest.raises(UnusableError, match=r"given nothing as worker_hosts\[1\], but ps 0 was given more:1"):
        Worker(servers, 0).session()


def test_steps_that_are_cancelled_from_outside_are_taken_again_but_not_for_ever(local_servers):
    worker = Worker(local_servers(1, 1), 0)
    cancelled = tf.errors.CancelledError(None, None, "another process")
    with worker.session() as session:
        with worker.scaffold.repeating_cancelled_steps():
            raise cancelled
        with worker.scaffold.repeating_cancelled_steps():
            assert session.run(worker.step) == 1
        worker.scaffold._timeouts = Timeouts(20, recovery_secs=0.3)
        message = (
            "for 0.3 s, a ps has cancelled every step, as happens when two processes run as worker 0: end one of them"
        )

        tries = []

        def repeat():
            tries.append("one")
            with worker.scaffold.repeating_cancelled_steps():
                raise cancelled

        with pytest.raises(TimeoutError, match=message):
            collections.deque(iter(repeat, "never"))
        assert len(tries) <= 2 + 0.3 / scaffold.POLL_SECS


def test_sessions_that_cannot_be_made_are_tried_less_and_less_often(local_servers, monkeypatch):
    servers, pauses = local_servers(1, 2), []
    worker = Worker(servers, 0)
    monkeypatch.setattr(scaffold.time, "sleep", lambda secs: pauses.append(secs))
    with worker.graph.as_default():
        for _ in range(6):  # as MonitoredTrainingSession does when CreateSession fails
            worker.scaffold.finalize()
    assert pauses == [0.2, 0.4, 0.8, 1.0, 1.0]
    with worker.session():  # the next one is lost for another reason
        del pauses[:]
        with worker.graph.as_default():
            worker.scaffold.finalize()
        assert pauses == [0.2]
        del pauses[:]
        other = Worker(servers, 1)
        with other.graph.as_default():
            for _ in range(3):
                other.scaffold.finalize()
        assert pauses == [0.2, 0.2]


def test_a_worker_whose_sessions_are_all_lost_before_a_step_ends(local_servers):
    worker = Worker(local_servers(1, 1), 0)
    with worker.graph.as_default():
        worker.scaffold.finalize()
        worker.scaffold._timeouts = Timeouts(20, recovery_secs=0.3)
        with pytest.raises(
            TimeoutError, match=r"worker 0: for 0\.3 s, each session was lost before its first step: start this"
        ):
            collections.deque(iter(worker.scaffold.finalize, "never"))


def count_steps(worker):
    hook = StepsHook(worker.task, worker.scaffold, worker.updates, None)
    steps = 0
    with worker.session([hook]) as session:
        while not session.should_stop():
            session.run(worker.step)
            steps += 1
    return steps


def test_training_stops_at_the_last_step_and_a_late_worker_takes_none(local_servers):
    servers = local_servers(1, 2)
    assert count_steps(Worker(servers, 0, last_step=5)) == 5
    assert count_steps(Worker(servers, 1)) == 0


@pytest.mark.promises("lost-ps")
def test_steps_that_were_lost_are_counted_once(graph, caplog):
    tf.train.create_global_step()
    updates = types.SimpleNamespace(last_step_now=tf.constant(100))
    hook = StepsHook(Task("worker", 1, ("a:1",), ("b:2", "c:3")), None, updates, None)
    hook.after_run(None, types.SimpleNamespace(results=(7, 100, 1.0)))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(2):
            hook.after_create_session(session, tf.train.Coordinator())
    assert caplog.text.count("worker 1: global step 0 after 7: steps lost: 7") == 1


@pytest.mark.promises("back-at-the-average", "exact-place")
@pytest.mark.parametrize(("num_replicas", "first_batch"), [(1, 25), (2, 50), (4, 100)])
def test_a_worker_goes_on_with_its_examples_where_the_average_worker_is(graph, num_replicas, first_batch):
    first_batches = []
    batches = types.SimpleNamespace(start=lambda _, first, coord: first_batches.append(first))
    updates = types.SimpleNamespace(last_step_now=tf.constant(200), num_replicas=num_replicas)
    hook = StepsHook(Task("worker", 1, ("a:1",), ("b:2", "c:3", "d:4", "e:5")), None, updates, batches)
    with tf.Session() as session:
        tf.train.create_global_step().load(100, session)
        hook.after_create_session(session, tf.train.Coordinator())
    assert first_batches == [first_batch]


@pytest.mark.promises("loss-not-finite")
@pytest.mark.parametrize(("loss", "of_example"), [(np.nan, 1.0), (np.inf, 1.0), (-np.inf, 1.0), (np.nan, np.nan)])
def test_a_loss_that_is_not_finite_is_reported_with_its_worker_step_and_examples(graph, loss, of_example):
    examples = Examples(np.float32([[1.0, 2.0], [1.0, of_example], [1.0, 1.0]]), np.array([0, 1, 2]))
    batches = MemorySource(examples, stream=0).draw(1, 2, seed=0)
    hook = StepsHook(Task("worker", 1, ("a:1",), ("b:2", "c:3")), None, None, batches)
    line = "worker 1: the loss is not finite at global step 7: lower --learning_rate"
    if of_example != 1.0:
        line = line.replace(
            "lower --learning_rate",
            "correct the examples, which have NaN or infinity: images in 1 of 3 examples$",
        )
    with pytest.raises(UnusableError, match=f"^{line}"):
        hook.after_run(None, types.SimpleNamespace(results=(7, 100, loss)))


@pytest.mark.promises("late-worker")
@pytest.mark.parametrize("index", [0, 1])
def test_a_worker_that_comes_after_the_end_finds_out(local_servers, tmp_path, leave_checkpoint, monkeypatch, index):
    monkeypatch.setattr(scaffold, "LATE_SECS", math.inf)
    servers = local_servers(1, 2)
    worker = Worker(servers, index, tmp_path, startup_timeout_secs=0.2)
    monkeypatch.setattr(status, "ask", lambda _: Status(reason="connection refused"))  # a server here cannot be stopped
    (tmp_path / "result.json").write_text('{"global_step": 100, "test_accuracy": 0.5}')
    leave_checkpoint(100)

    def end(status, message, is_error):
        assert (status, is_error) == (0, False)
        raise SystemExit(message)

    monkeypatch.setattr(scaffold, "end_process", end)
    with pytest.raises(
        SystemExit, match=rf"worker {index}: nothing is left to do: .* has the result of a finished run"
    ):
        worker.session()


@pytest.mark.slow
@pytest.mark.promises("old-checkpoints")
def test_old_checkpoints_are_counted_over_restarts(local_servers, tmp_path):
    for life in range(3):
        worker = Worker(local_servers(1, 1), 0, tmp_path)
        with worker.session() as session, worker.connection.session(worker.graph) as saving:
            for step in range(4):
                session.run(worker.step)
                worker.scaffold.saver.save(saving, str(tmp_path / "model.ckpt"), global_step=10 * life + step)
    assert len(list(tmp_path.glob("model.ckpt-*.index"))) == 5


def test_a_session_after_a_lost_one_releases_memory(monkeypatch, local_servers):
    released = []
    monkeypatch.setattr(stopping, "release_free_memory", lambda: released.append("memory"))
    worker = Worker(local_servers(1, 1), 0)
    hook = AbandonSessionHook(worker.membership, worker.scaffold)
    for num_lost in range(3):
        hook.after_create_session(None, tf.train.Coordinator())
        assert len(released) == num_lost


def test_a_session_is_abandoned_when_another_process_answers_in_the_place_of_its_ps(local_servers, caplog):
    caplog.set_level("INFO")
    worker = Worker(local_servers(2, 1), 0)
    hook = AbandonSessionHook(worker.membership, worker.scaffold)
    with worker.session([hook]) as session:
        assert worker.scaffold.incarnations == {ps: ask(ps.address).incarnation for ps in worker.task.servers}
        worker.membership.look()
        hook._abandon_if_lost()
        session.run(worker.step)
        assert "is lost" not in caplog.text
        hook._guarded = (*hook._guarded[:2], dict.fromkeys(worker.task.servers, "that has ended"))
        hook._abandon_if_lost()
        hook._closing.join(60)
        session.run(worker.step)
        assert "the last session is lost: creating a new one" in caplog.text
        for _ in range(2):
            assert "sessions in a row" not in caplog.text
            hook._guarded = (*hook._guarded[:2], dict.fromkeys(worker.task.servers, "that has ended"))
            hook._abandon_if_lost()
            hook._closing.join(60)
            session.run(worker.step)
    assert "worker 0: lost 3 sessions in a row, though each ps lives on: check that the network lets" in caplog.text


def test_a_session_that_cannot_be_closed_ends_its_task(monkeypatch, local_servers):
    class Stuck:
        """A session that waits for the answer of a ps."""

        has_ended = threading.Event()

        def run(self, fetches):
            raise tf.errors.UnavailableError(None, None, "no answer")

        def close(self):
            assert self.has_ended.wait(60)

    ends = []
    monkeypatch.setattr(stopping, "CLOSING_SECS", 0.0)
    monkeypatch.setattr(stopping, "end_process", lambda *end: ends.append(end))
    worker, coord = Worker(local_servers(1, 1), 0), tf.train.Coordinator()
    hook = AbandonSessionHook(worker.membership, worker.scaffold)
    hook.after_create_session(Stuck(), coord)
    hook._membership.ended_servers = lambda *_: "ps 0"
    for _ in range(2):
        hook._abandon_if_lost()
    Stuck.has_ended.set()
    message = "the last session cannot be closed after ps 0 is gone: start this task again"
    assert ends == [(1, message)]


class FailOnce(tf.train.SessionRunHook):
    """Fails in the first session that it sees, as a hook that saves or listens when a ps ends."""

    has_failed = False

    def after_create_session(self, session, coord):
        if not self.has_failed:
            self.has_failed = True
            raise tf.errors.UnavailableError(None, None, "a ps has ended")


def test_a_session_whose_hooks_failed_leaves_no_thread_behind(local_servers):
    chief = Worker(local_servers(1, 1), 0)
    beside = threads.SessionThread("beside", lambda *_: False, 0.05, "it failed")
    hooks = [beside, FailOnce(), AbandonSessionHook(chief.membership, chief.scaffold), FailOnce()]
    with chief.session(hooks) as session:
        session.run(chief.step)
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("beside") == 1


def test_no_worker_trains_with_flags_that_nobody_compared(local_servers):
    """The chief publishes its flags and makes the model between two looks of a worker."""
    servers = local_servers(1, 2)
    chief, worker = Worker(servers, 0), Worker(servers, 1)
    chief.scaffold._job = chief.scaffold._job._replace(agreed={"optimizer": "adam"})
    worker.scaffold._job = worker.scaffold._job._replace(agreed={"optimizer": "sgd"})
    agree, sessions = worker.membership.agreement.check_flags, []

    def agree_before_the_chief_starts(flags):
        agree(flags)
        if not sessions:
            sessions.append(chief.session())

    worker.membership.agreement.check_flags = agree_before_the_chief_starts
    with pytest.raises(UnusableError, match=r"worker 1 has --optimizer=sgd, but .* trained with --optimizer=adam"):
        worker.session()
    sessions[0].close()


def test_a_train_directory_that_does_not_answer_is_said(local_servers, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(threads, "REMINDER_SECS", 0.05)
    servers = local_servers(1, 1)
    worker = Worker(servers, 0, tmp_path)
    lock = tmp_path / "chief.lock"
    lock.unlink()
    os.mkfifo(lock)  # whoever reads it waits for a writer, as for a file server that is away
    ready = threading.Event()

    def start():
        with worker.session():
            ready.set()

    threading.Thread(target=start, daemon=True).start()
    line = (
        f"worker 0: still checking that every ps sees --train_dir: check that {tmp_path} responds, here and on each ps"
    )
    poll_for(lambda: line in caplog.text, "line")
    with open(lock, "wb"):
        lock.rename(tmp_path / "fifo")
        lock.touch()
    assert ready.wait(60)
