"""How the host lists of two tasks differ."""

import json

import pytest

from runtime.cluster.host_lists import PROTOCOL, HostLists
from runtime.cluster.task import Peer, Task

PS, WORKERS = ("a:1", "b:2"), ("c:3", "d:4")
MINE = HostLists.of(Task("worker", 1, PS, WORKERS))
PS_0, PS_1, CHIEF = Peer("ps", 0, "a:1"), Peer("ps", 1, "b:2"), Peer("worker", 0, "c:3")


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
    assert MINE.describe_difference(PS_0, theirs) == (difference and f"worker 1 was given {difference}{remedy}")
    in_graph = HostLists.of(Task("worker", 0, PS, WORKERS, "in_graph"))
    difference = "worker 1 was given between_graph as replication, but worker 0 was given in_graph"
    assert MINE.describe_difference(CHIEF, in_graph) == f"{difference}{remedy}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (json.dumps(["ps 0", {**MINE.given, "protocol": PROTOCOL + 1}]), PROTOCOL + 1),
        ('{"task": "ps 0", "protocol": 6}', "nothing"),
        ("no JSON", "nothing"),
        ('["ps 0", {"protocol": Infinity}]', "inf"),
        ("[[[1], 2]]", "nothing"),
        ("[" * 100_000, "nothing"),
    ],
)
def test_what_another_version_has_written_is_said_to_be_of_one(text, found):
    line = (
        f"worker 1 was given {PROTOCOL} as protocol, but ps 0 was given {found}: run the same version of this program"
    )
    assert MINE.describe_difference(PS_0, HostLists.parse(text, PS_0)) == f"{line} everywhere"


def test_what_a_task_writes_is_read_as_it_was_and_has_the_digest_of_all_that_agree():
    found = HostLists.parse(MINE.write(), PS_0)
    assert (found.task, found.given, found.digest_of(PS_0)) == (MINE.task, MINE.given, MINE.digest_of(PS_0))
    assert HostLists.of(Task("ps", 0, PS, WORKERS)).digest_of(PS_0) == MINE.digest_of(PS_0)
    assert HostLists.of(Task("ps", 0, PS, WORKERS[::-1])).digest_of(PS_0) != MINE.digest_of(PS_0)
    assert MINE.digest_of(PS_1) != MINE.digest_of(PS_0)


def test_lists_that_share_one_address_are_those_of_two_clusters():
    def is_stranger(ps_hosts, worker_hosts):
        return MINE.is_stranger_to(HostLists.of(Task("ps", 0, ps_hosts, worker_hosts)), PS_0)

    assert is_stranger(("e:1",), ("a:1", "f:3"))
    assert not is_stranger(("a:1", "b:22"), WORKERS), "a typing error"
    assert not is_stranger(("b:2", "a:1"), ("e:3", "f:4")), "another order"
    assert not is_stranger(("A:1",), ("C.:3",)), "another spelling"
    assert not is_stranger(("10.0.0.1:1",), ("c:3",)), "an address for a name"
    assert not MINE.is_stranger_to(MINE, PS_0)
