"""Tasks that were given other host lists, on real servers."""

import dataclasses
import queue
import sys

import pytest

from benchmarks.testbed.processes import DEADLINE_SECS, poll_for
from runtime.cluster import host_lists
from runtime.cluster.host_lists import Board, HostLists, HostListsWatch

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


@pytest.fixture
def ends(monkeypatch):
    """The statuses and messages of tasks that would end their process, as they come."""
    ends = queue.Queue()

    def end_thread(status, message):
        ends.put((status, message))
        sys.exit()

    monkeypatch.setattr(host_lists, "end_process", end_thread)
    return ends


def watch(servers, *names, **changes):
    """Start to compare the lists of tasks, with some of them changed."""
    for name in names:
        job_name, index = name.split()
        task = dataclasses.replace(servers.task(job_name, int(index)), **changes)
        HostListsWatch(task, servers.connection(job_name, int(index)))


def on_board(address):
    """Return what the board of the task at an address says, once it says something."""
    with Board(f"grpc://{address}") as board:
        return poll_for(board.read, f"lists at {address}")


def test_a_list_that_differs_ends_every_task_also_those_that_its_task_cannot_find(local_servers, ends):
    servers = local_servers(1, 3)
    watch(servers, "ps 0", "worker 0", "worker 1")
    watch(servers, "worker 2", ps_hosts=("localhost:1",))
    there = servers.ps_hosts[0]
    suffix = ": give all tasks the same host lists"
    assert {ends.get(timeout=DEADLINE_SECS) for _ in range(4)} == {
        (2, f"worker 2 was given localhost:1 as ps_hosts[0], but worker 0 was given {there}{suffix}"),
        *(
            (2, f"{name} was given {there} as ps_hosts[0], but worker 2 was given localhost:1{suffix}")
            for name in ("ps 0", "worker 0", "worker 1")
        ),
    }


def test_tasks_that_have_agreed_for_long_go_on_and_only_a_late_one_that_differs_ends(local_servers, ends, monkeypatch):
    monkeypatch.setattr(host_lists, "SETTLE_SECS", 0.0)
    servers = local_servers(1, 3)
    watch(servers, "ps 0", "worker 0")
    for address in (servers.ps_hosts[0], servers.worker_hosts[0]):
        poll_for(lambda address=address: on_board(address)[0].is_settled, "agreement")
    monkeypatch.setattr(host_lists, "SETTLE_SECS", DEADLINE_SECS)
    watch(servers, "worker 1", worker_hosts=servers.worker_hosts[:2])
    status, message = ends.get(timeout=DEADLINE_SECS)
    assert (status, message.startswith("worker 1 was given nothing as worker_hosts[2], but ps 0 was given ")) == (
        2,
        True,
    )
    watch(servers, "worker 2")
    poll_for(lambda: on_board(servers.worker_hosts[2])[0].is_settled, "agreement, which a newcomer takes over")
    assert [len(on_board(address)) for address in (servers.ps_hosts[0], servers.worker_hosts[0])] == [1, 1]
    assert ends.empty()
