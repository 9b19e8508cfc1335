"""The contenders of the comparison, how each may be set, and how one of them is run."""

import json
import pathlib
import re
import sys
import tempfile
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from benchmarks.report import PROJECT
from benchmarks.testbed.processes import Process, poll_for
from runtime.launch.ports import choose_ports

NUM_PS, NUM_WORKERS = 1, 2
TIMEOUT_SECS = 600.0
ENDING_SECS = 60.0  # for tasks that end by themselves, after the result
OUR_FLAGS = ("--lr_schedule=one_cycle", "--optimizer=nesterov")  # the peers have no others
WATCHED = ("--train_steps", "--sync_replicas", "--model", "--ps_strategy")  # what a watcher has to know


class Setting(NamedTuple):
    """What tuning chooses; all have Nesterov's momentum in one cycle of the learning rate."""

    learning_rate: float  # the greatest
    num_batches: int  # of all workers, until training ends
    variant: str = ""  # one of the contender's

    def __str__(self) -> str:
        """Return a cell of a table."""
        variant = f", `{self.variant}`" if self.variant else ""
        return f"nesterov {self.learning_rate:g}, one cycle of {self.num_batches} batches{variant}"


class Contender(NamedTuple):
    """A way to train."""

    name: str
    peer: str  # a module of benchmarks.peers
    batches_per_step: int = 1  # of all workers, in a global step
    flags: tuple[str, ...] = ()
    variants: tuple[str, ...] = ("",)  # flags of which tuning chooses one, and that it begins with


LOCAL_STEPS = tuple(f"--local_steps={number}" for number in (64, 32, 128, 16))
THREADS = tuple(f"--num_threads={number}" for number in (1, 2))
MIRRORED, PARAMETER_SERVER = "--strategy=mirrored", "--strategy=parameter_server"
OURS, OURS_ASYNC = "this script, averaging at intervals", "this script, asynchronous"
CLASSIC, DDP = "the classic TensorFlow 1 script", "PyTorch, DistributedDataParallel"
XLA, TORCH = "TensorFlow with XLA, one process", "PyTorch, one process"

# Those that one wants to compare run one after the other, because a shared machine changes within a round, too.
CONTENDERS = [
    Contender(OURS, "watch", 2, ("--sync_replicas",), LOCAL_STEPS),
    Contender("PyTorch, averaging at intervals", "pytorch", 2, variants=LOCAL_STEPS),
    Contender(XLA, "tensorflow2", 1, ("--steps_per_call=64", "--jit_compile"), THREADS),
    Contender(TORCH, "pytorch", variants=THREADS),
    Contender(DDP, "pytorch", 2),
    Contender("this script, synchronous", "watch", 2, ("--sync_replicas",)),
    Contender(OURS_ASYNC, "watch"),
    Contender("this script, asynchronous, at intervals", "watch", variants=LOCAL_STEPS),
    Contender(CLASSIC, "classic"),
    Contender("TensorFlow, ParameterServerStrategy", "tensorflow2", 1, (PARAMETER_SERVER,)),
    Contender("TensorFlow, MultiWorkerMirroredStrategy", "tensorflow2", 2, (MIRRORED,)),
]
BY_NAME = {contender.name: contender for contender in CONTENDERS}


class Role(NamedTuple):
    """A process of a contender: its command, and what it finds in its environment beside a user's own."""

    command: list[str]
    env: Mapping[str, str] = MappingProxyType({})
    ends_itself: bool = False


def make_flags(contender: Contender, setting: Setting, seed: int) -> list[str]:
    """Return the flags of a run: those that every contender understands, and its own."""
    variant = [setting.variant] if setting.variant else []
    return [
        *contender.flags,
        *variant,
        *(OUR_FLAGS if contender.peer == "watch" else ()),
        f"--learning_rate={setting.learning_rate:g}",
        f"--train_steps={setting.num_batches // contender.batches_per_step}",
        f"--seed={seed}",
    ]


