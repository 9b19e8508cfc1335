"""PyTorch with local steps on gloo: two processes, which average their parameters every `--local_steps` steps.

A global step is one batch of each. Optimizers keep their own momentum, as in `PostLocalSGDOptimizer`. Averaging by
hand, after the last of the local steps, lets a snapshot hold averaged parameters.
"""

import torch
from absl import app, flags
from torch import distributed
from torch.nn import utils

from benchmarks.peers import measure, problem, torch_ddp, torch_mnist

FLAGS = flags.FLAGS
flags.DEFINE_integer("local_steps", 256, "steps between averages; --train_steps is rounded up to whole calls")


def train(rank: int) -> None:
    """Train, and print the result as rank 0."""
    examples = torch_mnist.load_train(rank, problem.NUM_WORKERS)
    clock = measure.make_clock(problem.NUM_WORKERS * problem.BATCH_SIZE)
    model = torch_mnist.make_model()
    take_step = torch_mnist.make_step(model, examples, stream=rank)

    def take_local_steps() -> None:
        for _ in range(FLAGS.local_steps):
            take_step()
        with torch.no_grad():
            parameters = utils.parameters_to_vector(model.parameters())
            distributed.all_reduce(parameters)
            utils.vector_to_parameters(parameters / problem.NUM_WORKERS, model.parameters())

    measure.train(
        clock,
        take_local_steps,
        lambda: torch_mnist.read_parameters(model),
        FLAGS.local_steps,
        is_measuring=rank == 0,
    )


if __name__ == "__main__":
    app.run(lambda _: torch_ddp.run(train))
