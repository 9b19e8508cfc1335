"""When workers wait for each other, on real servers."""

import threading

import pytest
import tensorflow.compat.v1 as tf

from runtime.cluster import status
from runtime.cluster.roll_call import TRAINED, TRAINING, RollCall
from runtime.cluster.status import Status
from runtime.session import attendance


def build(servers, index):
    with tf.Graph().as_default() as graph:
        return RollCall(servers.task("worker", index)), graph


def test_the_chief_ends_when_the_others_have_trained_but_not_before(local_servers):
    servers = local_servers(1, 3)
    chief, chief_graph = build(servers, 0)
    other, other_graph = build(servers, 1)  # worker 2 never comes
    hook = attendance.WaitForWorkersHook(chief, servers.task("worker", 0), recovery_timeout_secs=60)
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
    monkeypatch.setattr(status, "ask", lambda _: Status(reason="connection refused"))  # a server here cannot be stopped
    servers = local_servers(1, 2)
    chief, chief_graph = build(servers, 0)
    dead, dead_graph = build(servers, 1)
    with servers.worker_session(1, dead_graph) as session:
        dead.say(session, TRAINING)
    with servers.worker_session(0, chief_graph) as session:
        attendance.WaitForWorkersHook(chief, servers.task("worker", 0), recovery_timeout_secs=60).end(session)
    gone = f"worker 1 at {servers.worker_hosts[1]}"
    assert f"worker 0: ending without {gone}, which has not taken its last step" in caplog.text


def test_the_chief_waits_for_a_slow_worker_that_answers(local_servers, monkeypatch):
    monkeypatch.setattr(attendance, "GRACE_SECS", 0.1)
    servers = local_servers(1, 2)
    chief, chief_graph = build(servers, 0)
    slow, slow_graph = build(servers, 1)
    hook = attendance.WaitForWorkersHook(chief, servers.task("worker", 0), recovery_timeout_secs=60)
    with servers.worker_session(0, chief_graph) as session, servers.worker_session(1, slow_graph) as slow_session:
        slow.say(slow_session, TRAINING)
        ending = threading.Thread(target=hook.end, args=(session,), daemon=True)
        ending.start()
        ending.join(2)
        assert ending.is_alive(), "its grace is over, but it still answers"
        slow.say(slow_session, TRAINED)
        ending.join(60)
        assert not ending.is_alive()


def test_the_chief_says_who_never_took_part(local_servers, caplog):
    servers = local_servers(1, 2)
    chief, graph = build(servers, 0)
    with servers.worker_session(0, graph) as session:
        hook = attendance.WaitForWorkersHook(chief, servers.task("worker", 0), recovery_timeout_secs=60)
        hook.end(session)
        assert not caplog.text, "nothing was left to train: it may only be slower"
        hook.after_run(None, None)
        hook.end(session)
    assert f"worker 0: worker 1 at {servers.worker_hosts[1]} never took part" in caplog.text


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


def test_workers_that_have_trained_and_left_are_not_waited_for_when_the_first_checkpoint_is_restored(
    local_servers, monkeypatch, caplog
):
    servers = local_servers(1, 2)
    other, graph = build(servers, 1)
    with servers.worker_session(1, graph) as session:
        other.say(session, TRAINING)
    with tf.Graph().as_default() as graph:
        chief = servers.task("worker", 0)
        hook = attendance.RollCallHook(RollCall(chief), chief, True, startup_timeout_secs=0.2)
        with tf.device("/job:ps/task:0"):
            tf.train.create_global_step()
            initialize = tf.global_variables_initializer()
    with servers.worker_session(0, graph) as session:
        session.run(initialize)
        hook.after_create_session(session, tf.train.Coordinator())
        assert "training goes on" not in caplog.text
        monkeypatch.setattr(status, "ask", lambda _: Status(reason="connection refused"))
        hook.after_create_session(session, tf.train.Coordinator())
        assert f"worker 1 at {servers.worker_hosts[1]} (connection refused): training goes on" in caplog.text
        caplog.clear()
        coord = tf.train.Coordinator()
        coord.request_stop()  # as of a model that has reached its goal
        hook.after_create_session(session, coord)
        assert not caplog.text


def test_the_word_of_an_earlier_life_does_not_count(local_servers, caplog):
    servers = local_servers(1, 2)
    dead, graph = build(servers, 1)
    with servers.worker_session(1, graph) as session:
        session.run(dead._say, {dead._word: f"{TRAINING} 1"})  # the server that answers has another number
    absent_worker(servers, step=5)
    assert f"waited 0 s for worker 1 at {servers.worker_hosts[1]}: training goes on" in caplog.text
    with servers.worker_session(1, graph) as session:
        dead.say(session, TRAINING)
    caplog.clear()
    absent_worker(servers, step=5)
    assert "waited" not in caplog.text


@pytest.mark.parametrize("index", [0, 1])
def test_a_worker_that_has_trained_ends_well_though_a_ps_is_lost_before_it_says_so(local_servers, monkeypatch, index):
    servers = local_servers(1, 2)
    roll_call, graph = build(servers, index)

    def lose_ps(*_):  # a server here cannot be stopped
        raise tf.errors.UnavailableError(None, None, "recvmsg:Connection reset by peer")

    monkeypatch.setattr(roll_call, "say", lose_ps)
    hook = attendance.RollCallHook(roll_call, servers.task("worker", index), False, startup_timeout_secs=60)
    with servers.worker_session(index, graph) as session:
        if index == 0:  # the chief has a model to evaluate
            with pytest.raises(tf.errors.UnavailableError):
                hook.end(session)
        else:
            hook.end(session)
