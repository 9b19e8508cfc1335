"""One process without any distribution, PyTorch: the data is a tensor in memory, the loop is plain and eager."""

import torch
from absl import app

import measure
import torch_mnist


def main(_: object) -> None:
    """Train, and print the result."""
    model = torch_mnist.make_model()
    optimizer = torch_mnist.make_optimizer(model)
    batches = torch_mnist.batches(measure.load_train())
    loss_function = torch.nn.CrossEntropyLoss()
    clock = measure.Clock()
    for step in range(1, measure.FLAGS.train_steps + 1):
        images, labels = next(batches)
        optimizer.zero_grad()
        loss_function(model(images), labels).backward()
        optimizer.step()
        if step == 1:
            clock.start(step)
        elif clock.is_due():
            clock.keep(step, torch_mnist.read_parameters(model))
    clock.stop(step)
    clock.print_result(torch_mnist.read_parameters(model))


if __name__ == "__main__":
    app.run(main)
