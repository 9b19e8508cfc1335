"""Which ports a local cluster can listen on."""

import collections
import errno
import os
import random
import socket
import sys

# Below the ports that systems give to outgoing connections (Linux: from 32768, others: from 49152): one of those could
# be taken before a task listens there.
CANDIDATES = range(10000, 32768)

# A task listens seconds after its port was chosen. Until then, the same number of a UDP port, which no task uses, tells
# other processes on this machine that the port is taken. What this process chose long ago, it gives back.
_claims: collections.deque[socket.socket] = collections.deque(maxlen=400)


def choose_ports(count: int) -> list[int]:
    """Return `count` different ports that nothing listens on, and that no other process chooses while this one lives.

    Raises:
      OSError: there are too few.
    """
    ports: list[int] = []
    for port in random.sample(CANDIDATES, len(CANDIDATES)):
        if len(ports) == count:
            return ports
        claim = socket.socket(type=socket.SOCK_DGRAM)
        try:
            with socket.socket() as listener:
                claim.bind(("127.0.0.1", port))
                listener.bind(("", port))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise OSError("this machine has no address 127.0.0.1: add it to the loopback interface") from error
            continue
        ports.append(port)
        _claims.append(claim)
    raise OSError(f"fewer than {count} ports from {CANDIDATES.start} to {CANDIDATES.stop - 1} are free")


def main() -> None:
    """Run a command with so many ports in `$PORTS`: `ports.py COUNT COMMAND...`.

    They stay claimed for as long as that command, or a child that it leaves behind, runs.
    """
    count, *command = sys.argv[1:]
    ports = " ".join(map(str, choose_ports(int(count))))
    for claim in _claims:
        claim.set_inheritable(True)
    os.execvpe(command[0], command, {**os.environ, "PORTS": ports})


if __name__ == "__main__":
    main()
