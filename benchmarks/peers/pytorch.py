"""PyTorch: one process, or the two of a process group on gloo, which average their gradients or their parameters.

A global step is one batch of each process. With `--local_steps`, two processes take that many steps each and then
average their parameters; their optimizers keep their own momentum, as in `PostLocalSGDOptimizer`. Averaging by hand,
after the last of the local steps, lets a snapshot hold averaged parameters. Without it, `DistributedDataParallel`
averages the gradients of each step.
"""

import itertools
import os
from collections.abc import Callable, Iterator

import torch
import torch._dynamo  # the first optimizer would import it, and nobody's imports count as set-up
from absl import flags
from torch import distributed
from torch.nn import utils

from benchmarks.peers import measure, problem

FLAGS = flags.FLAGS
flags.DEFINE_integer("local_steps", 1, "steps between averages; --train_steps is rounded up to whole calls")


def main() -> None:
    """Train as the process that `RANK` says, or as the only one; the first prints the result."""
    torch.set_num_threads(FLAGS.num_threads)
    if "RANK" not in os.environ:
        train()
        return
    distributed.init_process_group("gloo")
    train(distributed.get_rank(), distributed.get_world_size())
    distributed.destroy_process_group()


def train(rank: int = 0, world_size: int = 1) -> None:
    """Train, and print the result as the first process."""
    batches = make_batches(rank, world_size)
    clock = measure.make_clock(world_size * problem.BATCH_SIZE)
    model: torch.nn.Module = make_model()
    if world_size > 1 and FLAGS.local_steps == 1:
        # Without buffers there is nothing to broadcast; views save a copy of the gradients.
        model = torch.nn.parallel.DistributedDataParallel(model, broadcast_buffers=False, gradient_as_bucket_view=True)
    take_step = make_step(model, batches)

    def take_local_steps() -> None:
        for _ in range(FLAGS.local_steps):
            take_step()
        with torch.no_grad():
            parameters = utils.parameters_to_vector(model.parameters())
            distributed.all_reduce(parameters)
            utils.vector_to_parameters(parameters / world_size, model.parameters())

    measure.train(
        clock,
        take_step if FLAGS.local_steps == 1 else take_local_steps,
        lambda: problem.Parameters(*(parameter.detach().numpy().T.copy() for parameter in model.parameters())),
        FLAGS.local_steps,
        is_measuring=rank == 0,
    )


def make_model() -> torch.nn.Sequential:
    """Return the model where every peer starts."""
    initial = problem.initial_parameters()
    hidden = torch.nn.Linear(*initial.hidden_weights.shape)
    logits = torch.nn.Linear(*initial.logits_weights.shape)
    model = torch.nn.Sequential(hidden, torch.nn.ReLU(), logits)
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), initial, strict=True):
            parameter.copy_(torch.from_numpy(value.T))  # PyTorch has weights as [outputs, inputs]
    return model


def make_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer; a fused one does not loop over the parameters in Python."""
    return torch.optim.SGD(model.parameters(), FLAGS.learning_rate, problem.MOMENTUM, nesterov=True, fused=True)


def make_step(model: torch.nn.Module, batches: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> Callable[[], None]:
    """Return a function that takes a step on the next of the batches, with the next of the rates."""
    optimizer, loss_function = make_optimizer(model), torch.nn.CrossEntropyLoss()
    *rates, last_rate = problem.make_rates().tolist()
    next_rates = iter(rates)
    (group,) = optimizer.param_groups

    def take_step() -> None:
        images, labels = next(batches)
        group["lr"] = next(next_rates, last_rate)
        optimizer.zero_grad()
        loss_function(model(images), labels).backward()
        optimizer.step()

    return take_step


def make_batches(rank: int, world_size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches of a process without end, in a new order each epoch: float32 [b, 784] in [0, 1], and int64 [b]."""
    # A copy, because PyTorch has no read-only arrays.
    images, labels = (torch.from_numpy(array.copy()) for array in problem.load_train(rank, world_size))
    images, labels = images.to(torch.float32) * (1 / 255), labels.to(torch.int64)
    generator = torch.Generator().manual_seed(problem.NUM_WORKERS * FLAGS.seed + rank)
    return (
        (images[indices], labels[indices])
        for _ in itertools.count()
        for indices in torch.randperm(len(labels), generator=generator).split(problem.BATCH_SIZE)
    )
