"""One process without any distribution, TensorFlow 2: the data is a tensor in memory, and XLA compiles many steps.

A call of a `tf.function` costs more than a step, so one call takes `--steps_per_call` steps. On two cores, XLA then
raises the rate by half with SGD, and doubles it with Adam. Gathering batches in the compiled loop is faster than
`tf.data`.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from absl import flags

from benchmarks.peers import measure, problem, tf2_mnist

FLAGS = flags.FLAGS
flags.DEFINE_integer("steps_per_call", 64, "steps of one call; --train_steps is rounded up to whole calls")
flags.DEFINE_boolean("jit_compile", True, "compile them with XLA")


def main() -> None:
    """Train, and print the result."""
    tf.config.threading.set_intra_op_parallelism_threads(FLAGS.num_threads)
    examples = problem.load_train()
    all_images, all_labels = tf.constant(examples.images), tf.constant(examples.labels)
    clock = measure.make_clock()
    variables = tf2_mnist.make_variables()
    optimizer = make_optimizer()
    optimizer.build(variables)

    @tf.function(jit_compile=FLAGS.jit_compile)
    def train(indices: tf.Tensor) -> None:
        for step in tf.range(FLAGS.steps_per_call):
            images = tf.cast(tf.gather(all_images, indices[step]), tf.float32) * (1 / 255)
            labels = tf.cast(tf.gather(all_labels, indices[step]), tf.int32)
            optimizer.apply(tf2_mnist.gradients(variables, images, labels), variables)

    blocks = shuffled_indices(len(examples.labels))
    measure.train(
        clock, lambda: train(next(blocks)), lambda: tf2_mnist.read_parameters(variables), FLAGS.steps_per_call
    )


class Cycle(tf.keras.optimizers.schedules.LearningRateSchedule):
    """The rates of the flags."""

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """Return the rate of a step, float32 []."""
        return tf2_mnist.build_rate(tf.cast(step, tf.int64))


def make_optimizer() -> tf.keras.optimizers.Optimizer:
    """Return the optimizer of the flags; Keras builds them of small ops, which XLA fuses."""
    rate = Cycle() if FLAGS.lr_schedule == "one_cycle" else FLAGS.learning_rate
    if FLAGS.optimizer == "adam":
        return tf.keras.optimizers.Adam(rate)
    momentum = 0.0 if FLAGS.optimizer == "sgd" else problem.MOMENTUM
    return tf.keras.optimizers.SGD(rate, momentum, nesterov=FLAGS.optimizer == "nesterov")


def shuffled_indices(num_examples: int) -> Iterator[npt.NDArray[np.int32]]:
    """Yield the indices of the batches of each call, int32 [steps_per_call, b], in a new order each epoch."""
    generator = np.random.default_rng(FLAGS.seed)
    size = FLAGS.steps_per_call * problem.BATCH_SIZE
    order: npt.NDArray[np.int32] = np.empty(0, np.int32)
    while True:
        while len(order) < size:
            order = np.concatenate([order, generator.permutation(num_examples).astype(np.int32)])
        yield order[:size].reshape(FLAGS.steps_per_call, problem.BATCH_SIZE)
        order = order[size:]
