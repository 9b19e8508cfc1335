"""Whether a task answers, asked with a plain socket: TensorFlow itself would wait without saying why."""

import concurrent.futures
import socket
import time
from collections.abc import Mapping, Sequence

from runtime.cluster.task import Peer, host_of, port_of

PROBE_SECS = 2.0  # how long a probe waits for an answer, however much else the other side sends
REFUSED = "connection refused"  # the host is there, but the task is not
NO_ANSWER = "no answer"
SOMETHING_ELSE = "something else answers there"

# An HTTP/2 client, and so gRPC, first sends a preface and a SETTINGS frame. The server sends a SETTINGS frame of its
# own, and acknowledges the client's. A frame begins with the length of its payload in three bytes, its type, its flags,
# and the number of its stream in four bytes (RFC 9113, sections 3.4, 4.1 and 6.5).
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES, MAX_PAYLOAD_BYTES = 9, 2**14
SETTINGS, ACK = 4, 1
SETTINGS_FRAME = bytes([0, 0, 0, SETTINGS, 0, 0, 0, 0, 0])
ACK_FRAME = bytes([0, 0, 0, SETTINGS, ACK, 0, 0, 0, 0])


class Line:
    """A connection to the TensorFlow server at `host:port`, which stays open from one question to the next.

    A new connection for each question would cost the server much more. The question is a SETTINGS frame without a
    setting, since gRPC hangs up on a client that sends more than a few PING frames without data.
    """

    def __init__(self, address: str):
        self.num_connections = 0  # each may lead to another process
        self._address = address
        self._socket: socket.socket | None = None
        self._received = b""  # and not read yet

    def ask(self) -> str | None:
        """Ask for a sign of life.

        Returns:
          None if the server answers as gRPC does, or else the reason, such as "connection refused".
        """
        deadline = time.monotonic() + PROBE_SECS
        try:
            if self._socket:
                try:
                    self._ask(SETTINGS_FRAME, deadline)
                    return None
                except ConnectionError:  # the server has hung up, or ended; perhaps another one is there
                    self.close()
            self._connect(deadline)
            return None
        except OSError as error:
            self.close()
            return _reason(error)

    def close(self) -> None:
        """Hang up; the next question connects again."""
        if self._socket:
            self._socket.close()
            self._socket, self._received = None, b""

    def _connect(self, deadline: float) -> None:
        address = (host_of(self._address), port_of(self._address))
        self._socket = socket.create_connection(address, timeout=_secs_until(deadline))
        self._ask(PREFACE + SETTINGS_FRAME, deadline)
        self._socket.sendall(ACK_FRAME)  # of the server's own settings
        self.num_connections += 1

    def _ask(self, question: bytes, deadline: float) -> None:
        """Send what ends with a SETTINGS frame, and wait until the server acknowledges that.

        Raises:
          OSError: it does not; a ConnectionError if it hangs up.
        """
        assert self._socket
        self._socket.settimeout(_secs_until(deadline))
        self._socket.sendall(question)
        frame = (0, 0)
        while frame != (SETTINGS, ACK):
            header = self._read(HEADER_BYTES, deadline)
            num_bytes = int.from_bytes(header[:3], "big")
            if num_bytes > MAX_PAYLOAD_BYTES:
                raise ConnectionResetError(None, SOMETHING_ELSE)
            self._read(num_bytes, deadline)
            frame = (header[3], header[4])

    def _read(self, num_bytes: int, deadline: float) -> bytes:
        assert self._socket
        while len(self._received) < num_bytes:
            self._socket.settimeout(_secs_until(deadline))
            if not (received := self._socket.recv(MAX_PAYLOAD_BYTES)):
                raise ConnectionResetError(None, SOMETHING_ELSE)
            self._received += received
        result, self._received = self._received[:num_bytes], self._received[num_bytes:]
        return result


def probe(address: str) -> str | None:
    """Ask the server at `host:port` for a sign of life, once: see `Line.ask()`."""
    line = Line(address)
    try:
        return line.ask()
    finally:
        line.close()


def _secs_until(deadline: float) -> float:
    """Return the time that is left.

    Raises:
      TimeoutError: there is none.
    """
    if (secs := deadline - time.monotonic()) <= 0:
        raise TimeoutError
    return secs


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "name not known"
    if isinstance(error, ConnectionRefusedError):
        return REFUSED
    if isinstance(error, TimeoutError):
        return NO_ANSWER
    return error.strerror or str(error)


def unreachable(peers: Sequence[Peer]) -> dict[Peer, str]:
    """Return the peers that do not answer, each with the reason."""
    lines = {peer: Line(peer.address) for peer in peers}
    try:
        return ask(lines)
    finally:
        for line in lines.values():
            line.close()


def ask(lines: Mapping[Peer, Line]) -> dict[Peer, str]:
    """Ask all peers at once; return those that do not answer, each with the reason."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=len(lines) or 1) as pool:
        reasons = pool.map(Line.ask, lines.values())
        return {peer: reason for peer, reason in zip(lines, reasons, strict=True) if reason}


def describe(reasons: Mapping[Peer, str]) -> str:
    """Return what `unreachable()` returned as text: "" if everybody answers."""
    return ", ".join(f"{peer} ({reason})" for peer, reason in reasons.items())
