"""How a task learns of its cluster from a cluster manager: the dialects of `TF_CONFIG`.

Kubeflow's and Volcano's operators, SageMaker, Azure and TensorFlow's own estimator fill `TF_CONFIG`; custom containers
on Vertex have `CLUSTER_SPEC`. All of them have this form, and differ in the names of the jobs and in what they add:

    {"cluster": {JOB: [ADDRESS, ...], ...}, "task": {"type": JOB, "index": INDEX}}
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from runtime.cluster.task import Task
from runtime.process.errors import UnusableError

MANAGERS = ("TF_CONFIG", "CLUSTER_SPEC")  # environment variables
# What each job is here.
JOBS = {"chief": "chief", "evaluator": "evaluator", "master": "chief", "ps": "ps", "worker": "worker"}
JOBS |= {"workerpool0": "chief", "workerpool1": "worker", "workerpool2": "ps", "workerpool3": "evaluator"}


class Discovery(NamedTuple):
    """What a cluster manager says."""

    task: Task
    model_dir: str  # the default of --train_dir, or empty


def discover(environment: Mapping[str, str]) -> Discovery | None:
    """Read the cluster and the task from `TF_CONFIG` or `CLUSTER_SPEC`; return None if neither has a cluster.

    A chief, or master, becomes worker 0, and the other workers follow. An evaluator is not part of the cluster.

    Raises:
      UnusableError: the text is not JSON of this form, or the cluster in it is unusable.
    """
    for name in MANAGERS:
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
    for key, usable in (("session_master", ""), ("rpc_layer", "grpc")):
        check((config.get(key) or usable) == usable, f'"{key}": {config.get(key)!r}, expected {usable!r}')
    hosts = dict[str, list[str]]()
    for job, addresses in config["cluster"].items():
        quoted = f'"{job}": {json.dumps(addresses)}, expected'
        check(job in JOBS, f"the job {job!r}, expected one of {', '.join(JOBS)}")
        check(isinstance(addresses, list), f"{quoted} a list of all its addresses")
        check(JOBS[job] not in hosts, "both a chief and a master, expected one of them")
        check(JOBS[job] != "chief" or len(addresses) <= 1, f"{quoted} one address")
        hosts[JOBS[job]] = addresses
    check(bool(hosts.get("ps")), f"the jobs {', '.join(hosts)}, but no ps: at least one is needed")

    chiefs, task = hosts.get("chief", []), config["task"]
    job = JOBS.get(task["type"], task["type"])
    # The only task of its job needs no index; others have a number, or text.
    index = int(str(task.get("index", 0) if len(hosts.get(job, [])) == 1 else task["index"]))
    check(index >= 0, f"the index {index}, expected 0 or more")
    check(job != "chief" or index == 0 or not chiefs, f"the chief {index}, expected 0")
    if job == "worker":
        check(index < len(hosts.get(job, [])), f"the task worker {index}, but only {len(hosts.get(job, []))} workers")
        index += len(chiefs)
    job_name = "worker" if job == "chief" and chiefs else job
    task_here = Task(job_name, index, tuple(hosts["ps"]), (*chiefs, *hosts.get("worker", [])))
    return Discovery(task_here, str(config.get("model_dir") or ""))
