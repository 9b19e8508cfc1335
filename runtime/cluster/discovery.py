"""How a task learns of its cluster from a cluster manager: the dialects of `TF_CONFIG`.

Kubeflow's and Volcano's operators, SageMaker, Azure and TensorFlow's own estimator fill `TF_CONFIG`; custom containers
on Vertex have `CLUSTER_SPEC`. All of them have this form, and differ in the names of the jobs and in what they add:

    {"cluster": {JOB: [ADDRESS, ...], ...}, "task": {"type": JOB, "index": INDEX}}
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from absl import logging

from runtime.cluster.task import Task
from runtime.errors import UnusableError

# What each job is here.
JOBS = {job: job for job in ("chief", "worker", "ps", "evaluator")} | {"master": "chief"}
WORKER_POOLS = {"workerpool0": "chief", "workerpool1": "worker", "workerpool2": "ps", "workerpool3": "evaluator"}
KNOWN_KEYS = {"cluster", "task", "model_dir", "session_master", "rpc_layer", "environment", "job"}


class Discovery(NamedTuple):
    """What a cluster manager says."""

    task: Task
    model_dir: str  # the default of --train_dir, or empty


def discover(environment: Mapping[str, str]) -> Discovery | None:
    """Read the cluster and the task from `TF_CONFIG` or `CLUSTER_SPEC`; return None if neither has a cluster.

    A chief, or master, becomes worker 0, and the other workers follow. An evaluator is no part of the cluster.

    Raises:
      UnusableError: the text is not JSON of this form, or the cluster in it is unusable.
    """
    for name in ("TF_CONFIG", "CLUSTER_SPEC"):
        if text := environment.get(name, "").strip():
            try:
                return _parse(name, json.loads(text))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise UnusableError(
                    f'{name} is not of the form {{"cluster": {{"ps": [...], "worker": [...]}}, "task": {{"type":'
                    f' "worker", "index": 0}}}}: {error!r}'
                ) from error
    return None


def _parse(name: str, config: Mapping[str, Any]) -> Discovery | None:
    def check(is_usable: bool, found: str) -> None:
        if not is_usable:
            raise UnusableError(f"{name} has {found}")

    if not config.get("cluster"):
        return None
    master, rpc_layer = config.get("session_master"), config.get("rpc_layer") or "grpc"
    check(not master, f'"session_master": {master!r}: sessions connect to their own servers')
    check(rpc_layer == "grpc", f'"rpc_layer": {rpc_layer!r}, expected "grpc"')
    if unknown := sorted(set(config) - KNOWN_KEYS):
        logging.info("%s: ignoring %s", name, ", ".join(unknown))

    known, hosts = JOBS | WORKER_POOLS, dict[str, list[str]]()
    for job, addresses in config["cluster"].items():
        quoted = f'"{job}": {json.dumps(addresses)}, expected'
        check(job in known, f"the job {job!r}, expected some of {', '.join(sorted(JOBS))}")
        check(isinstance(addresses, list), f"{quoted} a list of all its addresses")
        check(known[job] not in hosts, "both a chief and a master, expected one of them")
        check(known[job] != "chief" or len(addresses) <= 1, f"{quoted} one address")
        hosts[known[job]] = addresses
    check(bool(hosts.get("ps")), f"the jobs {', '.join(hosts)}, and no ps: this script needs one")

    chiefs = hosts.get("chief", [])
    job = known.get(config["task"]["type"], config["task"]["type"])
    index = _read_index(config["task"], hosts.get(job, []))
    if job == "worker":
        index += len(chiefs)
    job_name = "worker" if job == "chief" and "chief" in hosts else job
    task = Task(job_name, index, tuple(hosts["ps"]), (*chiefs, *hosts.get("worker", [])))
    return Discovery(task, str(config.get("model_dir") or ""))


def _read_index(task: Mapping[str, Any], hosts: list[str]) -> int:
    """Return the index of a task: a number, as text too, or none where its job has one task alone."""
    index = task["index"] if len(hosts) != 1 else task.get("index", 0)
    if isinstance(index, str):
        index = int(index)
    if type(index) is not int or index < 0:
        raise TypeError(f"the index is {index!r}")
    return index
