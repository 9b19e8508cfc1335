"""When workers wait for each other, on real servers."""

import threading

import pytest
import tensorflow.compat.v1 as tf

from runtime.cluster.roll_call import TRAINED, TRAINING, RollCall
from runtime.session import attendance


def build(servers, index):
    with tf.Graph().as_default() as graph:
        return RollCall(servers.task("worker", index)), graph


def test_the_chief_ends_when_the_others_have_trained_but_not_before(local_servers):
    servers = local_servers(1, 3)
    chief, chief_graph = build(servers, 0)
    other, other_graph = build(servers, 1)  # worker 2 never comes
    hook = attendance.WaitForWorkersHook(chief, servers.task("worker", 0))
    with servers.worker_session(0, chief_graph) as session, servers.worker_session(1, other_graph) as other_session:
        other.say(other_session, TRAINING)
        ended = threading.Event()

        def end():
            hook.end(session)
            ended.set()

        threading.Thread(target=end, daemon=True).start()
        assert not ended.wait(0.5)
        other.say(other_session, TRAINED)
        assert ended.wait(60)


def test_the_chief_does_not_wait_for_a_dead_worker_for_ever(local_servers, monkeypatch, caplog):
    monkeypatch.setattr(attendance, "GRACE_SECS", 0.1)
    servers = local_servers(1, 2)
    chief, chief_graph = build(servers, 0)
    dead, dead_graph = build(servers, 1)
    with servers.worker_session(1, dead_graph) as session:
        dead.say(session, TRAINING)
    with servers.worker_session(0, chief_graph) as session:
        attendance.WaitForWorkersHook(chief, servers.task("worker", 0)).end(session)
    assert "worker 0 waited 0 s for worker 1 to take its last step: ending without it" in caplog.text


def absent_worker(servers, step):
    """Let the chief of a synchronous cluster of two start its session, at a global step, when worker 1 is not there."""
    with tf.Graph().as_default() as graph:
        hook = attendance.RollCallHook(
            RollCall(servers.task("worker", 0)), servers.task("worker", 0), True, startup_timeout_secs=0.2
        )
        with tf.device("/job:ps/task:0"):
            assign = tf.train.create_global_step().assign(step)
    with servers.worker_session(0, graph) as session:
        session.run(assign)
        hook.after_create_session(session, tf.train.Coordinator())


def test_a_new_synchronous_model_is_not_trained_before_all_workers_are_there(local_servers):
    servers = local_servers(1, 2)
    with pytest.raises(TimeoutError, match=f"waited 0 s for worker 1 at {servers.worker_hosts[1]}: start each missing"):
        absent_worker(servers, step=0)


def test_a_synchronous_model_that_has_trained_goes_on_without_who_does_not_come_back(local_servers, caplog):
    servers = local_servers(1, 2)
    absent_worker(servers, step=5)
    assert f"waited 0 s for worker 1 at {servers.worker_hosts[1]}: training goes on" in caplog.text
