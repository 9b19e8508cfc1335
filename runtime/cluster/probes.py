"""Whether a task answers, asked with a plain socket: TensorFlow itself would wait without saying why."""

import socket
from collections.abc import Mapping, Sequence

from runtime.cluster.task import Peer, host_of, port_of

PROBE_SECS = 2.0  # how long a probe waits for an answer
REFUSED = "connection refused"  # the host is there, but the task is not

# An HTTP/2 client, and so gRPC, first sends a preface and an empty SETTINGS frame (RFC 9113, section 3.4). The server
# answers with a SETTINGS frame of its own. The fourth byte of a frame is its type.
HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
HTTP2_SETTINGS = 4


def probe(address: str) -> str | None:
    """Ask the TensorFlow server at `host:port` for a sign of life.

    Returns:
      None if it answers as gRPC does, or else the reason, such as "connection refused".
    """
    try:
        with socket.create_connection((host_of(address), port_of(address)), timeout=PROBE_SECS) as connection:
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


def resolve(address: str) -> frozenset[str]:
    """Return the IP addresses of the host of `host:port`, none if its name is not known."""
    try:
        return frozenset(str(info[4][0]) for info in socket.getaddrinfo(host_of(address), None))
    except socket.gaierror:
        return frozenset()


def unreachable(peers: Sequence[Peer]) -> dict[Peer, str]:
    """Return the peers that do not answer, each with the reason."""
    reasons = {peer: probe(peer.address) for peer in peers}
    return {peer: reason for peer, reason in reasons.items() if reason}


def describe(reasons: Mapping[Peer, str]) -> str:
    """Return what `unreachable()` returned as text: "" if everybody answers."""
    return ", ".join(f"{peer} ({reason})" for peer, reason in reasons.items())
