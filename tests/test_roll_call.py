import dataclasses
import queue
import signal
import threading

import tensorflow.compat.v1 as tf

from benchmarks.testbed.processes import DEADLINE_SECS, poll_for
from runtime.cluster import roll_call
from runtime.cluster.roll_call import EVALUATED, TRAINED, TRAINING, Departure, RollCall, dismiss_servers
from runtime.cluster.status import ask
from runtime.cluster.waiting import Timeouts, Watch
from runtime.launch.ports import choose_ports


def build(servers, job_name, index):
    with tf.Graph().as_default() as graph:
        return RollCall(servers.task(job_name, index)), graph


def texts(roll, session):
    return [word.text for word in roll.listen(session)]


def test_what_a_worker_says_is_heard_by_every_ps_and_worker_and_stays(local_servers):
    servers = local_servers(2, 3)
    speaker, graph = build(servers, "worker", 1)
    with servers.worker_session(1, graph) as session:
        assert texts(speaker, session) == ["", "", ""], "nobody has said anything"
        speaker.say(session, TRAINING)

    for ps in range(2):
        listener, graph = build(servers, "ps", ps)
        with tf.Session(servers.ps[ps].target, graph=graph) as session:
            assert texts(listener, session) == ["", "training", ""]
            assert texts(listener, session) == ["", "training", ""], "listening takes nothing away"

    late, graph = build(servers, "worker", 2)
    with servers.worker_session(2, graph) as session:
        late.say(session, TRAINED)
        assert texts(late, session) == ["", "training", "trained"]


def test_what_was_said_before_a_ps_was_lost_counts_as_not_said(local_servers):
    servers = local_servers(2, 1)
    worker, graph = build(servers, "worker", 0)
    with servers.worker_session(0, graph) as session:
        session.run(worker._say[0], {worker._word: f"{TRAINING} 1"})  # ps 1 is new, and has not heard it
        assert texts(worker, session) == [""]
        worker.say(session, TRAINING)
        assert texts(worker, session) == ["training"]


def test_the_roll_call_is_no_part_of_the_model(local_servers):
    servers = local_servers(1, 2)
    with tf.Graph().as_default():
        RollCall(servers.task("worker", 0))
        assert tf.global_variables() == tf.local_variables() == tf.trainable_variables() == []


def test_a_word_carries_the_incarnation_of_the_process_that_said_it(local_servers):
    servers = local_servers(1, 2)
    speaker, graph = build(servers, "worker", 1)
    with servers.worker_session(1, graph) as session:
        speaker.say(session, TRAINING)
        (word,) = [word for word in speaker.listen(session) if word.text]
    incarnations = [ask(peer.address).incarnation for peer in servers.task("ps", 0).others("worker")]
    assert word.incarnation == incarnations[1]
    assert incarnations[0] not in ("", incarnations[1])
    nobody = dataclasses.replace(servers.task("ps", 0).others("worker")[0], address=f"localhost:{choose_ports(1)[0]}")
    assert ask(nobody.address).incarnation == ""


def test_the_last_word_is_heard_by_every_server_and_ends_the_watch(local_servers):
    servers = local_servers(2, 1)
    chief, graph = build(servers, "worker", 0)
    with servers.worker_session(0, graph) as session:
        watch = Watch(servers.task("worker", 0), Timeouts(startup_secs=60, recovery_secs=60))
        dismiss_servers(servers.task("worker", 0), watch)
        assert texts(chief, session) == ["evaluated"]
        poll_for(lambda: "watch" not in {thread.name for thread in threading.enumerate()}, "end of the watch")


def test_a_ps_that_is_told_to_stop_and_then_hears_the_last_word_has_done_its_part(local_servers, monkeypatch, caplog):
    caplog.set_level("INFO")
    ends = queue.SimpleQueue()
    monkeypatch.setattr(roll_call, "end_process", ends.put)
    servers = local_servers(1, 1)
    chief, graph = build(servers, "worker", 0)
    with servers.worker_session(0, graph) as session:
        chief.say(session, TRAINED)
        departure = Departure(servers.task("ps", 0), servers.connection("ps", 0))
        departure.start()
        poll_for(lambda: "ps 0: worker 0: trained" in caplog.text, "word of the chief")
        departure._note_signal(signal.SIGTERM)
        chief.say(session, EVALUATED)
        assert ends.get(timeout=DEADLINE_SECS) == 0
