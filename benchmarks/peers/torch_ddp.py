"""PyTorch's `DistributedDataParallel` on gloo: two processes, which average the gradients of each step.

A global step is one batch of each.
"""

import os
from collections.abc import Callable

import torch
from absl import app
from torch import distributed

from benchmarks.peers import launch, measure, problem, torch_mnist
from runtime.launch import ports


def run(train: Callable[[int], None]) -> None:
    """Call `train` with the rank of this process, in `RANK`; without one, start all processes."""
    if "RANK" not in os.environ:
        world = {
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(ports.choose_ports(1)[0]),
            "WORLD_SIZE": str(problem.NUM_WORKERS),
            "GLOO_SOCKET_IFNAME": "lo",  # otherwise gloo looks for an interface by the host's name
        }
        ranks = [str(rank) for rank in range(problem.NUM_WORKERS)]
        print(launch.run([launch.Child(f"rank {rank}", env={**world, "RANK": rank}) for rank in ranks])[0])
        return

    distributed.init_process_group("gloo")
    train(distributed.get_rank())
    distributed.destroy_process_group()


def train(rank: int) -> None:
    """Train, and print the result as rank 0."""
    examples = torch_mnist.load_train(rank, problem.NUM_WORKERS)
    clock = measure.make_clock(problem.NUM_WORKERS * problem.BATCH_SIZE)
    # Without buffers there is nothing to broadcast; views save a copy of the gradients.
    model = torch.nn.parallel.DistributedDataParallel(
        torch_mnist.make_model(), broadcast_buffers=False, gradient_as_bucket_view=True
    )
    measure.train(
        clock,
        torch_mnist.make_step(model, examples, stream=rank),
        lambda: torch_mnist.read_parameters(model),
        is_measuring=rank == 0,
    )


if __name__ == "__main__":
    app.run(lambda _: run(train))
