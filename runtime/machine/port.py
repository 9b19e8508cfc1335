"""The port of a task: can it listen there, and who can reach it?"""

import ipaddress
import shlex
import socket

import psutil
from absl import logging

from runtime.cluster.task import Task, host_of, port_of
from runtime.errors import UnusableError


def check_port_is_free(task: Task) -> None:
    """Check that the server of `task` can listen, since TensorFlow's own message does not name the port.

    Raises:
      UnusableError: the port is in use, or this user may not use it.
    """
    port = port_of(task.address)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does: the port of the last run is free
        try:
            listener.bind(("", port))
        except OSError as error:
            raise UnusableError(
                f"{task} cannot listen on port {port} of {task.address}: {error.strerror}{_describe_listeners(port)};"
                " end the process that does, or change the port in the host lists of every task"
            ) from error


def _describe_listeners(port: int) -> str:
    """Return which processes listen on `port`, in brackets, as far as this user may see them."""
    try:
        sockets = [s for s in psutil.net_connections("tcp") if s.status == psutil.CONN_LISTEN]
        pids = {s.pid for s in sockets if s.pid and s.laddr and s.laddr.port == port}
        processes = [f"process {pid}, {shlex.join(psutil.Process(pid).cmdline())}" for pid in sorted(pids)]
    except psutil.Error:
        return ""
    return f" ({', '.join(processes)})" if processes else ""


def warn_if_reachable(task: Task) -> None:
    """Log a warning that others may reach the server of `task`, unless its address is on the loopback interface."""
    try:
        resolved = socket.getaddrinfo(host_of(task.address), None)
    except socket.gaierror:
        resolved = []
    if not resolved or not all(ipaddress.ip_address(info[4][0]).is_loopback for info in resolved):
        logging.warning(
            "%s: whoever can reach %s, by any interface, can read and change everything: see docs/security.md",
            task,
            task.address,
        )
