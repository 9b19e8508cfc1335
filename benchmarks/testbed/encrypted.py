"""Hosts of a network that are also in a WireGuard network of their own, made with `deploy/wireguard.conf`."""

import pathlib
import re
import subprocess
import tempfile

from benchmarks.testbed import network

CONFIGURATION = pathlib.Path(__file__).parents[2] / "deploy" / "wireguard.conf"
# In namespaces of its own, so that its processes end with the first of them, and its files do not meet another host's.
NAMESPACES = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
START = 'mount -t tmpfs tmpfs /run && wg-quick up "$0" >&2 && exec cat'


def missing():
    """Return why there can be no `EncryptedNetwork` here, or None."""
    for program in ("wg", "wg-quick", "wireguard-go", "iptables", "ip6tables"):
        if not network.find_program(program):
            return f"there is no {program}"
    return network.missing()


class EncryptedNetwork(network.Network):
    """Hosts that reach each other through WireGuard; the last `num_outsiders` of them are not let in.

    What an outsider lacks is only that the others know its key.
    """

    def __init__(self, num_hosts, num_outsiders=0):
        super().__init__(num_hosts)
        self._num_hosts, self._num_members = num_hosts, num_hosts - num_outsiders

    def __enter__(self):
        super().__enter__()
        try:
            self._folder = pathlib.Path(self._children.enter_context(tempfile.TemporaryDirectory()))
            keys = [_run("wg", "genkey") for _ in range(self._num_hosts)]
            self._public_keys = [_run("wg", "pubkey", stdin=key) for key in keys]
            self._started = []
            for host, key in enumerate(keys):
                self._start_wireguard(host, key)
        except BaseException:
            self.__exit__()
            raise
        return self

    def address(self, host):
        """Return the address of a host within WireGuard."""
        return f"10.9.0.{host + 1}"

    def open_address(self, host):
        """Return the address that a host has without WireGuard."""
        return super().address(host)

    def _start_wireguard(self, host, private_key):
        interface, peer = re.split(r"(?=^\[Peer\])", CONFIGURATION.read_text(), flags=re.MULTILINE)
        text = _fill(interface, PrivateKey=private_key, Address=f"{self.address(host)}/24")
        for other in range(self._num_members):
            if other != host:
                text += _fill(
                    peer,
                    PublicKey=self._public_keys[other],
                    Endpoint=f"{self.open_address(other)}:51820",
                    AllowedIPs=f"{self.address(other)}/32",
                )
        path = self._folder / str(host) / "mnist.conf"
        path.parent.mkdir()
        path.touch(mode=0o600)
        path.write_text(text)
        command = [*self.command(host), *NAMESPACES, "sh", "-c", START, str(path)]
        self._started.append(self._children.enter_context(network.start(command)))

    def restart(self, host):
        """Take a host out of WireGuard, and in again."""
        path = str(self._folder / str(host) / "mnist.conf")
        namespaces = f"/proc/{self._started[host].pid}/ns"
        enter = ["nsenter", f"--mount={namespaces}/mnt", f"--pid={namespaces}/pid_for_children"]
        for action in ("down", "up"):
            subprocess.run([*self.command(host), *enter, "wg-quick", action, path], env=network.ENVIRONMENT, check=True)


def _fill(section, **values):
    """Give lines of a section other values."""
    for name, value in values.items():
        section, count = re.subn(rf"^{name} = .*", f"{name} = {value}", section, flags=re.MULTILINE)
        assert count == 1, f"{CONFIGURATION} has {count} lines of {name}"
    return section


def _run(*command, stdin=""):
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=True).stdout.strip()