def make_roles(
    contender: Contender,
    flags: list[str],
    num_ps: int = NUM_PS,
    num_workers: int = NUM_WORKERS,
    snapshot_secs: float = 0.05,
) -> dict[str, Role]:
    """Return the processes of a run by name; the first of them measures."""
    peer = [sys.executable, "-m", "benchmarks.peers", contender.peer]
    snapshots = f"--snapshot_secs={snapshot_secs}"
    chief, *others = [f"localhost:{port}" for port in choose_ports(1 + num_ps + num_workers)]
    ps, workers = others[:num_ps], others[num_ps:]
    hosts = [f"--ps_hosts={','.join(ps)}", f"--worker_hosts={','.join(workers)}"]
    tasks = {f"worker {index}": [*hosts, "--job_name=worker", f"--task_index={index}"] for index in range(num_workers)}
    tasks |= {f"ps {index}": [*hosts, "--job_name=ps", f"--task_index={index}"] for index in range(num_ps)}
    if contender.peer == "watch":
        script = [sys.executable, "distributed.py", *flags]
        watched = [flag for flag in flags if flag.partition("=")[0] in WATCHED]
        roles = {"watcher": Role([*peer, *hosts, *watched, snapshots])}
        return roles | {name: Role([*script, *task], ends_itself=True) for name, task in tasks.items()}
    peer += [*flags, snapshots]
    if contender.peer == "classic":
        # TensorFlow's default, whoever measures: the script waits for workers that are not there yet.
        return {name: Role([*peer, *task], {"GRPC_FAIL_FAST": "use_caller"}) for name, task in tasks.items()}
    if contender.peer == "pytorch" and contender.batches_per_step > 1:
        host, port = chief.split(":")
        world = {"MASTER_ADDR": host, "MASTER_PORT": port, "WORLD_SIZE": str(num_workers)}
        world["GLOO_SOCKET_IFNAME"] = "lo"  # otherwise gloo looks for an interface by the host's name
        return {f"rank {rank}": Role(peer, world | {"RANK": str(rank)}) for rank in range(num_workers)}
    if MIRRORED in flags:
        return _with_tf_config(peer, {"worker": workers})
    if PARAMETER_SERVER in flags:
        # The guide demands the variable of every task.
        return _with_tf_config(peer, {"chief": [chief], "ps": ps, "worker": workers}, GRPC_FAIL_FAST="use_caller")
    return {"process": Role(peer)}


def _with_tf_config(command: list[str], cluster: dict[str, list[str]], **env: str) -> dict[str, Role]:
    roles = {}
    for job, addresses in cluster.items():
        for index in range(len(addresses)):
            config = json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})
            roles[f"{job} {index}"] = Role(command, env | {"TF_CONFIG": config})
    return roles


def train(contender: Contender, setting: Setting, seed: int) -> dict[str, Any]:
    """Train once, and return the result that the measuring process prints."""
    print(f"{contender.name}, {setting}, seed {seed}: ", end="", flush=True)
    result = run(make_roles(contender, make_flags(contender, setting, seed)))
    print(result, flush=True)
    return result


def run(roles: dict[str, Role]) -> dict[str, Any]:
    """Run processes until the first has its result; end those that do not end by themselves. A failure is an error."""
    with tempfile.TemporaryDirectory() as folder:
        processes: dict[str, Process] = {}
        try:
            for name, role in roles.items():
                processes[name] = Process(role.command, pathlib.Path(folder, name), role.env, PROJECT)
            first, *others = processes.values()
            poll_for(lambda: not first.is_running() or any(other.status for other in others), "result", TIMEOUT_SECS)
            for name, role in roles.items():
                if role.ends_itself and not first.status:
                    processes[name].wait(ENDING_SECS)
                if processes[name].status:
                    output = processes[name].output()[-2000:]
                    sys.exit(f"error: {name} has ended with status {processes[name].status}:\n{output}")
            return dict(json.loads(re.findall(r"^\{.*\}$", first.output(), re.MULTILINE)[-1]))
        finally:
            for process in processes.values():
                process.kill()
