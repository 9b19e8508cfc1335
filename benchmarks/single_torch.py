"""One process without any distribution, PyTorch: the data is a tensor in memory, the loop is plain and eager."""

from absl import app

import measure
import torch_mnist


def main(_: object) -> None:
    """Train, and print the result."""
    model = torch_mnist.make_model()
    measure.train(torch_mnist.make_step(model, measure.load_train()), lambda: torch_mnist.read_parameters(model))


if __name__ == "__main__":
    app.run(main)
