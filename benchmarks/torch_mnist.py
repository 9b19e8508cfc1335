"""What the PyTorch peers share: the model, the optimizer, batches out of tensors in memory, and the plain loop."""

from collections.abc import Callable, Iterator

import torch

import measure
import mnist_input

# More threads share out operations of 0.1 ms, and wait for each other longer than that.
torch.set_num_threads(1)


def make_model() -> torch.nn.Sequential:
    """Return the model where every peer starts."""
    initial = measure.initial_parameters()
    hidden = torch.nn.Linear(*initial.hidden_weights.shape)
    logits = torch.nn.Linear(*initial.logits_weights.shape)
    model = torch.nn.Sequential(hidden, torch.nn.ReLU(), logits)
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), initial, strict=True):
            parameter.copy_(torch.from_numpy(value.T))  # PyTorch has weights as [outputs, inputs]
    return model


def read_parameters(model: torch.nn.Module) -> measure.Parameters:
    """Copy the parameters."""
    return measure.Parameters(*(parameter.detach().numpy().T.copy() for parameter in model.parameters()))


def make_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of the flags; fused ones take a loop over the parameters out of Python."""
    rate = measure.FLAGS.learning_rate
    if measure.FLAGS.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), rate, fused=True)
    momentum = measure.MOMENTUM if measure.FLAGS.optimizer == "momentum" else 0.0
    return torch.optim.SGD(model.parameters(), rate, momentum=momentum, fused=True)


def make_step(model: torch.nn.Module, examples: mnist_input.Examples, stream: int = 0) -> Callable[[], None]:
    """Return what takes a step on the next batch of `examples`, as `batches` gives them."""
    optimizer, loss_function = make_optimizer(model), torch.nn.CrossEntropyLoss()
    stream_of_batches = batches(examples, stream)

    def take_step() -> None:
        images, labels = next(stream_of_batches)
        optimizer.zero_grad()
        loss_function(model(images), labels).backward()
        optimizer.step()

    return take_step


def batches(examples: mnist_input.Examples, stream: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches for ever, in a new order each epoch: float32 [b, 784] in [0, 1], and int64 [b].

    Args:
      examples: what to draw from.
      stream: which of the run's streams this is: the worker's index.
    """
    # A copy, since PyTorch has no arrays that cannot be written to.
    images, labels = (torch.from_numpy(array.copy()) for array in examples)
    images, labels = images.to(torch.float32) * (1 / 255), labels.to(torch.int64)
    generator = torch.Generator().manual_seed(measure.NUM_WORKERS * measure.FLAGS.seed + stream)
    while True:
        order = torch.randperm(len(labels), generator=generator)
        for indices in order.split(measure.BATCH_SIZE):
            yield images[indices], labels[indices]
