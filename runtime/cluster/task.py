"""The tasks of a cluster: which one this process is, and the addresses of the others."""

import contextlib
import dataclasses
import ipaddress
import re

from runtime.process.errors import UnusableError


@dataclasses.dataclass(frozen=True)
class Peer:
    """Another task, as this one sees it."""

    job_name: str
    index: int
    address: str  # host:port

    @property
    def device(self) -> str:
        """The device name of the task."""
        return f"/job:{self.job_name}/task:{self.index}"

    @property
    def name(self) -> str:
        """What the task is called, such as "ps 0"."""
        return f"{self.job_name} {self.index}"

    def __str__(self) -> str:
        return f"{self.name} at {self.address}"


@dataclasses.dataclass(frozen=True)
class Task:
    """One process of the cluster, and what it knows of the others.

    The clients are the workers that build a graph and train. Their graphs run on servers as well: the ps tasks and,
    in-graph, the other workers.

    Raises:
      UnusableError: an address is malformed or listed twice, or the lists have no such task.
    """

    job_name: str  # "ps" or "worker"; an "evaluator" is not part of the cluster, and has no address
    index: int
    ps_hosts: tuple[str, ...]  # host:port, by task index
    worker_hosts: tuple[str, ...]
    replication: str = "between_graph"  # each worker builds a graph; "in_graph": the chief builds one for all

    def __post_init__(self) -> None:
        for job_name, hosts in self.jobs.items():
            if not hosts:
                raise UnusableError(f"no {job_name} address is given: a cluster needs at least one")
            for address in hosts:
                _check_address(job_name, address)
        same = dict[tuple[str, int], list[str]]()  # whatever their spelling
        for address in self.ps_hosts + self.worker_hosts:
            same.setdefault((host_of(address), port_of(address)), []).append(address)
        if twice := next((addresses for addresses in same.values() if len(addresses) > 1), []):
            found = " and ".join(dict.fromkeys(twice))
            raise UnusableError(f"{found} is listed more than once: each task needs an address of its own")
        num_tasks = {"ps": len(self.ps_hosts), "worker": len(self.worker_hosts), "evaluator": 1}.get(self.job_name)
        if num_tasks is None:
            raise UnusableError(f"the job is {self.job_name!r}, expected ps, worker or evaluator")
        if not 0 <= self.index < num_tasks:
            raise UnusableError(f"{self.job_name} has no task {self.index}: the index must be below {num_tasks}")

    @property
    def jobs(self) -> dict[str, tuple[str, ...]]:
        """The addresses of each job, as `tf.train.ClusterSpec` takes them."""
        return {"ps": self.ps_hosts, "worker": self.worker_hosts}

    @property
    def is_chief(self) -> bool:
        """Whether this is worker 0, which initialises, saves, restores and evaluates the model."""
        return self.job_name == "worker" and self.index == 0

    @property
    def address(self) -> str:
        """This task's own host:port."""
        return self.jobs[self.job_name][self.index]

    @property
    def device(self) -> str:
        """This task's device name."""
        return f"/job:{self.job_name}/task:{self.index}"

    @property
    def num_tasks_on_host(self) -> int:
        """How many tasks of the cluster, with this one, have the host of this one's address."""
        hosts = [host_of(address) for address in self.ps_hosts + self.worker_hosts]
        return hosts.count(host_of(self.address))

    def others(self, job_name: str) -> list[Peer]:
        """Return the tasks of one job, without this one."""
        peers = (Peer(job_name, index, address) for index, address in enumerate(self.jobs[job_name]))
        return [peer for peer in peers if peer.address != self.address]

    @property
    def only_serves(self) -> bool:
        """Whether this task builds no graph, and only runs those of others: a ps and, in-graph, all but the chief."""
        return self.job_name == "ps" or self.index >= self.num_clients

    @property
    def num_clients(self) -> int:
        """How many workers, from the chief on, build a graph and train."""
        return 1 if self.replication == "in_graph" else len(self.worker_hosts)

    @property
    def batches_per_step(self) -> int:
        """How many batches a step of a client's graph has: its own or, in-graph, those of all workers."""
        return len(self.worker_hosts) // self.num_clients

    @property
    def clients(self) -> list[Peer]:
        """The other workers that build a graph and train."""
        return self.others("worker")[: self.num_clients - (not self.only_serves)]

    @property
    def servers(self) -> list[Peer]:
        """The other tasks that a client's graph uses: every ps and, in-graph, every worker."""
        has_towers = self.is_chief and self.batches_per_step > 1
        return [*self.others("ps"), *(self.others("worker") if has_towers else [])]

    @property
    def needed(self) -> list[Peer]:
        """The other tasks that this one cannot go on without: its servers, and the chief."""
        return [*self.servers, *(peer for peer in self.others("worker") if peer.index == 0)]

    @property
    def name(self) -> str:
        """What the task is called, such as "ps 0"."""
        return f"{self.job_name} {self.index}"

    def __str__(self) -> str:
        return self.name


def host_of(address: str) -> str:
    """Return the host of `host:port`, in the same words whatever its spelling; "localhost" if only it can reach it."""
    host = address.rpartition(":")[0].strip("[]").lower().removesuffix(".")
    with contextlib.suppress(ValueError):
        found = ipaddress.ip_address(host)
        found = getattr(found, "ipv4_mapped", None) or found
        return "localhost" if found.is_loopback else str(found)
    return "localhost" if "localhost" in host.split(".") else host


def has_name(address: str) -> bool:
    """Return whether the host of `host:port` has a name, which may lead elsewhere after a restart."""
    host = host_of(address)
    with contextlib.suppress(ValueError):
        return not ipaddress.ip_address(host)
    return host != "localhost"


def port_of(address: str) -> int:
    """Return the port of `host:port`."""
    return int(address.rpartition(":")[2])


def _check_address(job_name: str, address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        if host.startswith("["):
            ipaddress.IPv6Address(host.removeprefix("[").removesuffix("]"))
        else:
            host.encode("idna")  # as a socket will encode it
        is_host = bool(re.fullmatch(r"[^][\s:/@]+|\[[^][]*\]", host))
    except ValueError:
        is_host = False
    if not is_host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        examples = "10.0.0.5:2222, my_host:2222 or, for IPv6, [fd00::5]:2222"
        raise UnusableError(
            f"{job_name} address {address!r} is not host:port, such as {examples}: correct the host lists"
        )
