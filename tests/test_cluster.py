import pytest

from runtime.cluster import waiting
from runtime.cluster.task import Task
from runtime.cluster.waiting import wait_until_nothing_is_missing
from runtime.process.errors import UnusableError

PS = ("a:1", "b:2")
WORKERS = ("c:3", "d:4", "e:5")


def test_a_task_knows_its_place():
    chief, worker, ps = (Task(job, index, PS, WORKERS) for job, index in (("worker", 0), ("worker", 2), ("ps", 1)))
    assert [task.is_chief for task in (chief, worker, ps)] == [True, False, False]
    assert [task.address for task in (chief, worker, ps)] == ["c:3", "e:5", "b:2"]
    assert [str(task) for task in (chief, worker, ps)] == ["worker 0", "worker 2", "ps 1"]
    assert ps.device == "/job:ps/task:1"


@pytest.mark.parametrize(
    "address", ["[::1]:2", "[fe80::1%eth0]:2", "ps_0:2", "10.0.0.1:02", "münchen.example:2", "a-b.c:65535"]
)
def test_an_address_that_a_server_can_have_is_taken(address):
    assert Task("ps", 0, (address,), ("b:1",)).address == address


@pytest.mark.parametrize(
    "address",
    [
        *("grpc://a:1", "http://a:1", "a/b:1", "user@a:1", "my host:1", "localhost :2", "x:2222:2", "::1:2", "fd00::5"),
        *("[localhost]:2", "[::1:2", "::1]:2", "[[::1]]:2", "[]:2", "a\t:1", "a:1:", "a:²"),
    ],
)
def test_an_address_that_no_server_can_have_is_refused_with_what_one_is(address):
    with pytest.raises(UnusableError) as error:
        Task("ps", 0, (address,), ("b:1",))
    assert str(error.value) == (
        f"ps address {address!r} is not host:port, such as 10.0.0.5:2222, my_host:2222 or, for IPv6, [fd00::5]:2222:"
        " correct the host lists"
    )


@pytest.mark.promises("dispensable-workers")
def test_every_task_needs_every_ps_and_the_chief():
    def needed(job_name, index):
        return [str(peer) for peer in Task(job_name, index, ("a:1", "b:2"), ("c:3", "d:4")).needed]

    assert needed("worker", 0) == ["ps 0 at a:1", "ps 1 at b:2"]
    assert needed("worker", 1) == ["ps 0 at a:1", "ps 1 at b:2", "worker 0 at c:3"]
    assert needed("ps", 1) == ["ps 0 at a:1", "worker 0 at c:3"]


def test_waiting_has_an_end():
    task = Task("worker", 1, PS, WORKERS)
    with pytest.raises(TimeoutError, match="worker 1 waited 0 s for Godot: write to Beckett"):
        wait_until_nothing_is_missing(task, lambda: "Godot", 0.1, "write to Beckett")


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self):
        self.now, self.pauses = 0.0, []

    def monotonic(self):
        return self.now

    def sleep(self, secs):
        self.now += secs
        self.pauses.append(secs)


def test_a_long_wait_looks_less_often_and_a_short_one_ends_soon(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(waiting, "time", clock)
    with pytest.raises(TimeoutError):
        wait_until_nothing_is_missing(Task("worker", 1, PS, WORKERS), lambda: "Godot", 60, "", poll_secs=2.0)
    at = 0.0
    for pause in clock.pauses:
        assert pause <= max(0.2, at / 10) + 1e-9, "late by a tenth of the wait"
        at += pause
    assert clock.pauses[-1] == 2.0
    assert len(clock.pauses) < 70, "looks"


def test_waiting_ends_when_nothing_is_missing_any_more(caplog):
    answers = iter(["a, b", "a, b", "b", ""])
    task = Task("worker", 1, PS, WORKERS)
    with caplog.at_level("INFO"):
        wait_until_nothing_is_missing(task, lambda: next(answers), 60, "despair")
    assert [record.getMessage() for record in caplog.records] == [
        "worker 1: waiting for a, b",
        "worker 1: waiting for b",
    ], "one line for each change"
