"""Whether a server answers, and which process it is: real servers, of which one is stopped, killed, started again."""

import contextlib
import queue
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
import tensorflow.compat.v1 as tf

from benchmarks.testbed.processes import PROJECT, can_run, poll_for
from runtime.cluster import status
from runtime.cluster.status import Status
from runtime.cluster.task import Task
from runtime.launch.ports import choose_ports
from runtime.machine.session_config import count_cores
from tests import forked

HOST = ["unshare", "--user", "--map-root-user", "--net", "--mount"]
SERVE = """
from runtime.process import environment
import tensorflow.compat.v1 as tf
import time
server = tf.train.Server({{"ps": ["localhost:{port}"]}}, "ps", 0)
time.sleep(600)
"""


@pytest.fixture
def impatient(monkeypatch):
    """Wait little for an answer."""
    monkeypatch.setattr(status, "ANSWER_SECS", 0.3)
    monkeypatch.setattr(status, "ALIVE_SECS", 0.3)


@pytest.fixture
def serve(tmp_path):
    """A function that starts a process with a server at a port; it ends with the test."""
    processes = []

    def serve(port):
        with open(tmp_path / "log", "a") as log:
            processes.append(forked.Popen([sys.executable, "-c", SERVE.format(port=port)], log))
        return processes[-1]

    yield serve
    for process in processes:
        process.kill()


@pytest.mark.usefixtures("impatient")
def test_each_process_has_an_incarnation_and_what_is_away_a_reason(serve):
    (port,) = choose_ports(1)
    address = f"localhost:{port}"
    poll_for(lambda: status.ask(address) == Status(reason="connection refused"), "refusal")
    process = serve(port)
    first = poll_for(lambda: status.ask(address).incarnation, "incarnation")
    process.send_signal(signal.SIGSTOP)
    poll_for(lambda: status.ask(address) == Status(reason="no answer"), "silence")
    process.send_signal(signal.SIGCONT)
    poll_for(lambda: status.ask(address) == Status(first), "the same process")
    process.kill()
    process.wait(60)
    poll_for(lambda: status.ask(address) == Status(reason="connection refused"), "refusal")
    serve(port)
    assert poll_for(lambda: status.ask(address).incarnation, "another process") != first


def test_the_connection_to_a_server_stays_open(local_servers):
    address = local_servers(1, 1).ps_hosts[0]
    first = status.ask(address)
    channel = status._channels[address]
    assert {status.ask(address) for _ in range(100)} == {first}
    assert status._channels[address] is channel


