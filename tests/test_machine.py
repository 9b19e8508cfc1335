import os
import shlex
import socket

import psutil
import pytest

from runtime.cluster.task import Task
from runtime.errors import UnusableError
from runtime.machine.port import check_port_is_free, warn_if_reachable
from runtime.machine.priority import lower_priority
from runtime.machine.session_config import make_session_config

PS = ("a:1", "b:2")
WORKERS = ("c:3", "d:4", "e:5")


def test_a_task_waits_only_for_tasks_that_it_talks_to():
    worker, ps = Task("worker", 1, PS, WORKERS), Task("ps", 1, PS, WORKERS)
    assert list(make_session_config(worker).device_filters) == ["/job:ps", "/job:worker/task:1"]
    assert list(make_session_config(ps).device_filters) == ["/job:ps/task:1"]


def test_a_port_in_use_is_named_and_so_is_the_process():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        task = Task("ps", 0, (f"localhost:{port}",), WORKERS)
        with pytest.raises(UnusableError) as error:
            check_port_is_free(task)
        this = f"process {os.getpid()}, {shlex.join(psutil.Process().cmdline())}"
        in_use = f"ps 0 cannot listen on port {port} of localhost:{port}: Address already in use ({this});"
        assert str(error.value).startswith(in_use)
    check_port_is_free(task)


@pytest.mark.parametrize(
    ("host", "warns"),
    [("localhost", False), ("127.0.0.1", False), ("[::1]", False), ("10.1.2.3", True), ("no.such.host.invalid", True)],
)
def test_a_task_that_others_can_reach_says_so(caplog, host, warns):
    warn_if_reachable(Task("ps", 0, (f"{host}:2222",), WORKERS))
    line = f"ps 0: whoever can reach {host}:2222, by any interface, can read and change everything"
    assert (line in caplog.text) == warns


def test_a_task_that_is_alone_on_its_host_keeps_its_priority(monkeypatch):
    monkeypatch.setattr(os, "setpriority", lambda *_: pytest.fail("its priority is lowered"))
    lower_priority(Task("ps", 0, ("a:1",), ("b:2",)))
