import pytest
import tensorflow.compat.v1 as tf
from absl.testing import flagsaver

import distributed
from runtime.cluster.task import Task
from runtime.updates import placement
from tests.test_distributed import build_graph


def bytes_by_ps(num_ps, *flags):
    """Return how many bytes each of `num_ps` ps tasks holds."""
    task = Task("worker", 0, tuple(f"ps:{port}" for port in range(1, num_ps + 1)), ("worker:1",))
    with flagsaver.flagsaver(), tf.Graph().as_default():
        distributed.FLAGS(["distributed.py", *flags])
        build_graph(task)
        return [placement.held_bytes(variables) for variables in placement.held_variables(num_ps)]


@pytest.mark.slow
@pytest.mark.parametrize("num_ps", [2, 4])
def test_only_partitions_balance_the_cnn(num_ps):
    flags = ["--model=cnn", "--sync_replicas", "--local_steps=2"]  # the mode with the smallest graph
    round_robin = bytes_by_ps(num_ps, *flags, "--ps_strategy=round_robin")
    greedy = bytes_by_ps(num_ps, *flags, "--ps_strategy=greedy")
    partitioned = bytes_by_ps(num_ps, *flags, "--ps_strategy=greedy", "--partition_bytes=100000")
    assert sum(round_robin) == sum(greedy) == sum(partitioned)
    assert max(round_robin) >= max(greedy) > 1.5 * max(partitioned)  # one weight is most of the model
    assert max(partitioned) < 1.25 * sum(partitioned) / num_ps
