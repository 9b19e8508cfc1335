"""Which ports a local cluster can listen on: `python runtime/launch/ports.py N` prints N of them."""

import random
import socket
import sys

# Below the ports that systems give to outgoing connections (Linux: from 32768, others: from 49152): one of those could
# be taken before a task listens there.
CANDIDATES = range(10000, 32768)


def choose_ports(count: int) -> list[int]:
    """Return `count` different ports that nothing listens on now."""
    ports: list[int] = []
    for port in random.sample(CANDIDATES, len(CANDIDATES)):
        if len(ports) == count:
            return ports
        with socket.socket() as listener:
            try:
                listener.bind(("", port))
                ports.append(port)
            except OSError:
                pass
    raise OSError(f"fewer than {count} ports from {CANDIDATES.start} to {CANDIDATES.stop - 1} are free")


if __name__ == "__main__":
    print(*choose_ports(int(sys.argv[1])))
