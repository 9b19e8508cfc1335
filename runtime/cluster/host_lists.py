"""The host lists that a task was given, and how they differ from those of another one."""

import functools
import hashlib
import json
from collections.abc import Mapping

from runtime.cluster.task import Peer, Task, host_of

PROTOCOL = 12  # what the tasks of one cluster must speak alike; raised when what crosses the network changes


class HostLists:
    """The host lists that one task was given, with what else all tasks must have alike."""

    def __init__(self, task: str, given: Mapping[str, str]):
        """Be those of a task such as "worker 0": `given` has them by name, such as "ps_hosts[0]"."""
        self.task, self.given = task, given

    @classmethod
    def of(cls, task: Task) -> "HostLists":
        """Return those of this process, which is `task`."""
        hosts = {f"{job}_hosts[{index}]": host for job in task.jobs for index, host in enumerate(task.jobs[job])}
        return cls(task.name, {"protocol": str(PROTOCOL), **hosts, "replication": task.replication})

    @classmethod
    def parse(cls, text: str, owner: Peer | Task) -> "HostLists":
        """Read what `write()` has returned; what another version has written is of `owner`, which was given nothing."""
        try:
            task, given = json.loads(text)
            return cls(str(task), {str(name): str(value) for name, value in dict(given).items()})
        except (ValueError, TypeError, RecursionError):
            return cls(owner.name, {})

    def write(self) -> str:
        """Return them as text."""
        return json.dumps([self.task, self.given])

    def digest_of(self, task: Peer | Task) -> str:
        """Return a short text that tells them from others, and `task` from other tasks."""
        return f"{self._digest} {task.name}"

    @functools.cached_property
    def _digest(self) -> str:
        return hashlib.sha256(json.dumps(self.given).encode()).hexdigest()[:16]

    def hosts(self) -> list[str]:
        """Return the addresses of all tasks."""
        return [host for name, host in self.given.items() if "_hosts[" in name]

    def is_stranger_to(self, other: "HostLists", peer: Peer | Task) -> bool:
        """Return whether these belong to two clusters that meet at the address of `peer`: no other one is in both."""
        mine, theirs, meeting = (
            {(host_of(address), address.rpartition(":")[2]) for address in addresses}  # whatever their spelling
            for addresses in (self.hosts(), other.hosts(), [peer.address])
        )
        return mine & theirs <= meeting

    def is_elsewhere(self, peer: Peer | Task, other: "HostLists") -> bool:
        """Return whether the address of `peer` leads to another cluster, or to another task of this one.

        Those of another version of this program may have no hosts.
        """
        is_other_task = other.given == self.given and other.task != peer.name
        return bool(other.hosts()) and (is_other_task or self.is_stranger_to(other, peer))

    def describe_use(self, other: "HostLists") -> str:
        """Return who uses an address that this task takes for that of another one: the task that was given `other`."""
        if other.given == self.given:
            return f"that address is used by {other.task} of this cluster"
        return f"that address is used by another cluster, that of {other.task} with {', '.join(other.hosts())}"

    def describe_difference(self, peer: Peer | Task, other: "HostLists") -> str:
        """Return why this task cannot go on with the one that it expects `peer` to be, and what to do, or ""."""
        names = [name for name in {**self.given, **other.given} if self.given.get(name) != other.given.get(name)]
        if "protocol" not in names and self.is_elsewhere(peer, other):
            remedy = "give each cluster its own ports, or all tasks of one cluster the same host lists"
            if not names:
                remedy = "correct the host lists, or how this host resolves that name"
            return f"{self.task} expects {peer}, but {self.describe_use(other)}: {remedy}"
        if not names:
            return ""
        name = names[0]
        mine, theirs = self.given.get(name, "nothing"), other.given.get(name, "nothing")
        remedy = "run the same version of this program everywhere" if name == "protocol" else "give all tasks the same"
        return f"{self.task} was given {mine} as {name}, but {other.task} was given {theirs}: {remedy}"
