"""Tasks that were given other host lists, or cannot go on for another reason, on real servers."""

import json
import queue
import re
import threading

import pytest
import tensorflow.compat.v1 as tf

from benchmarks.testbed.processes import DEADLINE_SECS, poll_for
from runtime.cluster import host_lists
from runtime.cluster.host_lists import PROTOCOL, HostLists, HostListsWatch, put_verdict, read_board
from runtime.cluster.task import Peer, Task
from runtime.launch.ports import choose_ports
from runtime.machine.session_config import make_server_config, make_session_config

PS, WORKERS = ("a:1", "b:2"), ("c:3", "d:4")
MINE = HostLists.of(Task("worker", 1, PS, WORKERS))


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
    theirs = HostLists.of(Task("ps", 0, ps_hosts, worker_hosts))
    remedy = ": give all tasks the same"
    assert MINE.describe_difference("ps 0 at a:1", theirs) == (
        difference and f"worker 1 was given {difference}{remedy}"
    )
    in_graph = HostLists.of(Task("worker", 0, PS, WORKERS, "in_graph"))
    difference = "worker 1 was given between_graph as replication, but worker 0 was given in_graph"
    assert MINE.describe_difference("worker 0 at c:3", in_graph) == f"{difference}{remedy}"


OF_PROTOCOL_3 = {"task": "ps 0", "ps_hosts": PS, "worker_hosts": WORKERS, "is_settled": False, "protocol": 3}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('["ps 0", ["a:1", "b:2"], ["c:3", "d:4"], "between_graph", false]', "nothing"),  # protocol 1
        (json.dumps(OF_PROTOCOL_3), "3"),
        (json.dumps({**MINE.given, "protocol": PROTOCOL + 1}), PROTOCOL + 1),
        ("no JSON", "nothing"),
        ('{"protocol": Infinity}', "inf"),
        ("[[[1], 2]]", "nothing"),
        (b"\xff", "nothing"),
        ("[" * 100_000, "nothing"),
    ],
)
def test_a_board_that_another_version_has_written_is_said_to_be_one(text, found):
    line = (
        f"worker 1 was given {PROTOCOL} as protocol, but ps 0 was given {found}: run the same version of this program"
    )
    assert MINE.describe_difference("ps 0 at a:1", HostLists.parse(text, "ps 0")) == f"{line} everywhere"


def test_what_a_task_writes_on_its_board_is_read_as_it_was():
    for lists in (MINE, MINE._replace(is_settled=True)):
        assert HostLists.parse(lists.write().encode(), "ps 0") == lists


def test_lists_that_share_one_address_are_those_of_two_clusters():
    def is_stranger(ps_hosts, worker_hosts):
        return MINE.is_stranger_to(HostLists.of(Task("ps", 0, ps_hosts, worker_hosts)))

    assert is_stranger(("e:1",), ("a:1", "f:3"))
    assert not is_stranger(("a:1", "b:22"), WORKERS), "a typing error"
    assert not is_stranger(("b:2", "a:1"), ("e:3", "f:4")), "another order"
    assert not MINE.is_stranger_to(MINE)


@pytest.fixture
def ends(monkeypatch):
    """The statuses and messages of tasks that would end their process, as they come."""
    ends = queue.Queue()

    def end_thread(status, message, tell=None):
        if tell:
            tell(message)
        ends.put((status, message))
        threading.Event().wait()

    monkeypatch.setattr(host_lists, "end_process", end_thread)
    monkeypatch.setattr(host_lists, "TELLING_SECS", 0.0)  # the servers here stay anyway
    return ends


def start(name, ps_hosts, worker_hosts):
    """Start a server with its lists, and compare them with those of others."""
    job_name, index = name.split()
    task = Task(job_name, int(index), tuple(ps_hosts), tuple(worker_hosts))
    config = make_session_config(task)
    tf.train.Server(tf.train.ClusterSpec(task.jobs), job_name, task.index, config=make_server_config(config))
    return HostListsWatch(task)


def on_board(address):
    """Return what is on the board of the task at an address, once it is up."""
    return poll_for(lambda: read_board(Peer("worker", 0, address)), f"board at {address}")


def is_settled(address):
    lists, _ = on_board(address)
    return lists.is_settled


@pytest.mark.parametrize("wrong", ["worker 0", "worker 2"])
def test_a_list_that_differs_ends_every_task_though_not_all_find_each_other(ends, wrong):
    ps, *workers = (f"localhost:{port}" for port in choose_ports(4))
    start(wrong, ["localhost:1"], workers)
    right = [name for name in ("worker 2", "worker 1", "worker 0", "ps 0") if name != wrong]
    for name in right:
        start(name, [ps], workers)
    for _ in range(4):
        status, line = ends.get(timeout=DEADLINE_SECS)
        found = rf"\w+ \d was given {ps} as ps_hosts\[0\], but {wrong} was given localhost:1"
        found_by_wrong = rf"{wrong} was given localhost:1 as ps_hosts\[0\], but \w+ \d was given {ps}"
        assert re.fullmatch(f"({found}|{found_by_wrong}): give all tasks the same", line), line
        assert status == 2


