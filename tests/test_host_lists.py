"""Tasks that were given other host lists, on real servers."""

import queue
import re
import threading

import pytest
import tensorflow.compat.v1 as tf

from benchmarks.testbed.processes import DEADLINE_SECS, poll_for
from runtime.cluster import host_lists
from runtime.cluster.connection import Connection
from runtime.cluster.host_lists import Board, HostLists, HostListsWatch
from runtime.cluster.task import Task
from runtime.launch.ports import choose_ports
from runtime.machine.session_config import make_server_config, make_session_config

PS, WORKERS = ("a:1", "b:2"), ("c:3", "d:4")


@pytest.mark.parametrize(
    ("ps_hosts", "worker_hosts", "difference"),
    [
        (PS, WORKERS, ""),
        (("a:1", "b:22"), WORKERS, "b:2 as ps_hosts[1], but ps 0 was given b:22"),
        (("b:2", "a:1"), WORKERS, "a:1 as ps_hosts[0], but ps 0 was given b:2"),
        (PS, ("localhost:3", "d:4"), "c:3 as worker_hosts[0], but ps 0 was given localhost:3"),
        (PS, (*WORKERS, "e:5"), "nothing as worker_hosts[2], but ps 0 was given e:5"),
        (PS[:1], WORKERS, "b:2 as ps_hosts[1], but ps 0 was given nothing"),
    ],
)
def test_the_first_entry_that_differs_is_named_with_both_values(ps_hosts, worker_hosts, difference):
    mine, theirs = HostLists("worker 1", PS, WORKERS), HostLists("ps 0", ps_hosts, worker_hosts)
    assert mine.describe_difference(theirs) == (difference and f"worker 1 was given {difference}")
    in_graph = mine._replace(task="worker 0", replication="in_graph")
    difference = "worker 1 was given between_graph as replication, but worker 0 was given in_graph"
    assert mine.describe_difference(in_graph) == difference


@pytest.fixture
def ends(monkeypatch):
    """The statuses and messages of tasks that would end their process, as they come."""
    ends = queue.Queue()

    def end_thread(status, message):
        ends.put((status, message))
        threading.Event().wait()

    monkeypatch.setattr(host_lists, "end_process", end_thread)
    monkeypatch.setattr(host_lists, "LINGER_SECS", 0.0)  # the servers here stay anyway
    return ends


def start(name, ps_hosts, worker_hosts):
    """Start a server with its lists, and compare them with those of others."""
    job_name, index = name.split()
    task = Task(job_name, int(index), tuple(ps_hosts), tuple(worker_hosts))
    config = make_session_config(task)
    server = tf.train.Server(tf.train.ClusterSpec(task.jobs), job_name, task.index, config=make_server_config(config))
    HostListsWatch(task, Connection(server.target, config))


def on_board(address):
    """Return what the board of the task at an address says, once it says something."""
    with Board(f"grpc://{address}") as board:
        return poll_for(board.read, f"lists at {address}")


@pytest.mark.parametrize("wrong", ["worker 0", "worker 2"])
def test_a_list_that_differs_ends_every_task_though_not_all_find_each_other(ends, wrong):
    ps, *workers = (f"localhost:{port}" for port in choose_ports(4))
    start(wrong, ["localhost:1"], workers)
    right = [name for name in ("worker 2", "worker 1", "worker 0", "ps 0") if name != wrong]
    for name in right:
        start(name, [ps], workers)
    messages = dict(reversed(ends.get(timeout=DEADLINE_SECS)) for _ in range(4))
    assert set(messages.values()) == {2}
    suffix = ": give all tasks the same"
    expected = {f"{name} was given {ps} as ps_hosts[0], but {wrong} was given localhost:1{suffix}" for name in right}
    (other,) = messages.keys() - expected
    named = rf"{wrong} was given localhost:1 as ps_hosts\[0\], but \w+ \d was given {ps}{suffix}"
    assert re.fullmatch(named, other)


def test_tasks_that_have_agreed_for_long_go_on_and_only_a_late_one_that_differs_ends(ends, monkeypatch):
    monkeypatch.setattr(host_lists, "SETTLE_SECS", 0.0)
    ps, *workers = (f"localhost:{port}" for port in choose_ports(4))
    for name in ("ps 0", "worker 0"):
        start(name, [ps], workers)
    for address in (ps, workers[0]):
        poll_for(lambda address=address: on_board(address)[0].is_settled, "agreement")
    monkeypatch.setattr(host_lists, "SETTLE_SECS", DEADLINE_SECS)
    start("worker 1", [ps], workers[:2])
    missing = f"worker 1 was given nothing as worker_hosts[2], but ps 0 was given {workers[2]}: give all tasks the same"
    assert ends.get(timeout=DEADLINE_SECS) == (2, missing)
    start("worker 2", [ps], workers)
    poll_for(lambda: on_board(workers[2])[0].is_settled, "agreement, which a newcomer takes over")
    assert [len(on_board(address)) for address in (ps, workers[0])] == [1, 1], "they heard no other lists"
    assert ends.empty()


def test_a_task_whose_own_server_is_slow_asks_again(ends, monkeypatch, caplog):
    caplog.set_level("INFO")
    put_given = Board.put_given

    def fail_once(board, lists):
        monkeypatch.setattr(Board, "put_given", put_given)
        raise tf.errors.DeadlineExceededError(None, None, "too slow")

    monkeypatch.setattr(Board, "put_given", fail_once)
    ps, worker = (f"localhost:{port}" for port in choose_ports(2))
    start("ps 0", [ps], [worker])
    assert on_board(ps)[0].task == "ps 0"
    assert "ps 0: its own server did not answer (DeadlineExceededError: too slow): asking again" in caplog.text
