"""A switch between hosts that loses, delays and cuts off packets: `python benchmarks/testbed/switch.py ADDRESS...`.

It holds a TUN device for each IPv4 address, `tun0`, `tun1` and so on: each packet that is sent into one of them comes
out of the one that has its destination. Each line on standard input is a new `Conditions` as JSON; it is repeated on
standard output once it holds, and only then may the next one come. The end of the input ends the switch.
"""

import dataclasses
import fcntl
import heapq
import itertools
import json
import os
import random
import selectors
import socket
import struct
import sys
import time
from typing import NamedTuple

MAX_PACKET_BYTES = 65535

# From linux/if_tun.h: which device an open file of /dev/net/tun is, one of IP packets with nothing before them.
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000


@dataclasses.dataclass
class Conditions:
    """What becomes of the packets between hosts."""

    delay_secs: float = 0.0  # each way
    loss: float = 0.0  # the probability that a packet is lost
    bits_per_sec: float = float("inf")  # of each host, each way
    cut: list[list[int]] = dataclasses.field(default_factory=list)  # pairs of hosts, the lower one first
    capture: str | None = None  # the file that gets a copy of every packet
    moved: dict[str, int] = dataclasses.field(default_factory=dict)  # hosts by a further address


class Packet(NamedTuple):
    """A packet on its way."""

    due: float  # in terms of time.monotonic()
    number: int  # what is due at the same time keeps its order
    host: int
    data: bytes


class Switch:
    def __init__(self, addresses):
        self.tuns = [open_tun(f"tun{host}") for host in range(len(addresses))]
        self._hosts = {socket.inet_aton(address): host for host, address in enumerate(addresses)}
        self.set(Conditions())
        self._on_their_way = []  # a heap of packets
        self._numbers = itertools.count()
        self._random = random.Random(0)
        self._sent_at = [0.0 for _ in addresses]  # when the last packet of each host has left it
        self._received_at = [0.0 for _ in addresses]

    def set(self, conditions):
        self.conditions = conditions
        self._hosts |= {socket.inet_aton(address): host for address, host in conditions.moved.items()}

    def take(self, source):
        """Take a packet from a host, which has sent one."""
        data = os.read(self.tuns[source], MAX_PACKET_BYTES)
        if self.conditions.capture:
            with open(self.conditions.capture, "ab") as file:
                file.write(data)
        host = self._hosts.get(data[16:20]) if data[0] >> 4 == 4 else None  # an IPv4 packet's destination
        if host is None or sorted([source, host]) in self.conditions.cut:
            return
        if self.conditions.loss and self._random.random() < self.conditions.loss:
            return
        secs = 8 * len(data) / self.conditions.bits_per_sec
        self._sent_at[source] = max(time.monotonic(), self._sent_at[source]) + secs
        self._received_at[host] = max(self._sent_at[source], self._received_at[host] + secs)
        due = self._received_at[host] + self.conditions.delay_secs
        heapq.heappush(self._on_their_way, Packet(due, next(self._numbers), host, data))

    def deliver(self):
        """Deliver what is due; return the seconds until something else is, or None."""
        now = time.monotonic()
        while self._on_their_way and self._on_their_way[0].due <= now:
            packet = heapq.heappop(self._on_their_way)
            os.write(self.tuns[packet.host], packet.data)
        return self._on_their_way[0].due - now if self._on_their_way else None


def open_tun(name):
    tun = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return tun


def main(addresses):
    switch = Switch(addresses)
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin, selectors.EVENT_READ)
    for host, tun in enumerate(switch.tuns):
        selector.register(tun, selectors.EVENT_READ, host)
    while True:
        for key, _ in selector.select(switch.deliver()):
            if key.fileobj is not sys.stdin:
                switch.take(key.data)
            elif line := sys.stdin.readline():
                switch.set(Conditions(**json.loads(line)))
                print(line, end="", flush=True)
            else:
                return


if __name__ == "__main__":
    main(sys.argv[1:])