def test_a_task_that_has_ended_has_told_the_others_why(ends):
    ps, *workers = (f"localhost:{port}" for port in choose_ports(3))
    start("ps 0", [ps], workers)
    start("worker 1", [ps], workers)
    chief = start("worker 0", [ps], workers)
    for address in (ps, *workers):
        on_board(address)
    chief.tell("worker 0 has ended: there is no --data_dir")
    for _ in ("ps 0", "worker 1"):
        assert ends.get(timeout=DEADLINE_SECS) == (2, "worker 0 has ended: there is no --data_dir")
    assert ends.empty(), "the first is not told its own verdict"


def test_tasks_that_train_go_on_and_only_a_late_one_that_differs_ends(ends):
    ps, *workers = (f"localhost:{port}" for port in choose_ports(4))
    start("ps 0", [ps], workers)
    chief = start("worker 0", [ps], workers)
    on_board(ps)
    chief.begin_training()
    assert is_settled(ps)
    start("worker 1", [ps], workers[:2])
    missing = f"worker 1 was given nothing as worker_hosts[2], but ps 0 was given {workers[2]}: give all tasks the same"
    assert ends.get(timeout=DEADLINE_SECS) == (2, missing)
    last = start("worker 2", [ps], workers)
    for address in (workers[0], workers[2]):
        poll_for(lambda address=address: is_settled(address), "news of the training")
    last.tell("worker 2 has ended: there is no --data_dir")
    assert [on_board(address)[1] for address in (ps, workers[0])] == ["", ""], "they heard nothing"
    assert ends.empty()


def test_a_worker_that_would_begin_to_train_ends_if_another_has_ended_before(ends, monkeypatch):
    ps, *workers = (f"localhost:{port}" for port in choose_ports(3))
    start("ps 0", [ps], workers)
    on_board(ps)
    monkeypatch.setattr(host_lists, "start_guard", lambda *_: None)  # the watch looks later
    chief = start("worker 0", [ps], workers)
    put_verdict(Peer("ps", 0, ps), "worker 1 has ended: there is no --data_dir")
    threading.Thread(target=chief.begin_training, daemon=True).start()
    for _ in ("ps 0", "worker 0"):
        assert ends.get(timeout=DEADLINE_SECS) == (2, "worker 1 has ended: there is no --data_dir")
    assert not is_settled(ps)


def test_a_task_that_meets_another_cluster_ends_its_own_and_leaves_the_other_alone(ends):
    shared, ps, *workers = (f"localhost:{port}" for port in choose_ports(4))
    start("worker 0", ["localhost:1"], [shared, "localhost:2"])
    start("worker 1", [ps, shared], workers)
    start("ps 0", [ps, shared], workers)
    for _ in range(2):
        status, line = ends.get(timeout=DEADLINE_SECS)
        used = rf"\w+ \d expects ps 1 at {shared}, but that address is used by another cluster, that of worker 0 with"
        assert re.match(f"{used} localhost:1, {shared}, localhost:2: ", line), line
        assert status == 2
    assert on_board(shared)[1] == ""
    assert ends.empty()


def test_a_task_whose_own_server_is_slow_asks_again(ends, monkeypatch):
    session_at = host_lists.session_at

    def fail_once(*_):
        monkeypatch.setattr(host_lists, "session_at", session_at)
        raise tf.errors.DeadlineExceededError(None, None, "too slow")

    monkeypatch.setattr(host_lists, "session_at", fail_once)
    ps, worker = (f"localhost:{port}" for port in choose_ports(2))
    start("ps 0", [ps], [worker])
    lists, _ = on_board(ps)
    assert lists.task == "ps 0"


def test_a_task_that_misses_another_looks_less_often_as_time_goes_by(monkeypatch):
    class Clock:
        now, num_pauses = 0.0, 0

        def monotonic(self):
            return self.now

        def sleep(self, secs):
            self.now, self.num_pauses = self.now + secs, self.num_pauses + 1
            if self.now > 60:
                raise InterruptedError

    clock = Clock()
    monkeypatch.setattr(host_lists, "start_guard", lambda *_: None)
    monkeypatch.setattr(host_lists, "read_board", lambda _: None)
    monkeypatch.setattr(host_lists, "put_given", lambda *_: None)
    monkeypatch.setattr(host_lists, "time", clock)
    with pytest.raises(InterruptedError):
        host_lists.HostListsWatch(Task("worker", 1, ("a:1",), ("b:2", "c:3")))._watch()
    assert clock.num_pauses < 80, "looks in a minute"
