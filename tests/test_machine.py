import ctypes
import os
import platform
import shlex
import socket

import psutil
import pytest

from runtime.cluster.task import Task
from runtime.errors import UnusableError
from runtime.launch.ports import choose_ports
from runtime.machine import session_config
from runtime.machine.port import check_address
from runtime.machine.session_config import choose_gpus, lower_priority, make_session_config
from runtime.session.stopping import release_free_memory

PS = ("a:1", "b:2")
WORKERS = ("c:3", "d:4", "e:5")


def test_a_task_waits_only_for_tasks_that_it_talks_to():
    worker, ps = Task("worker", 1, PS, WORKERS), Task("ps", 1, PS, WORKERS)
    assert list(make_session_config(worker).device_filters) == ["/job:ps", "/job:worker/task:1"]
    assert list(make_session_config(ps).device_filters) == ["/job:ps/task:1"]


@pytest.mark.parametrize(
    ("gpus", "num_gpus", "shares"),
    [
        ("auto", 0, [[], [], [], []]),
        ("auto", 1, [[0], [0], [0], [0]]),
        ("auto", 2, [[0], [1], [0], [0, 1]]),
        ("auto", 4, [[0, 3], [1], [2], [0, 1, 2, 3]]),
        ("none", 4, [[], [], [], []]),
        ("0,2", 4, [[0], [2], [0], [0, 2]]),
        ("3,1,0", 4, [[3], [1], [0], [3, 1, 0]]),
    ],
)
def test_the_workers_of_a_host_share_out_its_gpus_by_their_order(monkeypatch, gpus, num_gpus, shares):
    monkeypatch.setattr(session_config, "count_gpus", lambda: num_gpus)
    workers = ("h:1", "h:2", "h:3", "other:1")
    chosen = [choose_gpus(Task("worker", i, PS, workers), gpus) for i in range(len(workers))]
    assert chosen == shares


def test_a_ps_takes_no_gpu_and_does_not_even_look_for_one(monkeypatch):
    monkeypatch.setattr(session_config, "count_gpus", lambda: pytest.fail("it looks"))
    assert make_session_config(Task("ps", 0, PS, WORKERS), "auto").device_count == {"GPU": 0}


def test_a_gpu_that_the_host_lacks_is_named(monkeypatch):
    monkeypatch.setattr(session_config, "count_gpus", lambda: 2)
    with pytest.raises(UnusableError, match=r"--gpus=0,2, but worker 1 finds 2 GPUs on its host: there is no GPU 2"):
        choose_gpus(Task("worker", 1, PS, WORKERS), "0,2")


def test_a_worker_uses_its_gpus_and_as_much_of_their_memory_as_it_needs(monkeypatch):
    monkeypatch.setattr(session_config, "choose_gpus", lambda *_: [1, 3])
    config = make_session_config(Task("worker", 1, PS, WORKERS), "auto")
    assert config.device_count == {"GPU": 2}
    assert config.gpu_options.visible_device_list == "1,3"
    assert config.gpu_options.allow_growth


def test_a_port_in_use_is_named_and_so_is_the_process():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        task = Task("ps", 0, (f"localhost:{port}",), WORKERS)
        with pytest.raises(UnusableError) as error:
            check_address(task)
        this = f"process {os.getpid()}, {shlex.join(psutil.Process().cmdline())}"
        in_use = f"ps 0 cannot listen on port {port} of localhost:{port}: Address already in use ({this});"
        assert str(error.value).startswith(in_use)
    check_address(task)


@pytest.mark.parametrize(
    ("host", "warns"),
    [("localhost", False), ("127.0.0.1", False), ("[::1]", False), ("10.1.2.3", True), ("no.such.host.invalid", True)],
)
def test_a_task_that_others_can_reach_says_so(caplog, host, warns):
    (port,) = choose_ports(1)
    check_address(Task("ps", 0, (f"{host}:{port}",), WORKERS))
    line = f"ps 0: whoever can reach {host}:{port}, by any interface, can read and change everything"
    assert (line in caplog.text) == warns


def test_a_task_that_is_alone_on_its_host_keeps_its_priority(monkeypatch):
    monkeypatch.setattr(os, "setpriority", lambda *_: pytest.fail("its priority is lowered"))
    lower_priority(Task("ps", 0, ("a:1",), ("b:2",)))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_memory_that_was_freed_between_pieces_in_use_is_released():
    libc, size = ctypes.CDLL(None), 2**16
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    pieces = [libc.malloc(size) for _ in range(3000)]
    for piece in pieces:
        ctypes.memset(piece, 1, size)
    for piece in pieces[:-1]:  # the last one stays in use, at the end
        libc.free(piece)
    before = psutil.Process().memory_info().rss
    release_free_memory()
    assert before - psutil.Process().memory_info().rss > 1000 * size
    libc.free(pieces[-1])
