import json
import os
import socket
import threading

import pytest

from runtime import cluster
from runtime.ports import choose_ports

PS = ("a:1", "b:2")
WORKERS = ("c:3", "d:4", "e:5")


def test_a_task_knows_its_place():
    chief, worker, ps = (
        cluster.Task(job, index, PS, WORKERS) for job, index in (("worker", 0), ("worker", 2), ("ps", 1))
    )
    assert [task.is_chief for task in (chief, worker, ps)] == [True, False, False]
    assert [task.address for task in (chief, worker, ps)] == ["c:3", "e:5", "b:2"]
    assert [str(task) for task in (chief, worker, ps)] == ["worker 0", "worker 2", "ps 1"]
    assert ps.device == "/job:ps/task:1"


def test_tf_config_gives_cluster_and_task():
    config = {"cluster": {"ps": PS, "worker": WORKERS}, "task": {"type": "worker", "index": "1"}}
    assert cluster.task_from_tf_config(json.dumps(config)) == cluster.Task("worker", 1, PS, WORKERS)


@pytest.mark.parametrize(
    ("tf_config", "message"),
    [
        ("not json", "TF_CONFIG is not of the form"),
        ('{"cluster": {"ps": ["a:1"], "worker": ["b:2"]}}', "TF_CONFIG is not of the form"),
        ('{"cluster": {"chief": ["a:1"], "ps": ["b:2"]}, "task": {}}', "TF_CONFIG has the jobs chief, ps, expected ps"),
        (
            '{"cluster": {"ps": ["a:1"], "worker": ["b:2"]}, "task": {"type": "worker", "index": 1}}',
            "worker has no task 1",
        ),
        (
            '{"cluster": {"ps": ["a:1"], "worker": ["b:2"]}, "task": {"type": "chief", "index": 0}}',
            "the job is 'chief', expected ps or worker",
        ),
    ],
)
def test_an_unusable_tf_config_is_refused(tf_config, message):
    with pytest.raises(cluster.ClusterError, match=message):
        cluster.task_from_tf_config(tf_config)


def test_a_task_waits_only_for_tasks_that_it_talks_to():
    worker, ps = cluster.Task("worker", 1, PS, WORKERS), cluster.Task("ps", 1, PS, WORKERS)
    assert list(cluster.session_config(worker).device_filters) == ["/job:ps", "/job:worker/task:1"]
    assert list(cluster.session_config(ps).device_filters) == ["/job:ps/task:1"]


def test_a_port_in_use_is_named_and_so_is_the_process():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        task = cluster.Task("ps", 0, (f"localhost:{port}",), WORKERS)
        with pytest.raises(cluster.ClusterError) as error:
            cluster.check_port_is_free(task)
        in_use = (
            f"ps 0 cannot listen on port {port} of localhost:{port}: Address already in use (process {os.getpid()}, "
        )
        assert str(error.value).startswith(in_use)
        assert "pytest" in str(error.value)
    cluster.check_port_is_free(task)


@pytest.mark.parametrize(
    ("host", "warns"),
    [("localhost", False), ("127.0.0.1", False), ("[::1]", False), ("10.1.2.3", True), ("no.such.host.invalid", True)],
)
def test_a_task_that_others_can_reach_says_so(caplog, host, warns):
    cluster.warn_if_reachable(cluster.Task("ps", 0, (f"{host}:2222",), WORKERS))
    line = f"ps 0: whoever can reach {host}:2222, by any interface, can read and change everything"
    assert (line in caplog.text) == warns


def test_a_probe_tells_a_tensorflow_server_from_anything_else(monkeypatch, local_servers):
    monkeypatch.setattr(cluster, "PROBE_SECS", 60)
    assert cluster.probe(local_servers(1, 1).ps_hosts[0]) is None
    assert cluster.probe("no.such.host.invalid:2222") == "name not known"
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer():
            connection, _ = other.accept()
            connection.sendall(b"220 mail.example ESMTP\r\n")
            connection.recv(100)
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        assert cluster.probe(f"127.0.0.1:{other.getsockname()[1]}") == "something else answers there"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(cluster, "PROBE_SECS", 0.1)
        assert cluster.probe(address) == "no answer"
    assert cluster.probe(address) == "connection refused"


def test_what_does_not_answer_is_named_with_its_reason(local_servers):
    there = local_servers(1, 1).ps_hosts[0]
    (port,) = choose_ports(1)
    task = cluster.Task("worker", 0, (there, f"localhost:{port}", "no.such.host.invalid:1"), WORKERS)
    assert cluster.describe(cluster.missing(task.others("ps"))) == (
        f"ps 1 at localhost:{port} (connection refused), ps 2 at no.such.host.invalid:1 (name not known)"
    )


def test_every_task_needs_every_ps_and_the_chief():
    def needed(job_name, index):
        return [str(peer) for peer in cluster.Task(job_name, index, ("a:1", "b:2"), ("c:3", "d:4")).needed]

    assert needed("worker", 0) == ["ps 0 at a:1", "ps 1 at b:2"]
    assert needed("worker", 1) == ["ps 0 at a:1", "ps 1 at b:2", "worker 0 at c:3"]
    assert needed("ps", 1) == ["ps 0 at a:1", "worker 0 at c:3"]


def test_waiting_has_an_end():
    task = cluster.Task("worker", 1, PS, WORKERS)
    with pytest.raises(TimeoutError, match="worker 1 waited 0 s for Godot: write to Beckett"):
        cluster.wait_until_nothing_is_missing(task, lambda: "Godot", 0.1, "write to Beckett")


def test_waiting_ends_when_nothing_is_missing_any_more(caplog):
    answers = iter(["a, b", "a, b", "b", ""])
    task = cluster.Task("worker", 1, PS, WORKERS)
    with caplog.at_level("INFO"):
        cluster.wait_until_nothing_is_missing(task, lambda: next(answers), 60, "despair")
    assert [record.getMessage() for record in caplog.records] == [
        "worker 1: waiting for a, b",
        "worker 1: waiting for b",
    ], "one line for each change"


def test_ports_are_free_and_all_different():
    ports = choose_ports(50)
    assert len(set(ports)) == 50
    assert all(10000 <= port < 32768 for port in ports)
    for port in ports:
        with socket.create_server(("127.0.0.1", port)):
            pass
