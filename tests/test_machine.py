import contextlib
import ctypes
import errno
import os
import pathlib
import platform
import re
import resource
import shlex
import socket
import subprocess
import sys
import tempfile

import psutil
import pytest

from benchmarks.testbed.processes import PROJECT
from runtime.cluster.task import Task
from runtime.launch.ports import choose_ports
from runtime.machine import session_config
from runtime.machine.port import check_address
from runtime.machine.session_config import choose_gpus, count_cores, make_session_config
from runtime.process.errors import UnusableError
from runtime.process.limits import THREADS_OF_TASK, why_too_low
from runtime.session.stopping import release_free_memory
from tests.full_disk import NEEDS_PRIVATE_MOUNTS

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


@pytest.mark.parametrize(
    "hosts",
    [
        ["NODE1", "node1", "node1.", "Node1"],
        ["[fd00::1]", "[fd00:0::1]", "[FD00::1]", "[fd00:0:0:0:0:0:0:1]"],
        ["10.0.0.1", "[::ffff:10.0.0.1]", "[::ffff:a00:1]", "10.0.0.1"],
        ["localhost", "127.0.0.1", "[::1]", "LOCALHOST."],
    ],
)
def test_a_host_that_is_spelled_in_several_ways_gives_out_its_gpus_and_cores_once(monkeypatch, hosts):
    monkeypatch.setattr(session_config, "count_gpus", lambda: 4)
    monkeypatch.setattr(session_config, "count_cores", lambda: 8)
    workers = tuple(f"{host}:{port}" for port, host in enumerate(hosts, 1))
    configs = [make_session_config(Task("worker", i, PS, workers), "auto") for i in range(4)]
    assert [config.gpu_options.visible_device_list for config in configs] == ["0", "1", "2", "3"]
    assert [config.intra_op_parallelism_threads for config in configs] == [2, 2, 2, 2]


def test_a_ps_takes_no_gpu_and_does_not_even_look_for_one(monkeypatch):
    monkeypatch.setattr(session_config, "count_gpus", lambda: pytest.fail("it looks"))
    assert make_session_config(Task("ps", 0, PS, WORKERS), "auto").device_count == {"GPU": 0}


def test_a_gpu_that_the_host_lacks_is_named(monkeypatch):
    monkeypatch.setattr(session_config, "count_gpus", lambda: 2)
    with pytest.raises(UnusableError, match=r"--gpus=0,2, but worker 1 finds 2 GPUs on its host: there is no GPU 2"):
        choose_gpus(Task("worker", 1, PS, WORKERS), "0,2")


@pytest.mark.parametrize(
    ("has_file", "visible", "is_told"),
    [
        (True, None, True),
        (True, "0", True),
        (True, "GPU-8932f937", True),
        (True, "", False),
        (True, "-1", False),
        (True, "NoDevFiles", False),
        (False, None, False),
    ],
)
def test_a_gpu_that_tensorflow_does_not_find_is_told(monkeypatch, tmp_path, caplog, has_file, visible, is_told):
    (tmp_path / ("nvidia0" if has_file else "nvidiactl")).touch()
    monkeypatch.setattr(session_config, "NVIDIA_GPUS", f"{tmp_path}/nvidia[0-9]*")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(session_config, "count_gpus", lambda: 0)
    assert choose_gpus(Task("worker", 1, PS, WORKERS), "auto") == []
    assert ("worker 1: TensorFlow finds no GPU, though this host has one" in caplog.text) == is_told
    with pytest.raises(UnusableError, match="install CUDA" if is_told else "there is no GPU 0"):
        choose_gpus(Task("worker", 1, PS, WORKERS), "0")


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


def test_a_port_that_this_user_may_not_use_is_in_nobodys_way(monkeypatch):
    def refuse(self, address):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(UnusableError, match="localhost:80: Permission denied; change the port in every task's host"):
        check_address(Task("ps", 0, ("localhost:80",), WORKERS))


@pytest.mark.parametrize(
    ("host", "warns"),
    [
        ("localhost", False),
        ("127.0.0.1", False),
        ("[::1]", False),
        ("ps.localhost", False),
        ("LOCALHOST", False),
        ("10.1.2.3", True),
        ("no.such.host.invalid", True),
    ],
)
def test_a_task_that_others_can_reach_says_so(caplog, host, warns):
    (port,) = choose_ports(1)
    check_address(Task("ps", 0, (f"{host}:{port}",), WORKERS))
    line = f"ps 0: anyone who can reach {host}:{port}, by any interface, can read and change everything"
    assert (line in caplog.text) == warns


@pytest.mark.slow
@NEEDS_PRIVATE_MOUNTS
def test_a_task_whose_name_leads_to_loopback_says_that_others_can_reach_it(tmp_path):
    """As Debian has it: the name of a machine is that of 127.0.1.1."""
    (tmp_path / "hosts").write_text("127.0.1.1 my-machine\n")
    (port,) = choose_ports(1)
    check = "import sys; from runtime.cluster.task import Task; from runtime.machine.port import check_address;"
    check += f"check_address(Task('ps', 0, ('my-machine:{port}',), ('b:1',)))"
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts; exec "$@"']
    done = subprocess.run(
        [*command, str(tmp_path / "hosts"), sys.executable, "-c", check], cwd=PROJECT, capture_output=True, text=True
    )
    assert f"ps 0: anyone who can reach my-machine:{port}, by any interface, can" in done.stderr


