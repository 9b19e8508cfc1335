"""Several hosts on this machine, and links between them that delay, lose and drop what is sent.

A host is a network namespace with a loopback interface and a TUN device; `switch.py` moves packets between the
devices. It takes no rights but those to open `/dev/net/tun`: all of it lies in a user namespace of its own.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys

from benchmarks.testbed import switch

PRIVATE = ["unshare", "--user", "--map-root-user", "--net"]
ENVIRONMENT = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}  # where ip is, for users other than root


def find_program(name):
    return shutil.which(name, path=ENVIRONMENT["PATH"])


def missing():
    """Return why there can be no `Network` here, or None."""
    for program in ("ip", "nsenter", "setpriv", "unshare"):
        if not find_program(program):
            return f"there is no {program}"
    attempt = subprocess.run(
        [*PRIVATE, "ip", "tuntap", "add", "tun0", "mode", "tun"], env=ENVIRONMENT, capture_output=True, text=True
    )
    return f"no /dev/net/tun in a user namespace ({attempt.stderr.strip()})" if attempt.returncode else None


class Network:
    """Hosts by number, from 0, each linked with each.

    As a context manager it ends with all its processes; they also end when this process does, in any way, since their
    standard input does.
    """

    def __init__(self, num_hosts):
        self._addresses = [f"10.0.0.{host + 1}" for host in range(num_hosts)]
        self._conditions = switch.Conditions()

    def __enter__(self):
        with contextlib.ExitStack() as children:
            self._owner = children.enter_context(start([*PRIVATE, "cat"]))  # of the user namespace
            in_private = _enter(self._owner)
            self._hosts = [
                children.enter_context(start([*in_private, "unshare", "--net", "cat"])) for _ in self._addresses
            ]
            command = [*in_private, sys.executable, switch.__file__, *self._addresses]
            self._switch = children.enter_context(start(command))
            for host in range(len(self._hosts)):
                self._connect(host)
            self._children = children.pop_all()
        return self

    def __exit__(self, *error):
        self._children.__exit__(*error)

    def _connect(self, host):
        """Give a host the switch's device for it, on which a packet may be as large as IP allows."""
        device = f"tun{host}"
        _ip(self._owner, f"link set {device} netns {self._hosts[host].pid}")
        _ip(
            self._hosts[host],
            "link set lo up",
            f"address add {self._addresses[host]}/24 dev {device}",
            f"link set {device} mtu {switch.MAX_PACKET_BYTES} txqueuelen 10000 up",
        )

    def address(self, host):
        return self._addresses[host]

    def pid(self, host):
        """Return a process that is on a host."""
        return self._hosts[host].pid

    def command(self, host):
        """Return what, before a program and its arguments, runs it on a host, as this child and no longer than us."""
        return [*_enter(self._hosts[host]), "setpriv", "--pdeathsig", "KILL"]

    def num_bytes(self, host):
        """Return how many bytes a host has sent and received."""
        command = [*_enter(self._hosts[host]), "cat", "/proc/net/dev"]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        (line,) = [line for line in lines if line.strip().startswith(f"tun{host}:")]
        fields = line.partition(":")[2].split()
        return int(fields[0]) + int(fields[8])

    def cut(self, host, other):
        """Drop what the two hosts send to each other, from now on."""
        self._set(cut=[*self._conditions.cut, sorted([host, other])])

    def heal(self, host, other):
        self._set(cut=[pair for pair in self._conditions.cut if pair != sorted([host, other])])

    def move(self, host):
        """Give a host another address in the place of its own, as after a lease of DHCP; what runs there goes on."""
        self._addresses[host] = f"10.0.0.{host + 101}"
        self._set(moved={**self._conditions.moved, self._addresses[host]: host})
        device = f"dev tun{host}"
        _ip(self._hosts[host], f"address flush {device}", f"address add {self._addresses[host]}/24 {device}")

    def capture(self, path):
        """Write everything that any host sends to a file, from now on."""
        self._set(capture=str(path))

    def set_delay(self, secs):
        """Let each packet take so long."""
        self._set(delay_secs=secs)

    def set_loss(self, probability):
        self._set(loss=probability)

    def set_bits_per_sec(self, bits_per_sec):
        """Limit what each host sends, and what it receives."""
        self._set(bits_per_sec=bits_per_sec)

    def _set(self, **changes):
        self._conditions = dataclasses.replace(self._conditions, **changes)
        _ask(self._switch, json.dumps(dataclasses.asdict(self._conditions)))


def start(command):
    """Start a child that repeats each line of its input, as `cat` and the switch do, and return it once it does."""
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
        text=True,
        start_new_session=True,  # the terminal's Ctrl-C is for the test
    )
    _ask(child, "{}")  # for the switch: the conditions are what they are by default
    return child


def _ask(child, line):
    """Send a line to a child, and return when it has repeated it."""
    child.stdin.write(f"{line}\n")
    child.stdin.flush()
    if child.stdout.readline() != f"{line}\n":
        raise subprocess.CalledProcessError(child.wait(), child.args)


def _enter(child):
    """Return what, before a command, runs it in the namespaces of a child."""
    return ["nsenter", f"--target={child.pid}", "--user", "--net", "--preserve-credentials"]


def _ip(child, *commands):
    """Run commands of ip in the namespaces of a child."""
    batch = [*_enter(child), "ip", "-batch", "-"]
    subprocess.run(batch, input="\n".join(commands), env=ENVIRONMENT, text=True, check=True)
