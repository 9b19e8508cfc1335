"""Which ps holds which variable."""

from collections.abc import Callable

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.task import Task
from runtime.records import events

PS_STRATEGIES = ("round_robin", "greedy")


def make_strategy(name: str, num_ps: int) -> Callable[[tf.Operation], int] | None:
    """Return one of `PS_STRATEGIES`, as `tf.train.replica_device_setter` takes it: None is its own, round robin.

    The greedy one puts each variable on the ps that has the fewest bytes so far; its optimizer slots go with it.
    TensorFlow 1 had this in contrib, as GreedyLoadBalancingStrategy.
    """
    num_bytes = [0] * num_ps

    def choose_ps(op: tf.Operation) -> int:
        ps = num_bytes.index(min(num_bytes))
        num_bytes[ps] += tf.TensorShape(op.get_attr("shape")).num_elements() * op.get_attr("dtype").size
        return ps

    return choose_ps if name == "greedy" else None


def held_variables(num_ps: int) -> list[list[tf.Variable]]:
    """Return the variables on each ps: the global step, parameters and optimizer slots."""
    held: list[list[tf.Variable]] = [[] for _ in range(num_ps)]
    for variable in tf.global_variables():
        held[tf.DeviceSpec.from_string(variable.device).task].append(variable)
    return held


def held_bytes(variables: list[tf.Variable]) -> int:
    """Return the size of `variables`."""
    return sum(variable.shape.num_elements() * variable.dtype.size for variable in variables)


def log_placement(task: Task) -> None:
    """Log how much each ps holds, if `task` is the chief."""
    if not task.is_chief:
        return
    for ps, variables in enumerate(held_variables(len(task.ps_hosts))):
        plural = "s" * (len(variables) != 1)
        logging.info("%s: ps %d holds %d variable%s, %d bytes", task, ps, len(variables), plural, held_bytes(variables))
        names = [variable.op.name for variable in variables]
        events.record("placement", ps=ps, variables=names, num_bytes=held_bytes(variables))
