import ctypes
import os
import pathlib
import runpy
import signal
import sys
from typing import NamedTuple

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import distributed

# isort: split
import tensorflow.compat.v1 as tf
from absl.testing import flagsaver

from benchmarks.testbed.processes import PROJECT, Cluster
from runtime.cluster.membership import Membership
from runtime.cluster.task import Task
from runtime.cluster.waiting import Timeouts
from runtime.data import download
from runtime.launch.ports import choose_ports
from runtime.machine.session_config import Connection, make_server_config, make_session_config
from runtime.process import environment
from runtime.records import events
from tests import forked, idx_files

# SIGTERM, as well as Ctrl-C, ends the tests in order, and with them the processes that they have started. A shell lets
# what it runs in the background ignore SIGINT; then every child would ignore it too.
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.default_int_handler)
for number in (signal.SIGQUIT, signal.SIGHUP):  # the same, and nohup
    signal.signal(number, signal.SIG_DFL)
Cluster.fork = forked.Popen
environment.choose_behavior()
tf.logging.set_verbosity(tf.logging.ERROR)


@pytest.fixture
def graph():
    """A graph of the test's own."""
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.fixture
def obeying_permissions():
    """Let the permissions of files hold in this thread for one test, also if it is root's."""
    if os.geteuid():
        yield
        return
    libc, header, held = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    libc.capget(header, held)
    dropped = (ctypes.c_uint32 * 6)(held[0] & ~0b110, *held[1:])  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    assert not libc.capset(header, dropped)
    yield
    assert not libc.capset(header, held)


@pytest.fixture
def start_recording(monkeypatch):
    """What lets this process record as a task into a folder, until the end of one test."""
    monkeypatch.setattr(events, "_recorder", None)
    return events.start_recording


@pytest.fixture
def set_flags():
    """Set flags of `distributed.py` for one test, as its command line would."""
    saved = flagsaver.save_flag_values(distributed.FLAGS)

    def set_flags(*arguments):
        distributed.FLAGS(["distributed.py", *arguments])

    set_flags()
    yield set_flags
    flagsaver.restore_flag_values(saved, distributed.FLAGS)


class LocalServers(NamedTuple):
    """Real TensorFlow servers in this process."""

    ps_hosts: tuple
    worker_hosts: tuple
    ps: list
    workers: list

    def task(self, job_name, index):
        return Task(job_name, index, self.ps_hosts, self.worker_hosts)

    def connection(self, job_name, index):
        """A task's connection to its own server."""
        servers = self.ps if job_name == "ps" else self.workers
        return Connection(servers[index].target, make_session_config(self.task(job_name, index)))

    def membership(self, job_name, index, startup_secs=60, recovery_secs=60):
        """What a task knows of the others; its thread is not started."""
        return Membership(self.task(job_name, index), Timeouts(startup_secs, recovery_secs))

    def worker_session(self, index, graph):
        """A session like that of a worker's process."""
        return self.connection("worker", index).session(graph)


@pytest.fixture(scope="session")
def local_servers():
    """Start servers in this process; they cannot be stopped, and stay until it ends."""

    def start(num_ps, num_workers):
        hosts = tuple(f"localhost:{port}" for port in choose_ports(num_ps + num_workers))
        servers = LocalServers(hosts[:num_ps], hosts[num_ps:], [], [])
        for job_name, started in (("ps", servers.ps), ("worker", servers.workers)):
            for index in range(len(servers.task("ps", 0).jobs[job_name])):
                task = servers.task(job_name, index)
                spec = tf.train.ClusterSpec(task.jobs)
                config = make_server_config(make_session_config(task))
                with pytest.MonkeyPatch.context() as patch:
                    # By default each server has 64 threads for this, and a process can have some 16 000 in all.
                    patch.setenv("TF_GRPC_WORKER_CACHE_QUEUES", "4")
                    started.append(tf.train.Server(spec, job_name, index, config=config))
                if job_name == "ps":
                    servers.membership(job_name, index).agreement.publish()
        return servers

    return start


@pytest.fixture
def leave_checkpoint(tmp_path):
    """A function that leaves in `tmp_path` what tells that the last checkpoint is that of a global step."""

    def leave(global_step):
        path = str(tmp_path / f"model.ckpt-{global_step}")
        pathlib.Path(f"{path}.index").touch()
        tf.train.update_checkpoint_state(str(tmp_path), path)

    return leave


@pytest.fixture(scope="session")
def mnist_dir():
    """The folder with the real MNIST; fetched into the user's cache if it is not there."""
    data_dir = download.default_data_dir()
    download.fetch(data_dir)
    return data_dir


@pytest.fixture(scope="session")
def flights_dir():
    """The folder with the archive of examples/flights; fetched into the user's cache if it is not there."""
    data_dir = f"{download.default_data_dir()}-flights"
    runpy.run_path(str(PROJECT / "examples" / "flights" / "mnist_input.py"))["fetch"](data_dir)
    return data_dir


@pytest.fixture(scope="session")
def black_and_white_dir(tmp_path_factory):
    """A data set in MNIST's format that any model learns at once: black images are 0 and white ones 1."""
    data_dir = tmp_path_factory.mktemp("black_and_white")
    for split, count in (("train", 600), ("t10k", 200)):
        labels = np.arange(count, dtype=np.uint8) % 2
        images = np.broadcast_to(255 * labels[:, None, None], (count, 28, 28)).astype(np.uint8)
        idx_files.write(data_dir, split, images, labels)
    return str(data_dir)
