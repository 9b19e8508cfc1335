"""Real processes of `distributed.py` on this machine, and how to wait for what they do."""

import contextlib
import functools
import os
import pathlib
import re
import socket
import subprocess
import sys
import time
from typing import NamedTuple

import psutil

from runtime.launch.ports import choose_ports

PROJECT = pathlib.Path(__file__).parents[2]
DEADLINE_SECS = 300.0  # far more than anything here takes, even on a busy machine


def can_run(command):
    """Whether a command that needs the system's permission runs here; in CI, where all must, it does not ask."""
    with contextlib.suppress(OSError):
        return bool(os.environ.get("CI")) or not subprocess.run(command, capture_output=True).returncode
    return False


def poll_for(predicate, what, timeout_secs=DEADLINE_SECS):
    """Return the first true value of `predicate()`."""
    deadline = time.monotonic() + timeout_secs
    while not (value := predicate()):
        if time.monotonic() > deadline:
            raise AssertionError(f"after {timeout_secs} s, still no {what}")
        time.sleep(0.05)
    return value


def answers(address):
    """Whether something accepts connections at `host:port`."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=5):
        return True
    return False


class Process:
    """A child whose output goes to a file; `popen` starts it as `subprocess.Popen` does."""

    def __init__(self, arguments, output, env=None, cwd=None, popen=subprocess.Popen, **options):
        self.output_path = pathlib.Path(output)
        with open(output, "ab") as file:
            self._popen = popen(
                arguments,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                cwd=cwd,
                **{"stdin": subprocess.DEVNULL, **options},
            )

    def output(self):
        return self.output_path.read_text(errors="replace")

    def wait_for_output(self, pattern):
        """Wait until the output matches, and return the last match."""
        poll_for(lambda: re.search(pattern, self.output()) or self.status is not None, repr(pattern))
        matches = list(re.finditer(pattern, self.output()))
        assert matches, f"the process ended with {self.status} before it said {pattern!r}:\n{self.output()}"
        return matches[-1]

    def wait_for_new_output(self, pattern):
        """Return the last match of a pattern, or of its group, once there is one more than now."""
        before = len(re.findall(pattern, self.output()))
        return poll_for(lambda: re.findall(pattern, self.output())[before:], repr(pattern))[-1]

    def wait(self, timeout_secs=DEADLINE_SECS):
        return self._popen.wait(timeout_secs)

    @property
    def pid(self):
        return self._popen.pid

    @property
    def status(self):
        """The exit status, or None while it runs."""
        return self._popen.poll()

    def is_running(self):
        return self.status is None

    def send(self, signal_number):
        self._popen.send_signal(signal_number)

    def kill(self):
        """Kill with -9."""
        self._popen.kill()
        self._popen.wait()


class Cluster:
    """Tasks of `distributed.py`, to be started, killed and started again by name, such as "worker 0".

    They run on this machine, or, in the order of `names`, each on a host of its own of a `network.Network`. Another
    `script` may run `distributed.py` in its own way. As a context manager it ends what still runs; that something does
    is an error unless there is one already.
    """

    fork = None  # what starts a task for which flags are all that is given, instead of `subprocess.Popen`

    def __init__(self, folder, num_ps, num_workers, *flags, network=None, script="distributed.py"):
        self.names = [f"ps {i}" for i in range(num_ps)] + [f"worker {i}" for i in range(num_workers)]
        self.tasks = {}
        self.network = network
        self._script = PROJECT / script
        self._folder = pathlib.Path(folder)
        self.flags = ["--ps_hosts", "--worker_hosts", *flags]
        self.place(range(len(self.names)))

    def place(self, hosts=()):
        """Give the tasks addresses, which hold from their next starts on: on `hosts`, or with other ports."""
        self.host = dict(zip(self.names, hosts, strict=False))
        if self.network:
            self.addresses = [f"{self.network.address(host)}:2222" for host in self.host.values()]
        else:
            self.addresses = [f"localhost:{port}" for port in choose_ports(len(self.names))]
        self.address = dict(zip(self.names, self.addresses, strict=True))
        self.ps_hosts, self.worker_hosts = (
            ",".join(self.address[name] for name in self.names if name.startswith(job)) for job in ("ps", "worker")
        )
        self.flags[:2] = [f"--ps_hosts={self.ps_hosts}", f"--worker_hosts={self.worker_hosts}"]

    def start(self, *names):
        """Start tasks, or start them again; all of them if none is named. Return the last."""
        for name in names or self.names:
            self.start_with(name, *self.role(name), *self.flags)
        return self.tasks[(names or self.names)[-1]]

    @staticmethod
    def role(name):
        """Return the flags that say which task this is."""
        job_name, index = name.split()
        return [f"--job_name={job_name}", f"--task_index={index}"]

    def start_with(self, name, *flags, env=None, before=(), **options):
        """Start a task with these flags and nothing else; `before` is a command that runs it."""
        command = [sys.executable, str(self._script), *flags]
        if self.fork and not (before or env or options):
            host = self.network.pid(self.host[name]) if self.network else None
            options["popen"] = functools.partial(Cluster.fork, namespaces_of=host)
        else:
            on_host = self.network.command(self.host[name]) if self.network else []
            command = [*on_host, *before, *command]
        output = self._folder / f"{name.replace(' ', '-')}.log"
        self.tasks[name] = Process(command, output, env, cwd=self._folder, **options)

    def __getitem__(self, name):
        return self.tasks[name]

    def wait(self):
        """Wait until every task has ended, and return their statuses by name."""
        return {name: task.wait() for name, task in self.tasks.items()}

    def __enter__(self):
        return self

    def __exit__(self, error_type, *_):
        left = [name for name, task in self.tasks.items() if task.is_running()]
        for name in left:
            self.tasks[name].kill()
        if error_type:
            for name, task in self.tasks.items():
                print(f"--- {name}, at its end:", *task.output().splitlines()[-40:], sep="\n")
        else:
            assert not left, f"{left} still ran"


class Running(NamedTuple):
    """A process that runs."""

    pid: int
    name: str  # as `ps -o comm` shows it
    command: str


def running_with(text):
    """Return the running processes in whose command lines `text` stands."""
    found = [process.info for process in psutil.process_iter(["pid", "name", "cmdline"])]
    running = [Running(of["pid"], of["name"], " ".join(of["cmdline"] or [])) for of in found]
    return [process for process in running if text in process.command]
