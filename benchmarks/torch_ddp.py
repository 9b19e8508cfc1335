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
    optimizer = torch_mnist.make_optimizer(model)
    batches = torch_mnist.batches(measure.load_train(rank, measure.NUM_WORKERS), stream=rank)
    loss_function = torch.nn.CrossEntropyLoss()
    clock = measure.Clock(measure.NUM_WORKERS * measure.BATCH_SIZE)
    for step in range(1, measure.FLAGS.train_steps + 1):
        images, labels = next(batches)
        optimizer.zero_grad()
        loss_function(model(images), labels).backward()
        optimizer.step()
        if step == 1:
            clock.start(step)
        elif rank == 0 and clock.is_due():
            clock.keep(step, torch_mnist.read_parameters(model))
    clock.stop(step)
    if rank == 0:
        clock.print_result(torch_mnist.read_parameters(model))


if __name__ == "__main__":
    app.run(main)
