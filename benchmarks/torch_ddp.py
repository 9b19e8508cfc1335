"""PyTorch's `DistributedDataParallel` on gloo: two processes, which average each step's gradients.

A global step is one batch of each.
"""

import os

import torch
from absl import app
from torch import distributed

import launch
import measure
import torch_mnist
from runtime import ports


def main(_: object) -> None:
    """Train as the process of `RANK`, or start both."""
    if "RANK" not in os.environ:
        world = {
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(ports.choose_ports(1)[0]),
            "WORLD_SIZE": str(measure.NUM_WORKERS),
            "GLOO_SOCKET_IFNAME": "lo",  # else it looks for an interface by the host's name
        }
        ranks = [str(rank) for rank in range(measure.NUM_WORKERS)]
        print(launch.run([launch.Child(f"rank {rank}", env={**world, "RANK": rank}) for rank in ranks])[0])
        return

    distributed.init_process_group("gloo")
    train(distributed.get_rank())
    distributed.destroy_process_group()


def train(rank: int) -> None:
    """Train, and print the result as rank 0."""
    # Without buffers there is nothing to broadcast; views save a copy of the gradients.
    model = torch.nn.parallel.DistributedDataParallel(
        torch_mnist.make_model(), broadcast_buffers=False, gradient_as_bucket_view=True
    )
    examples = measure.load_train(rank, measure.NUM_WORKERS)
    measure.train(
        torch_mnist.make_step(model, examples, stream=rank),
        lambda: torch_mnist.read_parameters(model),
        examples_per_step=measure.NUM_WORKERS * measure.BATCH_SIZE,
        is_measuring=rank == 0,
    )


if __name__ == "__main__":
    app.run(main)
