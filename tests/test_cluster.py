import contextlib
import queue
import socket
import threading
import time

import pytest

from runtime.cluster import probes, waiting
from runtime.cluster.task import Task
from runtime.cluster.waiting import Timeouts, Watch, wait_until_nothing_is_missing
from runtime.errors import UnusableError
from runtime.launch.ports import choose_ports

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


def test_a_probe_tells_a_tensorflow_server_from_anything_else(monkeypatch, local_servers):
    monkeypatch.setattr(probes, "PROBE_SECS", 60)
    assert probes.probe(local_servers(1, 1).ps_hosts[0]) is None
    assert probes.probe("no.such.host.invalid:2222") == "name not known"
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer():
            connection, _ = other.accept()
            connection.sendall(b"220 mail.example ESMTP\r\n")
            connection.recv(100)
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        assert probes.probe(f"127.0.0.1:{other.getsockname()[1]}") == "something else answers there"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(probes, "PROBE_SECS", 0.1)
        assert probes.probe(address) == "no answer"
    assert probes.probe(address) == "connection refused"


def test_a_line_to_a_server_stays_open_however_often_it_asks(local_servers):
    line = probes.Line(local_servers(1, 1).ps_hosts[0])
    assert line.ask() is None
    own_address = line._socket.getsockname()
    for _ in range(1000):
        assert line.ask() is None
    assert line._socket.getsockname() == own_address
    line.close()
    assert line.ask() is None
    assert line._socket.getsockname() != own_address


def test_a_line_is_opened_anew_when_the_server_hangs_up_and_closed_when_it_is_silent(monkeypatch):
    monkeypatch.setattr(probes, "PROBE_SECS", 60)
    with socket.create_server(("127.0.0.1", 0)) as server:
        line = probes.Line(f"127.0.0.1:{server.getsockname()[1]}")

        def answer(connection, num_answers):
            for _ in range(num_answers):
                while not connection.recv(1000).endswith(probes.SETTINGS_FRAME):
                    pass
                connection.sendall(probes.SETTINGS_FRAME + probes.ACK_FRAME)

        def serve():
            with server.accept()[0] as connection:
                answer(connection, 2)
            silent.append(server.accept()[0])
            answer(silent[0], 1)

        silent = []
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        assert [line.ask() for _ in range(3)] == [None] * 3
        thread.join(60)
        monkeypatch.setattr(probes, "PROBE_SECS", 0.1)
        assert line.ask() == "no answer"
        silent[0].close()
    assert line.ask() == "connection refused"


LONG_FRAME = bytes([0, 64, 0])  # the beginning of one of 16 384 bytes


@pytest.mark.parametrize(("chunk", "pause_secs"), [(bytes(1000), 0), (LONG_FRAME, 0.1)], ids=["much", "in drops"])
def test_a_probe_of_what_sends_for_ever_has_an_end(monkeypatch, chunk, pause_secs):
    monkeypatch.setattr(probes, "PROBE_SECS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def send():
            with server.accept()[0] as connection, contextlib.suppress(OSError):
                while True:
                    connection.sendall(chunk)
                    time.sleep(pause_secs)

        threading.Thread(target=send, daemon=True).start()
        reasons = queue.Queue()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        threading.Thread(target=lambda: reasons.put(probes.probe(address)), daemon=True).start()
        assert reasons.get(timeout=60) == "no answer"


def test_ten_silent_hosts_take_as_long_as_one(monkeypatch):
    monkeypatch.setattr(probes, "PROBE_SECS", 5)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(10)]
        task = Task("ps", 0, PS, tuple(f"127.0.0.1:{server.getsockname()[1]}" for server in silent))
        start = time.monotonic()
        assert len(probes.unreachable(task.others("worker"))) == 10
        assert time.monotonic() < start + 5 * 5, "one after the other, they would take twice that"


def test_what_does_not_answer_is_named_with_its_reason(local_servers):
    there = local_servers(1, 1).ps_hosts[0]
    (port,) = choose_ports(1)
    task = Task("worker", 0, (there, f"localhost:{port}", "no.such.host.invalid:1"), WORKERS)
    assert probes.describe(probes.unreachable(task.others("ps"))) == (
        f"ps 1 at localhost:{port} (connection refused), ps 2 at no.such.host.invalid:1 (name not known)"
    )


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


