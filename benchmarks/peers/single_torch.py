"""One process without any distribution, PyTorch: the data is a tensor in memory, the loop is plain and eager."""

from absl import app

from benchmarks.peers import measure, torch_mnist


def main(_: object) -> None:
    """Train, and print the result."""
    examples = torch_mnist.load_train()
    clock = measure.make_clock()
    model = torch_mnist.make_model()
    measure.train(clock, torch_mnist.make_step(model, examples), lambda: torch_mnist.read_parameters(model))


if __name__ == "__main__":
    app.run(main)
