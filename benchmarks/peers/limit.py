"""The limit of the machine: one process per core, each in the same loop of local steps as ours, without exchanges.

The examples/s are the sum over the processes. Each trains a model of its own on its shard of the examples.
"""

import functools
import json
import os
import sys
from collections.abc import Mapping

import tensorflow.compat.v1 as tf
from absl import app, flags

import mnist_input
import model
from benchmarks.peers import launch, measure, problem
from runtime.data import streams
from runtime.data.memory import MemorySource
from runtime.updates.holding import Gradient, make_holdings
from runtime.updates.local_steps import Length, LocalStepsExchangeBuilder
from runtime.updates.mode import make_optimizer
from runtime.updates.packing import Packing
from runtime.updates.schedule import Schedule
from runtime.updates.towers import Towers

FLAGS = flags.FLAGS
flags.DEFINE_integer("steps_per_run", 512, "local steps in one run of the graph; --train_steps is per process")
flags.DEFINE_integer("task_index", None, "index of this process; without it, all are started")


def main(_: object) -> None:
    """Train as one process, or start all and add up their rates."""
    num_cores = len(os.sched_getaffinity(0))
    if FLAGS.task_index is not None:
        train(num_cores)
        return
    children = [launch.Child(f"process {index}", [f"--task_index={index}"]) for index in range(num_cores)]
    results = [json.loads(line) for line in launch.run(children)]
    print(json.dumps({**results[0], "examples_per_sec": sum(result["examples_per_sec"] for result in results)}))


def train(num_cores: int) -> None:
    """Train, and print the result."""
    examples = problem.load_train(FLAGS.task_index, num_cores)
    clock = measure.make_clock()
    tf.disable_eager_execution()
    tf.disable_control_flow_v2()
    tf.set_random_seed(FLAGS.seed)
    tf.train.create_global_step()
    parameters = model.build_parameters("mlp", problem.HIDDEN_UNITS)
    packing = Packing(parameters)
    source = MemorySource(examples, FLAGS.task_index)
    batches = streams.build_batches(source, FLAGS.steps_per_run, problem.BATCH_SIZE, FLAGS.seed, mnist_input.decode)

    def build_loss(parameters: Mapping[str, tf.Tensor], inputs: tf.Tensor) -> tf.Tensor:
        images, labels = batches.batch(inputs)
        return model.build_loss(model.build_logits(parameters, images), labels)

    schedule = Schedule("constant", FLAGS.learning_rate, warmup_steps=0, train_steps=sys.maxsize)
    length = Length(FLAGS.steps_per_run, train_steps=sys.maxsize, num_shares=1, pace=1)
    make_local_optimizer = functools.partial(make_optimizer, FLAGS.optimizer)
    builder = LocalStepsExchangeBuilder(
        packing, build_loss, batches.inputs, make_local_optimizer, schedule, length, tf.float32, Towers("", [""])
    )
    (selection,) = packing.select([{}])
    exchange = builder.build_exchange(packing.read(selection), selection, [], 0)
    (holding,) = make_holdings(packing, lambda _: tf.train.GradientDescentOptimizer(1.0))
    train_op = holding.apply(Gradient(exchange.gradients[0], []), exchange.num_steps).op
    config = tf.ConfigProto(
        intra_op_parallelism_threads=1,
        inter_op_parallelism_threads=1,
        experimental=tf.ConfigProto.Experimental(disable_thread_spinning=True),
    )
    with tf.Session(config=config) as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        session.run(batches.initializer, batches.feed_dict(0))
        measure.train(
            clock,
            lambda: session.run(train_op),
            lambda: problem.Parameters(*session.run(list(parameters.values()))),
            steps_per_call=FLAGS.steps_per_run,
        )


if __name__ == "__main__":
    app.run(main)