def test_a_connection_that_leads_nowhere_is_closed(monkeypatch):
    closed, open_channel = [], status.open_channel

    def open_and_note(address):
        channel = open_channel(address)
        close = channel.close
        channel.close = lambda: [closed.append(address), close()]
        return channel

    monkeypatch.setattr(status, "open_channel", open_and_note)
    (port,) = choose_ports(1)
    for _ in range(2):
        assert status.ask(f"localhost:{port}") == Status(reason="connection refused")
    assert closed == 2 * [f"localhost:{port}"]


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_connection_that_is_being_made_is_asked_twice_before_the_name_is_looked_up_again():
    """Else a name that takes longer than one question would never be found."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        for is_kept in (True, False, True):
            assert status.ask(address) == Status(reason="no answer")
            assert (address in status._channels) == is_kept


def test_a_server_that_computes_for_long_is_there_and_is_known_again_when_it_answers(local_servers, monkeypatch):
    monkeypatch.setattr(status, "ANSWER_SECS", 0.3)
    address, goes_on = local_servers(1, 1).ps_hosts[0], threading.Event()
    before = status.ask(address)
    with tf.Graph().as_default() as graph:
        # More than its threads can wait for at once.
        busy = [tf.numpy_function(lambda: goes_on.wait(60), [], tf.bool) for _ in range(8 * count_cores())]
    with tf.Session(f"grpc://{address}", graph, tf.ConfigProto(device_filters=["/job:nobody"])) as session:
        computing = threading.Thread(target=session.run, args=(busy,), daemon=True)
        computing.start()
        poll_for(lambda: status.ask(address) == Status(), "a server that is busy")
        goes_on.set()
        computing.join(60)
    assert status.ask(address) == before


def test_what_is_no_such_server_is_told_from_one():
    assert status.ask("no.such.host.invalid:2222") == Status(reason="name not known")
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer():
            while True:
                connection, _ = other.accept()
                connection.sendall(b"220 mail.example ESMTP\r\n")
                connection.recv(100)
                connection.close()

        threading.Thread(target=answer, daemon=True).start()
        assert status.ask(f"127.0.0.1:{other.getsockname()[1]}") == Status(reason="something else answers there")


@pytest.mark.usefixtures("impatient")
def test_a_name_server_that_is_silent_is_told_from_a_host_that_is(monkeypatch):
    answers, look_up = threading.Event(), socket.getaddrinfo
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert status.ask(address) == Status(reason="no answer")
        monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **more: answers.wait(60) and look_up(*args, **more))
        for _ in range(2):
            assert status.ask(address) == Status(reason="its name is still being looked up")
        answers.set()
        poll_for(lambda: status.ask(address) == Status(reason="no answer"), "end of the look")


LONG_FRAME = bytes([0, 64, 0])  # the beginning of one of 16 384 bytes


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("chunk", "pause_secs"), [(bytes(1000), 0), (LONG_FRAME, 0.1)], ids=["much", "in drops"])
def test_the_question_to_what_sends_for_ever_has_an_end(chunk, pause_secs):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def send():
            with contextlib.suppress(OSError):
                while True:
                    with server.accept()[0] as connection, contextlib.suppress(OSError):
                        while True:
                            connection.sendall(chunk)
                            time.sleep(pause_secs)

        threading.Thread(target=send, daemon=True).start()
        reasons = queue.Queue()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        threading.Thread(target=lambda: reasons.put(status.ask(address).reason), daemon=True).start()
        assert reasons.get(timeout=60) in ("no answer", "something else answers there")


@pytest.mark.slow
def test_ten_silent_hosts_take_as_long_as_one():
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(10)]
        task = Task("ps", 0, ("a:1",), tuple(f"127.0.0.1:{server.getsockname()[1]}" for server in silent))
        start = time.monotonic()
        assert {of.reason for of in status.statuses_of(task.others("worker")).values()} == {"no answer"}
        assert time.monotonic() < start + 5 * (status.ANSWER_SECS + status.ALIVE_SECS), (
            "one after the other: twice that"
        )


def test_what_does_not_answer_is_named_with_its_reason(local_servers):
    there = local_servers(1, 1).ps_hosts[0]
    (port,) = choose_ports(1)
    task = Task("worker", 0, (there, f"localhost:{port}", "no.such.host.invalid:1"), ("c:3",))
    reasons = {peer: of.reason for peer, of in status.statuses_of(task.others("ps")).items() if of.reason}
    assert status.describe(reasons) == (
        f"ps 1 at localhost:{port} (connection refused), ps 2 at no.such.host.invalid:1 (name not known)"
    )


@pytest.mark.slow
def test_a_task_may_ask_for_the_first_time_while_another_thread_forks():
    """As a `multiprocessing.Pool` in load() does; the lock of Python's thread pools must have been there before."""
    code = """
import os
from runtime.cluster import status
os.register_at_fork(before=lambda: status.ask_all([1], str))  # now and then, a thread of the program is there
if child := os.fork():
    os.waitpid(child, 0)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert "release unlocked lock" not in done.stderr


@pytest.mark.skipif(not can_run([*HOST, "true"]), reason="needs unshare and its own network")
def test_a_host_without_ipv6_whose_name_has_an_ipv6_address_too_refuses():
    """As Debian's `localhost`; gRPC's answer has odd letters then."""
    script = "from runtime.cluster import status; print(status.ask('[::1]:2222'))"
    off = "echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; echo 1 >/proc/sys/net/ipv6/conf/lo/disable_ipv6"
    command = [*HOST, "sh", "-c", f'ip link set lo up; {off}; exec "$@"', "sh", sys.executable, "-c", script]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert done.stdout == f"{Status(reason='connection refused')}\n", done
    assert "Traceback" not in done.stderr


def is_cut(connection):
    connection.setblocking(False)
    with contextlib.suppress(BlockingIOError):  # it is open, and nothing has come
        return connection.recv(1) == b""
    return False


def test_only_connections_to_a_host_where_no_address_leads_any_more_are_cut():
    with contextlib.ExitStack() as stack:

        def listen(host, port=0):
            return stack.enter_context(socket.create_server((host, port))).getsockname()

        own = listen("127.0.0.1")
        places = [own, listen("127.0.0.2", own[1]), listen("127.0.0.2")]
        connections = [stack.enter_context(socket.create_connection(place)) for place in places]
        status.hang_up_on_strangers([f"localhost:{own[1]}"])
        assert [*map(is_cut, connections)] == [False, True, False]
