"""Whether a task answers, asked with a plain socket, and which process it is, asked in a session with it alone."""

import concurrent.futures
import contextlib
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple, TypeVar

import tensorflow.compat.v1 as tf

from runtime.cluster.task import Peer, host_of, port_of

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

PROBE_SECS = 2.0  # how long a probe waits for an answer, however much else the other side sends
REFUSED = "connection refused"  # the host is there, but the task is not
NO_ANSWER = "no answer"
SOMETHING_ELSE = "something else answers there"
REASONS = {socket.gaierror: "name not known", ConnectionRefusedError: REFUSED, TimeoutError: NO_ANSWER}

# An HTTP/2 client, and so gRPC, first sends a preface and a SETTINGS frame. The server sends a SETTINGS frame of its
# own, and acknowledges the client's. Whatever frame it sends, its header has zeros (RFC 9113, sections 3.4, 4.1, 6.5).
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS_FRAME = b"\0\0\0\4\0\0\0\0\0"
ACK_FRAME = b"\0\0\0\4\1\0\0\0\0"
MAX_BYTES = 2**14  # to receive at once

ANSWER_MS = 5000  # how long a session waits for the answer of a server


class Line:
    """A connection to the TensorFlow server at `host:port`, which stays open from one question to the next.

    A new connection for each question would cost the server much more. The question is a SETTINGS frame without a
    setting, since gRPC hangs up on a client that sends more than a few PING frames without data.
    """

    def __init__(self, address: str):
        self.is_new = False  # whether it was opened since this was last set to False, and may lead to another process
        self._address = address
        self._socket: socket.socket | None = None

    def ask(self) -> str | None:
        """Ask for a sign of life.

        Returns:
          None if the server answers as gRPC does, or else the reason, such as "connection refused".
        """
        try:
            if self._socket:
                with contextlib.suppress(ConnectionError):  # it has hung up, or ended; perhaps another one is there
                    self._ask(self._socket, SETTINGS_FRAME)
                    return None
                self.close()
            self._connect()
        except OSError as error:
            self.close()
            return REASONS.get(type(error)) or error.strerror or str(error)
        return None

    def close(self) -> None:
        """Hang up; the next question connects again."""
        if self._socket:
            self._socket.close()
            self._socket = None

    def _connect(self) -> None:
        address = (host_of(self._address), port_of(self._address))
        self._socket = socket.create_connection(address, timeout=PROBE_SECS)
        self._ask(self._socket, PREFACE + SETTINGS_FRAME)
        self._socket.sendall(ACK_FRAME)  # of the server's own settings
        self.is_new = True

    def _ask(self, connection: socket.socket, question: bytes) -> None:
        """Send what ends with a SETTINGS frame, and wait until the server acknowledges that.

        Raises:
          OSError: it does not; a ConnectionError if it hangs up, or is no such server.
        """
        deadline = time.monotonic() + PROBE_SECS
        connection.settimeout(PROBE_SECS)
        connection.sendall(question)
        received = b""
        while ACK_FRAME not in received:
            if (secs_left := deadline - time.monotonic()) <= 0:
                raise TimeoutError
            connection.settimeout(secs_left)
            chunk = connection.recv(MAX_BYTES)
            if b"\0" not in chunk:  # it has hung up, or sends text
                raise ConnectionResetError(None, SOMETHING_ELSE)
            received = received[-len(ACK_FRAME) :] + chunk


def probe(address: str) -> str | None:
    """Ask the server at `host:port` for a sign of life, once: see `Line.ask()`."""
    with contextlib.closing(Line(address)) as line:
        return line.ask()


def ask_all(asked: Collection[Asked], question: Callable[[Asked], Answer]) -> dict[Asked, Answer]:
    """Return what `question()` returns for each, all asked at once, since some may be silent for long."""
    with concurrent.futures.ThreadPoolExecutor(len(asked) or 1) as pool:
        return dict(zip(asked, pool.map(question, asked), strict=True))


def ask(lines: Mapping[Peer, Line]) -> dict[Peer, str]:
    """Ask all peers; return those that do not answer, each with the reason."""
    reasons = ask_all(lines, lambda peer: lines[peer].ask())
    return {peer: reason for peer, reason in reasons.items() if reason}


def unreachable(peers: Collection[Peer]) -> dict[Peer, str]:
    """Return the peers that do not answer, each with the reason."""
    reasons = ask_all(peers, lambda peer: probe(peer.address))
    return {peer: reason for peer, reason in reasons.items() if reason}


def describe(reasons: Mapping[Peer, str]) -> str:
    """Return what `unreachable()` returned as text: "" if everybody answers."""
    return ", ".join(f"{peer} ({reason})" for peer, reason in reasons.items())


class Connection(NamedTuple):
    """The server of this process, as `tf.Session` takes it."""

    target: str
    config: tf.ConfigProto

    def session(self, graph: tf.Graph | None = None) -> tf.Session:
        """Return a new session for `graph`, or for the default graph."""
        return tf.Session(self.target, graph=graph, config=self.config)


@contextlib.contextmanager
def session_at(address: str, graph: tf.Graph | None = None) -> Iterator[tf.Session]:
    """Make a session with the server at `host:port` alone; one with the cluster would wait for all of its tasks.

    Raises:
      OpError: the server does not answer in time; runs of the session may raise that too.
    """
    if reason := probe(address):
        raise tf.errors.UnavailableError(None, None, reason)
    config = tf.ConfigProto(device_filters=["/job:nobody"], operation_timeout_in_ms=ANSWER_MS)
    config.rpc_options.use_rpc_for_inprocess_master = True  # or its own address always leads a process to itself
    config.rpc_options.disable_session_connection_sharing = True  # or this waits behind what training sends
    session = tf.Session(f"grpc://{address}", graph=graph, config=config)
    try:
        yield session
    finally:
        with contextlib.suppress(tf.errors.OpError):  # a server that is gone does not answer
            session.close()


def life_of(peer: Peer) -> str:
    """Return the life of the server at the address of `peer`, a number of its process, or "" if it does not answer."""
    try:
        with session_at(peer.address) as session:
            return life_in(session, peer.device)
    except tf.errors.OpError:
        return ""


def life_in(session: tf.Session, device: str) -> str:
    """Return the life of the server of a task such as "/job:ps/task:0" to which a session is connected."""
    name = f"{device.replace('/task', '/replica:0/task')}/device:CPU:0"
    return next((str(found.incarnation) for found in session.list_devices() if found.name == name), "")
