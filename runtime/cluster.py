"""Who is in the cluster, and are they there?"""

import contextlib
import dataclasses
import ipaddress
import json
import math
import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import psutil
import tensorflow.compat.v1 as tf
from absl import logging

POLL_SECS = 0.2
REMINDER_SECS = 10.0  # a wait repeats what it waits for so often
REFUSED = "connection refused"  # the host is there, but the task is not
PROBE_SECS = 2.0  # how long one probe waits for an answer
NICENESS = 10  # of a task that trains: one that starts beside it then gets nine tenths of a core that both want

# What a client and a server of HTTP/2, and so of gRPC, say first (RFC 9113, section 3.4): a preface and an empty
# SETTINGS frame, answered by a SETTINGS frame, whose type, 4, is the fourth byte.
HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
HTTP2_SETTINGS = 4


class ClusterError(Exception):
    """The description of the cluster, or this task's place in it, is unusable."""


@dataclasses.dataclass(frozen=True)
class Peer:
    """Another task, as one sees it from here."""

    job_name: str
    index: int
    address: str  # host:port

    def __str__(self) -> str:
        return f"{self.job_name} {self.index} at {self.address}"


@dataclasses.dataclass(frozen=True)
class Task:
    """One process of the cluster, and what it knows of the others."""

    job_name: str  # "ps" or "worker"
    index: int
    ps_hosts: tuple[str, ...]  # host:port, by task index
    worker_hosts: tuple[str, ...]

    def __post_init__(self) -> None:
        for job_name, hosts in self.jobs.items():
            if not hosts:
                raise ClusterError(f"no {job_name} address is given: a cluster needs at least one")
            for address in hosts:
                _check_address(job_name, address)
        addresses = self.ps_hosts + self.worker_hosts
        for address in addresses:
            if addresses.count(address) > 1:
                raise ClusterError(f"{address} is listed more than once: each task needs an address of its own")
        if self.job_name not in self.jobs:
            raise ClusterError(f"the job is {self.job_name!r}, expected ps or worker")
        if not 0 <= self.index < len(self.jobs[self.job_name]):
            raise ClusterError(
                f"{self.job_name} has no task {self.index}: {len(self.jobs[self.job_name])} addresses are listed, so"
                f" the index must be below that"
            )

    @property
    def jobs(self) -> dict[str, tuple[str, ...]]:
        """Each job's addresses, as `tf.train.ClusterSpec` takes them."""
        return {"ps": self.ps_hosts, "worker": self.worker_hosts}

    @property
    def is_chief(self) -> bool:
        """Whether this is worker 0, which initialises, checkpoints, restores and evaluates."""
        return self.job_name == "worker" and self.index == 0

    @property
    def address(self) -> str:
        """This task's own host:port."""
        return self.jobs[self.job_name][self.index]

    @property
    def device(self) -> str:
        """This task's device name."""
        return f"/job:{self.job_name}/task:{self.index}"

    def others(self, job_name: str) -> list[Peer]:
        """Return the tasks of one job, without this one."""
        peers = (Peer(job_name, index, address) for index, address in enumerate(self.jobs[job_name]))
        return [peer for peer in peers if peer.address != self.address]

    @property
    def needed(self) -> list[Peer]:
        """The tasks that no task can go on without: every ps, and the chief."""
        return [*self.others("ps"), *(peer for peer in self.others("worker") if peer.index == 0)]

    def __str__(self) -> str:
        return f"{self.job_name} {self.index}"


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")  # of IPv6 addresses


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _check_address(job_name: str, address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ClusterError(f"{job_name} address {address!r} is not host:port, such as 10.0.0.5:2222")


def task_from_tf_config(tf_config: str) -> Task:
    """Read the cluster and the task from the JSON text that cluster managers put into `TF_CONFIG`.

    Its form is `{"cluster": {"ps": [...], "worker": [...]}, "task": {"type": "worker", "index": 0}}`.

    Raises:
      ClusterError: it is not JSON of this form, or the cluster in it is unusable.
    """
    try:
        config = json.loads(tf_config)
        jobs, task = config["cluster"], config["task"]
        if set(jobs) != {"ps", "worker"}:
            raise ClusterError(
                f"TF_CONFIG has the jobs {', '.join(jobs)}, expected ps and worker (the chief is worker 0)"
            )
        return Task(task["type"], int(task["index"]), tuple(jobs["ps"]), tuple(jobs["worker"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterError(
            'TF_CONFIG is not of the form {"cluster": {"ps": [...], "worker": [...]}, "task": {"type": "worker",'
            f' "index": 0}}}}: {error!r}'
        ) from error


def session_config(task: Task) -> tf.ConfigProto:
    """Return the settings that a task's server and its sessions share."""
    # A task talks to the ps tasks alone, and so need not wait for workers that are not there.
    peers = ["/job:ps", task.device] if task.job_name == "worker" else [task.device]
    # By default each process would take as many threads as there are cores, and let them spin for work.
    num_here = [_host(address) for address in task.ps_hosts + task.worker_hosts].count(_host(task.address))
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # macOS
    num_threads = max(1, num_cores // num_here)
    # To rewrite a graph takes about as long as all else in its first run, and training was as fast without.
    graph_options = tf.GraphOptions()
    graph_options.rewrite_options.disable_meta_optimizer = True
    return tf.ConfigProto(
        device_filters=peers,
        intra_op_parallelism_threads=num_threads,
        inter_op_parallelism_threads=num_threads,
        experimental=tf.ConfigProto.Experimental(disable_thread_spinning=True),
        graph_options=graph_options,
        # A ps computes nothing that a GPU is good for, and by default would take all of its memory.
        device_count={"GPU": 0} if task.job_name == "ps" else {},
        gpu_options=tf.GPUOptions(allow_growth=True),
    )


def let_others_start() -> None:
    """Let tasks that start on this machine, or come back, go before all threads of this one from now on."""
    if sys.platform != "linux":  # only there have threads a niceness of their own
        return
    niceness = max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0))
    is_done = False
    while not is_done:  # a thread may have started another before its turn came
        is_done = True
        for thread in psutil.Process().threads():
            with contextlib.suppress(ProcessLookupError):  # it has ended
                if os.getpriority(os.PRIO_PROCESS, thread.id) < niceness:
                    os.setpriority(os.PRIO_PROCESS, thread.id, niceness)
                    is_done = False


def check_port_is_free(task: Task) -> None:
    """Check that this task's server can listen, since TensorFlow's own message does not name the port.

    Raises:
      ClusterError: the port is in use, or is not ours to use.
    """
    port = _port(task.address)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does: the last run's port is free
        try:
            listener.bind(("", port))
        except OSError as error:
            raise ClusterError(
                f"{task} cannot listen on port {port} of {task.address}: {error.strerror}{_listeners(port)}; end the"
                " process that does, or change the port in every task's host lists"
            ) from error


def _listeners(port: int) -> str:
    """Return which processes listen on a port, in brackets, as far as this user may know."""
    try:
        sockets = [s for s in psutil.net_connections("tcp") if s.status == psutil.CONN_LISTEN]
        pids = {s.pid for s in sockets if s.pid and s.laddr and s.laddr.port == port}
        processes = [f"process {pid}, {shlex.join(psutil.Process(pid).cmdline())}" for pid in sorted(pids)]
    except psutil.Error:
        return ""
    return f" ({', '.join(processes)})" if processes else ""


def warn_if_reachable(task: Task) -> None:
    """Log that others may reach this task's server, unless its address is this machine's own loopback."""
    try:
        found = socket.getaddrinfo(_host(task.address), None)
    except socket.gaierror:
        found = []
    if not found or not all(ipaddress.ip_address(info[4][0]).is_loopback for info in found):
        logging.warning(
            "%s: whoever can reach %s, by any interface, can read and change everything: see 'Security' in README.md",
            task,
            task.address,
        )


def probe(address: str) -> str | None:
    """Ask for a sign of life of a TensorFlow server at `host:port`.

    Returns:
      None if it answers as gRPC does; else the reason, such as "connection refused".
    """
    try:
        with socket.create_connection((_host(address), _port(address)), timeout=PROBE_SECS) as connection:
            connection.sendall(HTTP2_HELLO)
            answer = connection.recv(9)
    except socket.gaierror:
        return "name not known"
    except ConnectionRefusedError:
        return REFUSED
    except TimeoutError:
        return "no answer"
    except OSError as error:
        return error.strerror or str(error)
    return None if answer[3:4] == bytes([HTTP2_SETTINGS]) else "something else answers there"


def missing(peers: Sequence[Peer]) -> dict[Peer, str]:
    """Return those that do not answer, each with the reason."""
    reasons = {peer: probe(peer.address) for peer in peers}
    return {peer: reason for peer, reason in reasons.items() if reason}


def describe(reasons: Mapping[Peer, str]) -> str:
    """Return what `missing()` found as text: "" if that was nothing."""
    return ", ".join(f"{peer} ({reason})" for peer, reason in reasons.items())


def wait_for_ps(task: Task) -> None:
    """Wait until every ps answers, saying which do not, and why; `runtime/watch.py` keeps the time."""
    wait_until_nothing_is_missing(task, lambda: describe(missing(task.others("ps"))))


def wait_until_nothing_is_missing(
    task: Task, look: Callable[[], str], timeout_secs: float = math.inf, remedy: str = ""
) -> None:
    """Poll until `look()`, which says what is missing, returns an empty text; log what it says when that changes.

    Raises:
      TimeoutError: something was still missing after `timeout_secs`; the message says what, and has `remedy`.
    """
    start = time.monotonic()
    told, told_at = "", start
    while what := look():
        now = time.monotonic()
        if now > start + timeout_secs:
            raise TimeoutError(f"{task} waited {timeout_secs:.0f} s for {what}: {remedy}")
        if what != told or now > told_at + REMINDER_SECS:
            logging.info("%s: waiting for %s", task, what)
            told, told_at = what, now
        time.sleep(POLL_SECS)
