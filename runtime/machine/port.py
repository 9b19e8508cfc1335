"""The port of a task: can it listen there, does its address lead there, and who can reach it?"""

import shlex
import socket

import psutil
from absl import logging

from runtime.cluster.status import ask
from runtime.cluster.task import Task, host_of, port_of
from runtime.cluster.waiting import wait_until_nothing_is_missing
from runtime.process.errors import UnusableError


def check_address(task: Task) -> None:
    """Check that the server of `task` can listen at its port, which TensorFlow's own message does not name.

    Unless its host is written as one of the loopback interface, a warning says that others can reach it: some systems
    give this address to the name of the machine, too.

    Raises:
      UnusableError: the port is in use, or this user may not use it.
    """
    port = port_of(task.address)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does: the port of the last run is free
        try:
            listener.bind(("", port))
        except OSError as error:
            in_use = f"{error.strerror}{_describe_listeners(port)}; end the process that does, or change"
            why = f"{error.strerror}; change" if isinstance(error, PermissionError) else in_use
            raise UnusableError(
                f"{task} cannot listen on port {port} of {task.address}: {why} the port in every task's host lists"
            ) from error
    if host_of(task.address) != "localhost":
        logging.warning(
            "%s: anyone who can reach %s, by any interface, can read and change everything: see docs/security.md",
            task,
            task.address,
        )


def _describe_listeners(port: int) -> str:
    """Return which processes listen on `port`, in brackets, as far as this user may see them."""
    try:
        sockets = [s for s in psutil.net_connections("tcp") if s.status == psutil.CONN_LISTEN]
        pids = {s.pid for s in sockets if s.pid and s.laddr and s.laddr.port == port}
        processes = [f"process {pid}, {shlex.join(psutil.Process(pid).cmdline())}" for pid in sorted(pids)]
    except psutil.Error:
        return ""
    return f" ({', '.join(processes)})" if processes else ""


def wait_until_address_leads_here(task: Task, timeout_secs: float) -> None:
    """Wait until the address of `task` leads to its server in this process, since the others reach it there.

    Raises:
      AwayError: it led to another process, or nowhere, for `timeout_secs`.
    """
    here = f"127.0.0.1:{port_of(task.address)}"

    def describe_elsewhere() -> str:
        there = ask(task.address)
        if there.incarnation and there.incarnation == (ask(here).incarnation or there.incarnation):
            return ""
        reason = "another process answers there" if there.incarnation else there.silence
        return f"{task} at {task.address} to be this process ({reason})"

    remedy = (
        "run each task once, on the host of its address, or correct --task_index or the host lists; a task must reach"
        " itself there, too, through a firewall or NAT; where no network is up, `ip link set lo up`"
    )
    wait_until_nothing_is_missing(task, describe_elsewhere, timeout_secs, remedy)
