"""Whether a task answers, and which process it is: one question to its server, with a deadline."""

import contextlib
import hashlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor  # its module, like any that adds hooks of forks, comes before threads
from typing import NamedTuple, TypeVar

import grpc
import psutil

from runtime.cluster.task import Peer, port_of

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

ANSWER_SECS = 3.0  # how long a server may take to say which process it is
ALIVE_SECS = 2.0  # how long, after that, to give a sign of life
REFUSED = "connection refused"  # the host is there, but the task is not
UNKNOWN_NAME = "name not known"  # managers take it away with the task
NO_ANSWER = "no answer"
NO_NAME_SERVER = "its name is still being looked up"
LOOKUP_SECS = 1.0  # how long a look may take that others have begun
REPLACED = "another process answers there"
SOMETHING_ELSE = "something else answers there"
BUSY = "it is busy"
STARTING = "still starting"  # a process answers, but not yet as the one that is asked for
# What gRPC says, and the reason.
REASONS = {
    "Connection refused": REFUSED,
    "Address family not supported": REFUSED,  # of the name's second address, where IPv6 is off: the first refused, too
    "resolv": UNKNOWN_NAME,
    "No route to host": "no route to host",
    "Network is unreachable": "network is unreachable",
}

SERVICE = "/tensorflow.WorkerService"
# A channel leads where the address leads, through no web proxy; and each has a connection of its own, so that a new one
# looks the name up again.
OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]

logging.getLogger("grpc").setLevel(logging.CRITICAL)  # it logs a traceback where an answer has odd letters

_lookups: dict[str, threading.Thread] = {}  # the last one of each address that is silent
_channels: dict[str, grpc.Channel] = {}  # those that work, or soon may, by address, while they are not in use


class Status(NamedTuple):
    """What the server at an address has answered."""

    incarnation: str = ""  # tells its process from those before and after it; "" if there is none, or it is busy
    reason: str = ""  # why there is no answer, such as "connection refused"; "" for a server that is there, busy or not

    @property
    def silence(self) -> str:
        """Why it has not said which process it is; "" if it has."""
        return "" if self.incarnation else self.reason or BUSY


def ask(address: str) -> Status:
    """Ask the server at `host:port` which process it is.

    The connection stays open from one question to the next: a new one each time would keep the server much busier.
    No channel is made before a process is forked, since none can be used after that.
    """
    status, channel, is_new = Status(reason=REFUSED), _channels.pop(address, None), False
    if channel:
        status = ask_through(channel)
    if status.reason not in ("", NO_ANSWER):  # the process there has hung up, and another one may have come
        if channel:
            channel.close()
        channel, is_new = open_channel(address), True
        status = ask_through(channel)
    is_of_use = not status.reason or (is_new and status.reason == NO_ANSWER)  # it may still be looking the name up
    if channel and not (is_of_use and _channels.setdefault(address, channel) is channel):
        channel.close()
    return Status(reason=_describe_silence(address)) if status.reason == NO_ANSWER else status


def _describe_silence(address: str) -> str:
    """Return why nothing comes from an address: nothing is sent there, either, while a name server is silent."""
    if not (looking := _lookups.get(address)) or not looking.is_alive():
        looking = _lookups[address] = threading.Thread(target=look_up, args=[address], daemon=True)
        looking.start()
    looking.join(LOOKUP_SECS)
    return NO_NAME_SERVER if looking.is_alive() else NO_ANSWER


def look_up(address: str) -> set[str]:
    """Return the numbers of the host at `host:port`, none where its name leads nowhere now."""
    with contextlib.suppress(OSError):
        host = address.rpartition(":")[0].strip("[]")
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    return set()


def forget(address: str) -> None:
    """Look the name of this host up anew at the next question: a stranger answers where it has led so far."""
    if channel := _channels.pop(address, None):
        channel.close()


def hang_up_on_strangers(addresses: Collection[str]) -> None:
    """Cut the connections of this process to hosts, at the ports of `addresses`, to which none of these leads any more.

    gRPC, in TensorFlow's server too, looks a name up anew only when its connection is gone.
    """
    known = {"127.0.0.1", "::1"}.union(*(look_up(address) for address in addresses))
    ports = {port_of(address) for address in addresses}
    for connection in psutil.Process().net_connections("tcp"):
        there = connection.raddr
        if there and there.port in ports and there.ip.removeprefix("::ffff:") not in known:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fd)) as link:
                link.shutdown(socket.SHUT_RDWR)


def open_channel(address: str) -> grpc.Channel:
    """Return a channel to the server at `host:port`, which connects with the first question."""
    return grpc.insecure_channel(f"dns:///{address}", OPTIONS)


def ask_through(channel: grpc.Channel) -> Status:
    """Ask the server at the other end of a channel which process it is."""
    try:
        answer = channel.unary_unary(f"{SERVICE}/GetStatus")(b"", timeout=ANSWER_SECS)
        # It has the devices of the server, each with a number that is new in each process.
        return Status(hashlib.sha256(answer).hexdigest()[:16])
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
            said = error.details() or ""
            return Status(reason=next((REASONS[text] for text in REASONS if text in said), SOMETHING_ELSE))
    # The threads that answer are those that compute, or write a checkpoint, and may be busy for long. That it has no
    # such method, gRPC says without them.
    try:
        channel.unary_unary(f"{SERVICE}/NoSuchMethod")(b"", timeout=ALIVE_SECS)
    except grpc.RpcError as error:
        return Status(reason="" if error.code() is grpc.StatusCode.UNIMPLEMENTED else NO_ANSWER)
    return Status(reason=SOMETHING_ELSE)


def ask_all(asked: Collection[Asked], question: Callable[[Asked], Answer]) -> dict[Asked, Answer]:
    """Return what `question()` returns for each, all asked at once, since some may be silent for long."""
    with ThreadPoolExecutor(len(asked) or 1) as pool:
        return dict(zip(asked, pool.map(question, asked), strict=True))


def statuses_of(peers: Collection[Peer]) -> dict[Peer, Status]:
    """Return the status of each."""
    return ask_all(peers, lambda peer: ask(peer.address))


def describe(reasons: Mapping[Peer, str]) -> str:
    """Return as text why peers do not answer: "" if there are none."""
    return ", ".join(f"{peer} ({reason})" for peer, reason in reasons.items())
