"""What the PyTorch peers share: the data and the model as tensors, the optimizer, and a training step."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch._dynamo  # the first optimizer would import it, and nobody's imports count as set-up

from benchmarks.peers import problem

# An operation takes 0.1 ms; more threads would wait for each other longer than that.
torch.set_num_threads(1)


class Examples(NamedTuple):
    """Training examples: float32 [n, 784] in [0, 1], and int64 [n]."""

    images: torch.Tensor
    labels: torch.Tensor


def load_train(index: int = 0, num_workers: int = 1) -> Examples:
    """Read the training examples of worker `index` of `num_workers`."""
    # A copy, because PyTorch has no read-only arrays.
    images, labels = (torch.from_numpy(array.copy()) for array in problem.load_train(index, num_workers))
    return Examples(images.to(torch.float32) * (1 / 255), labels.to(torch.int64))


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


def read_parameters(model: torch.nn.Module) -> problem.Parameters:
    """Copy the parameters."""
    return problem.Parameters(*(parameter.detach().numpy().T.copy() for parameter in model.parameters()))


def make_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of the flags; a fused one does not loop over the parameters in Python."""
    rate = problem.FLAGS.learning_rate
    if problem.FLAGS.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), rate, fused=True)
    momentum = 0.0 if problem.FLAGS.optimizer == "sgd" else problem.MOMENTUM
    nesterov = problem.FLAGS.optimizer == "nesterov"
    return torch.optim.SGD(model.parameters(), rate, momentum=momentum, nesterov=nesterov, fused=True)


def make_step(model: torch.nn.Module, examples: Examples, stream: int = 0) -> Callable[[], None]:
    """Return a function that takes a step on the next of the `batches`."""
    optimizer, loss_function = make_optimizer(model), torch.nn.CrossEntropyLoss()
    stream_of_batches = batches(examples, stream)

    def take_step() -> None:
        images, labels = next(stream_of_batches)
        optimizer.zero_grad()
        loss_function(model(images), labels).backward()
        optimizer.step()

    return take_step


def batches(examples: Examples, stream: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield images and labels of a batch without end, in a new order each epoch.

    Args:
      examples: the examples to draw from.
      stream: index of the worker; each has an order of its own.
    """
    generator = torch.Generator().manual_seed(problem.NUM_WORKERS * problem.FLAGS.seed + stream)
    while True:
        order = torch.randperm(len(examples.labels), generator=generator)
        for indices in order.split(problem.BATCH_SIZE):
            yield examples.images[indices], examples.labels[indices]
