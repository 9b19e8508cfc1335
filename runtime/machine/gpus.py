"""Which GPUs of its host a task uses."""

import re
from collections.abc import Callable

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.task import Task, host_of
from runtime.errors import UnusableError


def is_valid(gpus: str) -> bool:
    """Return whether this is "auto", "none", or different numbers with commas between them."""
    if gpus in ("auto", "none"):
        return True
    numbers = gpus.split(",")
    return all(re.fullmatch("0|[1-9][0-9]*", number) for number in numbers) and len(set(numbers)) == len(numbers)


def count_gpus() -> int:
    """Return how many GPUs TensorFlow sees, as `CUDA_VISIBLE_DEVICES` allows; this takes no memory on them."""
    return len(tf.config.list_physical_devices("GPU"))


def choose_gpus(task: Task, gpus: str, count: Callable[[], int] = count_gpus) -> list[int]:
    """Return the numbers of the GPUs that a task uses: none for a ps, and for a worker its share of those of its host.

    The workers of a host take turns, in the order of their indices. If they are more than its GPUs, some share one.

    Args:
      task: the task.
      gpus: "auto" for all, "none", or the numbers of those that the workers of a host may use, such as "0,2".
      count: returns how many GPUs this host has; only called for a worker that may use one.

    Raises:
      UnusableError: the host lacks one of `gpus`.
    """
    if task.job_name == "ps" or gpus == "none":
        return []
    num_gpus = count()
    usable = list(range(num_gpus)) if gpus == "auto" else [int(number) for number in gpus.split(",")]
    if missing := [number for number in usable if number >= num_gpus]:
        raise UnusableError(
            f"--gpus={gpus}, but {task} finds {num_gpus} GPUs on its host: there is no GPU {missing[0]}"
        )
    if not usable:
        return []
    hosts = [host_of(address) for address in task.worker_hosts]
    place, num_workers = hosts[: task.index].count(hosts[task.index]), hosts.count(hosts[task.index])
    share = usable[place::num_workers] or [usable[place % len(usable)]]
    logging.info("%s: using GPU %s of %d", task, ", ".join(map(str, share)), num_gpus)
    return share
