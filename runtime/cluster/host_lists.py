"""The host lists that a task was given, and how they differ from those of another one."""

import functools
import hashlib
import json
from collections.abc import Mapping

from runtime.cluster.task import Task

PROTOCOL = 11  # what the tasks of one cluster must speak alike; raised when what crosses the network changes


class HostLists:
    """The host lists that one task was given, with what else all tasks must have alike."""

    def __init__(self, task: str, given: Mapping[str, str]):
        """Be those of a task such as "worker 0": `given` has them by name, such as "ps_hosts[0]"."""
        self.task, self.given = task, given

    @classmethod
    def of(cls, task: Task) -> "HostLists":
        """Return those of this process, which is `task`."""
        hosts = {f"{job}_hosts[{index}]": host for job in task.jobs for index, host in enumerate(task.jobs[job])}
        return cls(str(task), {"protocol": str(PROTOCOL), **hosts, "replication": task.replication})

    @classmethod
    def parse(cls, text: str, owner: object) -> "HostLists":
        """Read what `write()` has returned; what another version has written is of `owner`, which was given nothing."""
        try:
            task, given = json.loads(text)
            return cls(str(task), {str(name): str(value) for name, value in dict(given).items()})
        except (ValueError, TypeError, RecursionError):
            return cls(str(owner), {})

    def write(self) -> str:
        """Return them as text."""
        return json.dumps([self.task, self.given])

    @functools.cached_property
    def digest(self) -> str:
        """A short text that tells them from others, whichever task was given them."""
        return hashlib.sha256(json.dumps(self.given).encode()).hexdigest()[:16]

    def hosts(self) -> list[str]:
        """Return the addresses of all tasks."""
        return [host for name, host in self.given.items() if "_hosts[" in name]

    def is_stranger_to(self, other: "HostLists") -> bool:
        """Return whether these belong to two clusters that meet at one address: no other address is in both."""
        return len({*self.hosts()} & {*other.hosts()}) <= 1

    def describe_use(self) -> str:
        """Return what another cluster is told of an address of this one that it takes for its own."""
        return f"that address is used by another cluster, that of {self.task} with {', '.join(self.hosts())}"

    def describe_difference(self, peer: object, other: "HostLists") -> str:
        """Return why this task cannot go on with the one that it expects `peer` to be, and what to do, or ""."""
        names = [name for name in {**self.given, **other.given} if self.given.get(name) != other.given.get(name)]
        if not names:
            return ""
        if "protocol" not in names and self.is_stranger_to(other):
            return (
                f"{self.task} expects {peer}, but {other.describe_use()}: give one of the two clusters another port, or"
                " all tasks of one the same host lists"
            )
        name = names[0]
        mine, theirs = self.given.get(name, "nothing"), other.given.get(name, "nothing")
        remedy = "run the same version of this program everywhere" if name == "protocol" else "give all tasks the same"
        return f"{self.task} was given {mine} as {name}, but {other.task} was given {theirs}: {remedy}"
