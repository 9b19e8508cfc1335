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

# The names of the jobs on Vertex.
WORKER_POOLS = {"workerpool0": "chief", "workerpool1": "worker", "workerpool2": "ps", "workerpool3": "evaluator"}
JOBS = {"chief", "master", "worker", "ps", "evaluator"}
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
            return _parse(name, text)
    return None


def _parse(name: str, text: str) -> Discovery | None:
    try:
        config = json.loads(text)
        if not config.get("cluster"):
            return None
        _check_keys(name, config)
        task = config["task"]
        jobs = {WORKER_POOLS.get(job, job): hosts for job, hosts in config["cluster"].items()}
        chief = _check_jobs(name, jobs)
        workers = [*jobs.get(chief, []), *jobs.get("worker", [])]
        job_name = WORKER_POOLS.get(task["type"], task["type"])
        index = _read_index(task, jobs.get(job_name, []))
        if job_name == chief and chief in jobs:
            job_name = "worker"
        elif job_name == "worker":
            index += len(jobs.get(chief, []))
        return Discovery(Task(job_name, index, tuple(jobs["ps"]), tuple(workers)), str(config.get("model_dir") or ""))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnusableError(
            f'{name} is not of the form {{"cluster": {{"ps": [...], "worker": [...]}}, "task": {{"type": "worker",'
            f' "index": 0}}}}: {error!r}'
        ) from error


def _check_keys(name: str, config: Mapping[str, Any]) -> None:
    if session_master := config.get("session_master"):
        raise UnusableError(f'{name} has "session_master": {session_master!r}: sessions connect to their own servers')
    if (rpc_layer := config.get("rpc_layer") or "grpc") != "grpc":
        raise UnusableError(f'{name} has "rpc_layer": {rpc_layer!r}, expected "grpc"')
    if unknown := sorted(set(config) - KNOWN_KEYS):
        logging.info("%s: ignoring %s", name, ", ".join(unknown))


def _check_jobs(name: str, jobs: Mapping[str, Any]) -> str:
    """Check that the jobs can train with parameter servers; return the name of the chief's job."""
    for job, hosts in jobs.items():
        if job not in JOBS:
            raise UnusableError(f"{name} has the job {job!r}, expected some of {', '.join(sorted(JOBS))}")
        if not isinstance(hosts, list):
            raise UnusableError(f'{name} has "{job}": {json.dumps(hosts)}, expected a list of all its addresses')
    if "chief" in jobs and "master" in jobs:
        raise UnusableError(f"{name} has both a chief and a master, expected one of them")
    chief = "master" if "master" in jobs else "chief"
    if len(jobs.get(chief, [])) > 1:
        raise UnusableError(f'{name} has "{chief}": {json.dumps(jobs[chief])}, expected one address')
    if not jobs.get("ps"):
        raise UnusableError(f"{name} has the jobs {', '.join(jobs)}, and no ps: this script needs one")
    return chief


def _read_index(task: Mapping[str, Any], hosts: list[str]) -> int:
    """Return the index of a task: a number, as text too, or none where its job has one task alone."""
    index = task["index"] if len(hosts) != 1 else task.get("index", 0)
    if isinstance(index, str):
        index = int(index)
    if type(index) is not int or index < 0:
        raise TypeError(f"the index is {index!r}")
    return index
