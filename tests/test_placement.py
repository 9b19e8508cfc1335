import pytest
import tensorflow.compat.v1 as tf
from absl.testing import flagsaver

import distributed
from runtime.cluster.task import Task
from runtime.updates import placement
from tests.test_distributed import build_training


def bytes_by_ps(num_ps, *flags):
    """Return how many bytes each of `num_ps` ps tasks holds."""
    task = Task("worker", 0, tuple(f"ps:{port}" for port in range(1, num_ps + 1)), ("worker:1",))
    with flagsaver.flagsaver(), tf.Graph().as_default():
        distributed.FLAGS(["distributed.py", *flags])
        build_training(task)
        return [placement.held_bytes(variables) for variables in placement.held_variables(num_ps)]


@pytest.mark.parametrize(
    ("num_ps", "flags", "expected"),
    [
        (2, ["--ps_strategy=round_robin"], [1912, 2052000]),
        (2, ["--ps_strategy=greedy"], [167128, 1886784]),
        (2, ["--ps_strategy=greedy", "--partition_bytes=100000"], [1094608, 959304]),
        (4, ["--ps_strategy=round_robin"], [512, 1886400, 1400, 165600]),
        (4, ["--ps_strategy=greedy"], [13592, 4920, 1881800, 153600]),
        (4, ["--ps_strategy=greedy", "--partition_bytes=100000"], [482792, 475200, 471920, 624000]),
    ],
)
def test_the_balance_of_the_cnn(num_ps, flags, expected):
    assert bytes_by_ps(num_ps, "--model=cnn", *flags) == expected
