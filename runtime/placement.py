"""Which ps holds which variable."""

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf
from absl import logging

from runtime import cluster

PS_STRATEGIES = ("round_robin", "greedy")


def make_strategy(name: str, num_ps: int) -> Callable[[tf.Operation], int] | None:
    """Return one of `PS_STRATEGIES`, as `tf.train.replica_device_setter` takes it."""
    return _Greedy(num_ps) if name == "greedy" else None  # which is TensorFlow's own, in turn


class _Greedy:
    """Puts each variable on the ps that has the fewest bytes so far; its optimizer's slots go with it.

    TensorFlow 1 had it in contrib, as GreedyLoadBalancingStrategy.
    """

    def __init__(self, num_ps: int):
        self._bytes = [0] * num_ps

    def __call__(self, op: tf.Operation) -> int:
        ps = self._bytes.index(min(self._bytes))
        self._bytes[ps] += tf.TensorShape(op.get_attr("shape")).num_elements() * op.get_attr("dtype").size
        return ps


def make_partitioner(partition_bytes: int | None, num_ps: int) -> Callable[..., Any] | None:
    """Return what splits a variable of more than `partition_bytes` by its first dimension, into `num_ps` at most."""
    return tf.variable_axis_size_partitioner(partition_bytes, max_shards=num_ps) if partition_bytes else None


def held_variables(num_ps: int) -> list[list[tf.Variable]]:
    """Return what lies on each ps: the global step, parameters and optimizer slots."""
    held: list[list[tf.Variable]] = [[] for _ in range(num_ps)]
    for variable in tf.global_variables():
        held[tf.DeviceSpec.from_string(variable.device).task].append(variable)
    return held


def log(task: cluster.Task) -> None:
    """Log how much lies on each ps."""
    for ps, variables in enumerate(held_variables(len(task.ps_hosts))):
        num_bytes = sum(variable.shape.num_elements() * variable.dtype.size for variable in variables)
        logging.info("%s: ps %d holds %d variables, %d bytes", task, ps, len(variables), num_bytes)
