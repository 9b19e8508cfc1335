"""How many threads, which GPUs and which peers a task's server and sessions use."""

import contextlib
import glob
import math
import os
import pathlib
import re
from typing import NamedTuple

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.task import Task, host_of
from runtime.process import limits
from runtime.process.errors import UnusableError

NVIDIA_GPUS = "/dev/nvidia[0-9]*"  # a file for each that the host has, whether TensorFlow can use it or not
OVERLOOKED = "TensorFlow finds no GPU, though this host has one: install CUDA as docs/adopt.md says, or set --gpus=none"


class Connection(NamedTuple):
    """The server of this process, as `tf.Session` takes it."""

    target: str
    config: tf.ConfigProto

    def session(self, graph: tf.Graph | None = None) -> tf.Session:
        """Return a new session for `graph`, or for the default graph."""
        return tf.Session(self.target, graph=graph, config=self.config)


def is_gpu_list(gpus: str) -> bool:
    """Return whether this is "auto", "none", or different numbers with commas between them."""
    numbers = gpus.split(",")
    is_list = all(re.fullmatch("0|[1-9][0-9]*", number) for number in numbers) and len(set(numbers)) == len(numbers)
    return is_list or gpus in ("auto", "none")


def count_gpus() -> int:
    """Return how many GPUs TensorFlow sees, as `CUDA_VISIBLE_DEVICES` allows; this takes no memory on them."""
    return len(tf.config.list_physical_devices("GPU"))


def choose_gpus(task: Task, gpus: str) -> list[int]:
    """Return the numbers of the GPUs that a task uses: none for a ps, and for a worker its share of those of its host.

    The workers of a host take turns, in the order of their indices. If they are more than its GPUs, some share one.

    Args:
      task: the task.
      gpus: "auto" for all, "none", or the numbers of those that the workers of a host may use, such as "0,2".

    Raises:
      UnusableError: the host lacks one of `gpus`.
    """
    if task.job_name == "ps" or gpus == "none":
        return []
    num_gpus = count_gpus()
    usable = list(range(num_gpus)) if gpus == "auto" else [int(number) for number in gpus.split(",")]
    # Where the variable names no GPU first, all are hidden from this process, as for a job of Slurm that has none.
    is_hidden = not re.match(r"\s*(\d|GPU-|MIG-)", os.environ.get("CUDA_VISIBLE_DEVICES", "0"))
    is_overlooked = not num_gpus and not is_hidden and glob.glob(NVIDIA_GPUS)
    if missing := [number for number in usable if number >= num_gpus]:
        found = f"{task} finds {num_gpus} GPUs on its host: there is no GPU {missing[0]}"
        raise UnusableError(f"--gpus={gpus}, but {OVERLOOKED if is_overlooked else found}")
    if is_overlooked:
        logging.warning("%s: %s", task, OVERLOOKED)
    if not usable:
        return []
    hosts = [host_of(address) for address in task.worker_hosts]
    place, num_workers = hosts[: task.index].count(hosts[task.index]), hosts.count(hosts[task.index])
    share = usable[place::num_workers] or [usable[place % len(usable)]]
    logging.info("%s: using GPU %s of %d", task, ", ".join(map(str, share)), num_gpus)
    return share


def count_cores(root: pathlib.Path = pathlib.Path("/")) -> int:
    """Return how many cores this process may use, by its affinity, its Slurm job, and its cgroups below `root`.

    With more threads than that, a container's quota would be used up early in each period of 0.1 s.
    """
    cores: list[float] = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    with contextlib.suppress(KeyError, ValueError):  # not every Slurm confines a job to its cores
        cores.append(int(os.environ["SLURM_CPUS_ON_NODE"]))
    for folder in limits.cgroups(root):
        for files in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):  # of version 2, and of version 1
            with contextlib.suppress(OSError, ValueError):  # there is no quota, or it is "max"
                quota, period = map(int, " ".join((folder / file).read_text() for file in files).split())
                cores += [quota / period] * (quota > 0)
    return max(1, math.ceil(min(cores)))


def make_session_config(task: Task, gpus: str = "none") -> tf.ConfigProto:
    """Return the settings that the sessions of a task and its server share; `gpus` is the flag of that name."""
    own_gpus = choose_gpus(task, gpus)
    # A worker talks only to its servers, so its sessions need not wait for other workers.
    jobs = [] if task.only_serves else sorted({f"/job:{server.job_name}" for server in task.servers})
    # By default each process takes as many threads as there are cores, and lets them spin while they wait for work.
    num_threads = max(1, count_cores() // task.num_tasks_on_host)
    # Rewriting the graph would double the time of the first run, and make no later run faster.
    graph_options = tf.GraphOptions()
    graph_options.rewrite_options.disable_meta_optimizer = True
    return tf.ConfigProto(
        device_filters=[*jobs, task.device],
        intra_op_parallelism_threads=num_threads,
        inter_op_parallelism_threads=num_threads,
        experimental=tf.ConfigProto.Experimental(disable_thread_spinning=True),
        graph_options=graph_options,
        # An empty list would mean all GPUs. By default a task would also take all of their memory at once.
        device_count={"GPU": len(own_gpus)},
        gpu_options=tf.GPUOptions(allow_growth=True, visible_device_list=",".join(map(str, own_gpus))),
    )


def make_server_config(session_config: tf.ConfigProto) -> tf.ConfigProto:
    """Return the settings of a server: without filters, which it would add to those of any session with it."""
    config = tf.ConfigProto()
    config.CopyFrom(session_config)
    config.ClearField("device_filters")
    return config
