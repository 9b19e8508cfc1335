"""How a peer is measured: the loop that trains it by the clock, and the last line of its output.

While the clock runs, one process keeps a snapshot of the parameters every `--snapshot_secs`. The training time of every
peer includes the cost of these copies. Their evaluation, on all test images and in numpy, follows after the training.
"""

import json
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

import mnist_input
from benchmarks.peers import problem
from benchmarks.peers.clock import Clock


def make_clock(examples_per_step: int = problem.BATCH_SIZE) -> Clock:
    """Return the clock of a run with `examples_per_step` in each global step; its set-up begins now."""
    return Clock(examples_per_step, problem.FLAGS.snapshot_secs or float("inf"))


def train(
    clock: Clock,
    take_steps: Callable[[], object],
    read_parameters: Callable[[], problem.Parameters],
    steps_per_call: int = 1,
    is_measuring: bool = True,
) -> None:
    """Train for `--train_steps`, rounded up to whole calls; the process that measures prints the result."""
    for step in range(steps_per_call, problem.FLAGS.train_steps + steps_per_call, steps_per_call):
        take_steps()
        if step == steps_per_call:
            clock.start(step)
        elif is_measuring and clock.is_due():
            clock.keep(step, read_parameters())
    clock.stop(step)
    if is_measuring:
        print_result(clock, read_parameters())


def print_result(
    clock: Clock,
    parameters: Sequence[npt.NDArray[np.float32]],
    compute_logits: Callable[..., npt.NDArray[np.float32]] = problem.compute_logits,
) -> None:
    """Evaluate a run whose clock has stopped, with its parameters, and print its result as one line of JSON."""
    images, labels = mnist_input.load(problem.FLAGS.data_dir, "t10k")
    inputs = np.divide(images, 255, dtype=np.float32)

    def accuracy(parameters: Sequence[npt.NDArray[np.float32]]) -> float:
        return float(np.mean(np.argmax(compute_logits(parameters, inputs), axis=1) == labels))

    if problem.FLAGS.snapshot_secs:
        print(json.dumps(clock.result(parameters, accuracy)._asdict()), flush=True)
    else:
        print(f"test accuracy {accuracy(parameters):.4f}", flush=True)
