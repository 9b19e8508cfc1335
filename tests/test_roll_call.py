import threading

import pytest
import tensorflow.compat.v1 as tf

from runtime import roll_call


def build(servers, job_name, index):
    with tf.Graph().as_default() as graph:
        return roll_call.RollCall(servers.task(job_name, index)), graph


def test_what_a_worker_says_is_heard_by_every_ps_and_worker_and_stays(local_servers):
    servers = local_servers(2, 3)
    speaker, graph = build(servers, "worker", 1)
    with servers.worker_session(1, graph) as session:
        assert speaker.listen(session) == ["", "", ""], "nobody has said anything"
        speaker.say(session, roll_call.TRAINING)

    for ps in range(2):
        listener, graph = build(servers, "ps", ps)
        with tf.Session(servers.ps[ps].target, graph=graph) as session:
            assert listener.listen(session) == ["", "training", ""]
            assert listener.listen(session) == ["", "training", ""], "listening takes nothing away"

    late, graph = build(servers, "worker", 2)
    with servers.worker_session(2, graph) as session:
        late.say(session, roll_call.TRAINED)
        assert late.listen(session) == ["", "training", "trained"]


def test_what_was_said_before_a_ps_was_lost_counts_as_not_said(local_servers):
    servers = local_servers(2, 1)
    worker, graph = build(servers, "worker", 0)
    with servers.worker_session(0, graph) as session:
        session.run(worker._say[0], {worker._word: roll_call.TRAINING})  # ps 1 is new, and has not heard it
        assert worker.listen(session) == [""]
        worker.say(session, roll_call.TRAINING)
        assert worker.listen(session) == ["training"]


def test_the_roll_call_is_no_part_of_the_model(local_servers):
    servers = local_servers(1, 2)
    with tf.Graph().as_default():
        roll_call.RollCall(servers.task("worker", 0))
        assert tf.global_variables() == tf.local_variables() == tf.trainable_variables() == []


def test_the_chief_ends_when_the_others_have_trained_but_not_before(local_servers):
    servers = local_servers(1, 3)
    chief, chief_graph = build(servers, "worker", 0)
    other, other_graph = build(servers, "worker", 1)  # worker 2 never comes
    hook = roll_call.WaitForWorkersHook(chief, servers.task("worker", 0))
    with servers.worker_session(0, chief_graph) as session, servers.worker_session(1, other_graph) as other_session:
        other.say(other_session, roll_call.TRAINING)
        ended = threading.Event()

        def end():
            hook.end(session)
            ended.set()

        threading.Thread(target=end, daemon=True).start()
        assert not ended.wait(0.5)
        other.say(other_session, roll_call.TRAINED)
        assert ended.wait(60)


def test_the_chief_does_not_wait_for_a_dead_worker_for_ever(local_servers, monkeypatch, caplog):
    monkeypatch.setattr(roll_call, "GRACE_SECS", 0.1)
    servers = local_servers(1, 2)
    chief, chief_graph = build(servers, "worker", 0)
    dead, dead_graph = build(servers, "worker", 1)
    with servers.worker_session(1, dead_graph) as session:
        dead.say(session, roll_call.TRAINING)
    with servers.worker_session(0, chief_graph) as session:
        roll_call.WaitForWorkersHook(chief, servers.task("worker", 0)).end(session)
    assert "worker 0 waited 0 s for worker 1 to take its last step: ending without it" in caplog.text


def absent_worker(servers, step):
    """Let the chief of a synchronous cluster of two start its session, at a global step, when worker 1 is not there."""
    with tf.Graph().as_default() as graph:
        hook = roll_call.RollCallHook(
            roll_call.RollCall(servers.task("worker", 0)), servers.task("worker", 0), True, startup_timeout_secs=0.2
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