@pytest.mark.parametrize(
    ("looks", "ended"),
    [
        ([None, None], ""),
        ([None, "no answer", "no answer", None], ""),  # its link was cut
        ([None, "connection refused"], "connection refused"),
        ([None, "connection refused", "another"], "connection refused"),  # a short absence is not overlooked
        ([None, "no answer", None], ""),
        ([None, "no answer", "no answer", "another"], "another process answers there"),
        ([None, "no answer", "another"], "another process answers there"),  # it was there again at the next look
        ([None, "name not known", "name not known", "another", "another"], "another process answers there"),
        ([None, "no answer", "silent", "another"], "another process answers there"),
        ([None, "no answer", "silent", None], ""),
        ([None, "another"], "another process answers there"),  # between two looks
    ],
)
def test_a_watch_tells_a_process_that_has_ended_from_a_link_that_is_cut(monkeypatch, looks, ended):
    monkeypatch.setattr(waiting.threading.Thread, "start", lambda _: None)  # the test looks itself
    watch = Watch(Task("worker", 0, PS[:1], WORKERS), Timeouts(300, 600))
    (ps,) = watch._sightings
    lives = {"another": "2", "silent": ""}  # a silent server answers the probe, but says nothing of itself
    for second, found in enumerate(looks):
        life = lives.get(found, "1")
        monkeypatch.setattr(probes, "life_of", lambda _, life=life: life)
        watch._sightings[ps].line.is_new = True
        watch._update(ps, found if found and found not in lives else "", float(second))
    assert watch.ended_servers(0.5, {ps: "1"}) == (ended and f"ps 0 at a:1 ({ended})")
    assert watch.ended_servers(9.0, {ps: "1"}) == ""
    is_there = looks[-1] == "another"
    assert not (is_there and watch.ended_servers(0.5, {ps: "2"})), "its forerunner is not of that session"


def test_a_process_that_was_seen_to_end_ends_no_session_with_the_one_that_follows(monkeypatch):
    monkeypatch.setattr(waiting.threading.Thread, "start", lambda _: None)  # the test looks itself
    watch = Watch(Task("worker", 0, PS[:1], WORKERS), Timeouts(300, 600))
    (ps,) = watch._sightings
    for second, (reason, life) in enumerate([("", "1"), ("connection refused", ""), ("", "2"), ("", "2")]):
        monkeypatch.setattr(probes, "life_of", lambda _, life=life: life)
        watch._sightings[ps].line.is_new = True
        watch._update(ps, reason, float(second))
    assert watch.ended_servers(0.5, {ps: "1"}) == "ps 0 at a:1 (connection refused)"
    assert watch.ended_servers(1.5, {ps: "2"}) == "", "that of a session which was made while it was away"


def test_a_task_that_gives_up_names_only_those_that_were_away_for_long(monkeypatch):
    """Others give up at the same time, and are away as well."""
    ends = []
    monkeypatch.setattr(waiting.threading.Thread, "start", lambda _: None)  # the test looks itself
    monkeypatch.setattr(waiting, "end_process", lambda *end: ends.append(end))
    watch = Watch(Task("worker", 1, PS, WORKERS), Timeouts(300, 20))
    now = time.monotonic()
    for (peer, seen), secs in zip(watch._sightings.items(), (21.0, 1.0, 0.0), strict=True):
        seen.was_there, seen.missed_since = True, now - secs
        watch._update(peer, "no answer", now)
    missing = "worker 1 waited 21 s for ps 0 at a:1 (no answer)"
    assert ends == [(1, f"{missing}: start what is missing, or correct --ps_hosts and --worker_hosts")]


def test_a_watch_that_is_stopped_looks_no_more():
    watch = Watch(Task("worker", 0, (f"localhost:{choose_ports(1)[0]}",), WORKERS), Timeouts(300, 600))
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "watch")
    watch.stop()
    thread.join(60)
    assert not thread.is_alive()
