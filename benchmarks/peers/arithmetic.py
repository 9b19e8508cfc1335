"""The arithmetic alone: one process per core, which multiplies the two large matrices of a step again and again.

These are the inputs by the weights of the hidden layer, and the inputs by the gradient of its output: nearly all of the
arithmetic of a step. What a training program lacks to this rate is not arithmetic.
"""

import json
import os
import time

import numpy as np
from absl import app, flags

import mnist_input
from benchmarks.peers import launch, problem

FLAGS = flags.FLAGS
flags.DEFINE_integer("task_index", None, "index of this process; without it, all are started; --train_steps is of each")


def main(_: object) -> None:
    """Multiply as one process, or start all and add up their rates."""
    if FLAGS.task_index is not None:
        print(json.dumps({"examples_per_sec": multiply()}))
        return
    num_cores = len(os.sched_getaffinity(0))
    children = [launch.Child(f"process {index}", [f"--task_index={index}"]) for index in range(num_cores)]
    rate = sum(json.loads(line)["examples_per_sec"] for line in launch.run(children))
    print(json.dumps({"examples_per_sec": rate, "secs_to_target": None, "setup_secs": 0.0, "test_accuracy": 0.0}))


def multiply() -> float:
    """Return the examples per second. The contender's environment gives numpy one thread."""
    generator = np.random.default_rng(FLAGS.seed)
    inputs = generator.random([problem.BATCH_SIZE, mnist_input.NUM_PIXELS], np.float32)
    weights = generator.random([mnist_input.NUM_PIXELS, problem.HIDDEN_UNITS], np.float32)
    output_gradient = generator.random([problem.BATCH_SIZE, problem.HIDDEN_UNITS], np.float32)
    output, weights_gradient = np.empty_like(output_gradient), np.empty_like(weights)
    started_at = time.perf_counter()
    for _ in range(FLAGS.train_steps):
        np.matmul(inputs, weights, out=output)
        np.matmul(inputs.T, output_gradient, out=weights_gradient)
    return FLAGS.train_steps * problem.BATCH_SIZE / (time.perf_counter() - started_at)


if __name__ == "__main__":
    app.run(main)
