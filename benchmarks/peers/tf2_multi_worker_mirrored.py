"""TensorFlow 2's `MultiWorkerMirroredStrategy`: two workers, which average each step's gradients.

A global step is one batch of each. Its tutorial "Custom training loop with Keras and MultiWorkerMirroredStrategy" calls
a `tf.function` for each step. The documentation of `tf.distribute.Strategy` loops over batches inside one function,
which is faster, so this script does the same, with `--steps_per_call` steps in each call.
"""

import tensorflow as tf
from absl import flags

from benchmarks.peers import measure, problem, tf2_mnist

FLAGS = flags.FLAGS
flags.DEFINE_integer("steps_per_call", 8, "steps of one call; --train_steps is rounded up to whole calls")


def main() -> None:
    """Train as the worker that `TF_CONFIG` names."""
    # Two processes share two cores; more threads would only wait for each other.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    train(tf.distribute.MultiWorkerMirroredStrategy())


def train(strategy: tf.distribute.MultiWorkerMirroredStrategy) -> None:
    """Train, and print the result as worker 0."""
    worker = strategy.cluster_resolver.task_id
    examples = problem.load_train(worker, problem.NUM_WORKERS)
    clock = measure.make_clock(problem.NUM_WORKERS * problem.BATCH_SIZE)
    with strategy.scope():
        variables = tf2_mnist.make_variables()
    step = tf.Variable(0, dtype=tf.int64)  # each worker counts for itself
    optimizer = tf2_mnist.make_optimizer(step)

    def make_dataset(_: tf.distribute.InputContext) -> tf.data.Dataset:
        return tf2_mnist.batches(tf.constant(examples.images), tf.constant(examples.labels), stream=worker)

    def replica_step(images: tf.Tensor, labels: tf.Tensor) -> None:
        gradients = tf2_mnist.gradients(variables, images, labels)
        # The strategy sums over the workers; we want the average.
        gradients = [gradient / problem.NUM_WORKERS for gradient in gradients]
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        step.assign_add(1, read_value=False)

    @tf.function
    def call(batches: tf.data.Iterator) -> None:
        for _ in tf.range(FLAGS.steps_per_call):
            strategy.run(replica_step, args=next(batches))

    batches = iter(strategy.distribute_datasets_from_function(make_dataset))
    measure.train(
        clock,
        lambda: call(batches),
        lambda: tf2_mnist.read_parameters(variables),
        FLAGS.steps_per_call,
        is_measuring=worker == 0,
    )