@pytest.mark.parametrize(
    ("of_process", "files", "num_cores"),
    [
        ("0::/", {"cpu.max": "100000 100000"}, 1),
        ("0::/pod/task", {"cpu.max": "max 100000", "pod/cpu.max": "50000 100000"}, 1),
        ("0::/on/the/host", {"cpu.max": "150000 100000"}, 2),
        ("0::/", {"cpu.max": "max 100000"}, 3),
        ("0::/", {}, 3),
        (
            "4:cpu,cpuacct:/docker/1",
            {"cpu,cpuacct/cpu.cfs_quota_us": "200000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            2,
        ),
        ("1:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ("1:cpuset:/\n0::/", {"cpu.max": "9900000 100000"}, 3),
    ],
)
def test_a_quota_of_processor_time_counts_as_cores(monkeypatch, tmp_path, of_process, files, num_cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    files = {"proc/self/cgroup": of_process, **{f"sys/fs/cgroup/{name}": text for name, text in files.items()}}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert count_cores(tmp_path) == num_cores


def test_what_slurm_gives_to_a_job_on_a_node_counts_as_cores(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "3")
    assert count_cores(tmp_path) == 3


@contextlib.contextmanager
def make_cgroup(controller):
    """A cgroup with this controller, and what begins a command that runs in it."""
    version1 = pathlib.Path("/sys/fs/cgroup") / controller
    group = (version1 if version1.exists() else version1.parent) / f"test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made: {error}")
    try:
        yield group, ["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', str(group)]
    finally:
        group.rmdir()


@pytest.mark.slow
def test_a_real_quota_counts_as_cores():
    with make_cgroup("cpu") as (group, run_in_it):
        name, quota = ("cpu.max", "100000 100000") if (group / "cpu.max").exists() else ("cpu.cfs_quota_us", "100000")
        (group / name).write_text(quota)
        count = "from runtime.machine.session_config import count_cores; print(count_cores())"
        done = subprocess.run([*run_in_it, sys.executable, "-c", count], cwd=PROJECT, capture_output=True, text=True)
        assert done.stdout == "1\n", done.stderr


def test_a_limit_of_threads_that_is_too_low_for_all_tasks_is_told_before_anything_is_made(tmp_path):
    with make_cgroup("pids") as (group, run_in_it):
        (group / "pids.max").write_text(str(3 * THREADS_OF_TASK))
        command = [*run_in_it, str(PROJECT / "run_local_cluster.sh"), f"--train_dir={tmp_path}/train"]
        done = subprocess.run(command, capture_output=True, text=True)
        limit = rf"the thread limit of this cgroup, {group}/pids.max, is {3 * THREADS_OF_TASK}, of which \d are used"
        assert re.search(
            rf"^error: {limit}: each task needs .*; raise it, or run fewer tasks here\n", done.stderr, re.M
        )
        assert done.returncode == 2
        assert not [*tmp_path.iterdir()]


def test_a_user_who_may_start_few_threads_is_told(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 10**6)  # who is not root
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (10**4 if kind == resource.RLIMIT_NPROC else -1, -1))
    assert why_too_low(10**4).startswith("the thread limit of this user, ulimit -u, is 10000, of which 0 are used: ")
    assert not why_too_low()
    assert why_too_low(num_others=10**4).endswith("; raise it, or run fewer tasks here"), "they may start right now"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert not why_too_low(10**4), "root may start any number"


@pytest.mark.parametrize(("given", "wrong"), [("epollex", "epollex"), ("", ""), ("epoll1,none", "none")])
def test_an_engine_of_grpc_with_which_it_would_abort_is_told(given, wrong):
    command = [sys.executable, "-c", "from runtime.process import environment"]
    done = subprocess.run(command, env={**os.environ, "GRPC_POLL_STRATEGY": given}, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f"error: GRPC_POLL_STRATEGY has '{wrong}', which this gRPC does not know: unset it\n"


def test_a_limit_of_open_files_with_which_tensorflow_crashes_is_told(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (34 if kind == resource.RLIMIT_NOFILE else -1, 34))
    assert why_too_low() == "the limit of open files, ulimit -Hn, is 34: each task needs at least 128; raise it"


@pytest.mark.parametrize("program", ["distributed.py", "runtime/launch prepare"])
def test_a_current_folder_that_has_been_deleted_is_told(tmp_path, program):
    (tmp_path / "deleted").mkdir()
    words = f"{PROJECT}/{program} --train_dir={tmp_path}/train".split()
    script = 'rmdir "$PWD"; exec "$0" "$@"'
    command = ["sh", "-c", script, sys.executable, *words]
    done = subprocess.run(command, cwd=tmp_path / "deleted", capture_output=True, text=True)
    error = "error: the current folder has been deleted: change to one that exists\n"
    assert (done.returncode, done.stderr) == (2, error)


def test_a_process_without_a_folder_for_temporary_files_is_told_what_to_do(monkeypatch):
    def fail():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", fail)
    assert why_too_low() == (
        "No usable temporary directory found in ['/tmp']: mount a tmpfs on /tmp, or set TMPDIR to a folder that can be"
        " written"
    )


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
