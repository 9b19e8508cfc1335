import pytest
import tensorflow.compat.v1 as tf

import distributed
from runtime import cluster, placement
from tests.test_distributed import EXAMPLES


def build(set_flags, num_ps, strategy, partition_bytes, *flags):
    """Build a worker's graph, and return the bytes that each ps holds."""
    set_flags(*flags)
    task = cluster.Task("worker", 0, tuple(f"ps:{i + 1}" for i in range(num_ps)), ("worker:1",))
    device_setter = tf.train.replica_device_setter(
        worker_device=task.device,
        cluster=tf.train.ClusterSpec(task.jobs),
        ps_strategy=placement.make_strategy(strategy, num_ps),
    )
    partitioner = placement.make_partitioner(partition_bytes, num_ps)
    with tf.device(device_setter), tf.variable_scope("", partitioner=partitioner):
        distributed.build_training(task, EXAMPLES)
    return [sum(v.shape.num_elements() * v.dtype.size for v in held) for held in placement.held_variables(num_ps)]


@pytest.mark.parametrize(
    ("num_ps", "strategy", "partition_bytes", "expected"),
    [
        (2, "round_robin", None, [1912, 2052000]),
        (2, "greedy", None, [167128, 1886784]),
        (2, "greedy", 100_000, [1094608, 959304]),
        (4, "round_robin", None, [512, 1886400, 1400, 165600]),
        (4, "greedy", None, [13592, 4920, 1881800, 153600]),
        (4, "greedy", 100_000, [482792, 475200, 471920, 624000]),
    ],
)
def test_the_balance_of_the_cnn_is_that_of_the_readme(graph, set_flags, num_ps, strategy, partition_bytes, expected):
    assert build(set_flags, num_ps, strategy, partition_bytes, "--model=cnn") == expected
