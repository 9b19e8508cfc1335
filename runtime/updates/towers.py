"""Towers: replicas of the model on several devices, each with a part of the batch, whose gradients are averaged.

Over the GPUs of a worker this is multi-GPU training. Over the workers of a cluster it is in-graph replication, where
the chief builds one graph for all of them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from runtime.cluster.task import Task

REPLICATIONS = ("between_graph", "in_graph")

# Builds what is averaged, float32 tensors, from what the tower is given and the inputs of its examples, [n, ...].
Computation = Callable[[Any, tf.Tensor], Sequence[tf.Tensor]]


def average(devices: Sequence[str], compute: Computation, given: Any, inputs: tf.Tensor) -> list[tf.Tensor]:
    """Build, on this client, the average of what `compute` builds on each device for its part of the examples.

    Each example counts the same, wherever it is computed, so the number of devices does not change the result.

    Args:
      devices: of the towers.
      compute: builds averages over the examples whose inputs it gets.
      given: tensors, in any structure, that each tower gets: sent to a task once, and from there to its devices.
      inputs: of the examples of the batch, [b, ...].
    """
    if len(devices) == 1:
        with tf.device(devices[0]):
            return list(compute(given, inputs))
    num_examples = inputs.shape[0]
    num_towers = min(num_examples, len(devices))  # none without examples
    sizes = [(num_examples + tower) // num_towers for tower in range(num_towers)]
    arrived: dict[str, Any] = {}
    results = []
    for device, own_inputs in zip(devices, tf.split(inputs, sizes), strict=False):
        host = tf.DeviceSpec.from_string(device).replace(device_type="CPU", device_index=0).to_string()
        if host not in arrived:
            with tf.device(host):
                arrived[host] = tf.nest.map_structure(tf.identity, given)
        with tf.device(device), tf.name_scope("tower"):
            results.append(compute(arrived[host], own_inputs))
    with tf.device("/device:CPU:0"), tf.name_scope("average"):
        shares = [size / num_examples for size in sizes]
        return [
            tf.add_n([share * part for share, part in zip(shares, parts, strict=True)])
            for parts in zip(*results, strict=True)
        ]


def choose_devices(task: Task, config: tf.ConfigProto) -> list[str]:
    """Return where a client has towers: in-graph on each worker, else on each GPU in `config`, or one on all of it.

    Several CPUs in `config`, into which TensorFlow divides a processor, count like GPUs.
    """
    if task.batches_per_step > 1:
        return [f"/job:worker/task:{worker}" for worker in range(task.batches_per_step)]
    for kind in ("GPU", "CPU"):
        if (count := config.device_count.get(kind, 0)) > 1:
            return [f"{task.device}/device:{kind}:{number}" for number in range(count)]
    return [task.device]
