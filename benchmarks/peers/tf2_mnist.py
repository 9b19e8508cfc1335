"""What the TensorFlow peers share: the variables, their gradients, the rates, the optimizer, and batches."""

import sys
from collections.abc import Callable, Sequence

import tensorflow as tf

from benchmarks.peers import problem


def make_variables() -> list[tf.Variable]:
    """Return the model's variables with their initial values, in the order of `problem.Parameters`."""
    return [tf.Variable(value) for value in problem.initial_parameters()]


def read_parameters(variables: Sequence[tf.Variable]) -> problem.Parameters:
    """Copy the parameters."""
    return problem.Parameters(*(variable.numpy().copy() for variable in variables))


def gradients(variables: Sequence[tf.Variable], images: tf.Tensor, labels: tf.Tensor) -> list[tf.Tensor]:
    """Return the gradients of the cross-entropy, averaged over the batch.

    Args:
      variables: the model's.
      images: float32 [b, 784], in [0, 1].
      labels: int32 [b], in [0, 10).
    """
    with tf.GradientTape() as tape:
        hidden_weights, hidden_biases, logits_weights, logits_biases = variables
        hidden = tf.nn.relu(images @ hidden_weights + hidden_biases)
        logits = hidden @ logits_weights + logits_biases
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    return tape.gradient(loss, variables)


def build_rate(step: tf.Tensor) -> tf.Tensor:
    """Build the learning rate of a step, float32 []."""
    return tf.gather(problem.make_rates(), tf.minimum(step, problem.FLAGS.train_steps))


def make_optimizer(step: tf.Variable) -> tf.compat.v1.train.Optimizer:
    """Return the optimizer of the flags; its rate is that of `step` in one cycle.

    `tf.distribute`'s guide asks for `tf.keras.optimizers.legacy`, which TensorFlow 2.21 no longer has. These are
    the optimizers left that update each variable with one op.
    """
    train = tf.compat.v1.train
    rate: float | Callable[[], tf.Tensor] = problem.FLAGS.learning_rate
    if problem.FLAGS.lr_schedule == "one_cycle":

        def rate() -> tf.Tensor:
            with tf.device(step.device):  # with the variables that it updates
                return build_rate(step)

    if problem.FLAGS.optimizer == "adam":
        return train.AdamOptimizer(rate)
    if problem.FLAGS.optimizer == "sgd":
        return train.GradientDescentOptimizer(rate)
    return train.MomentumOptimizer(rate, problem.MOMENTUM, use_nesterov=problem.FLAGS.optimizer == "nesterov")


def batches(images: tf.Tensor, labels: tf.Tensor, stream: tf.Tensor) -> tf.data.Dataset:
    """Return images and labels of batches without end, in a new order each epoch, gathered in the background.

    The data set shuffles indices by the epoch and gathers pixels by the batch: an op for each example would cost more
    than the training step.

    Args:
      images: all images of the worker, uint8 [n, 784].
      labels: their labels, uint8 [n].
      stream: index of the worker, int32 []; each has an order of its own.
    """

    def shuffle(epoch: tf.Tensor) -> tf.Tensor:
        seed = tf.stack([problem.FLAGS.seed, tf.cast(stream, tf.int32)])
        return tf.random.experimental.stateless_shuffle(
            tf.range(tf.size(labels)), tf.random.experimental.stateless_fold_in(seed, epoch)
        )

    def gather(indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        pixels = tf.cast(tf.gather(images, indices), tf.float32)
        return pixels * (1 / 255), tf.cast(tf.gather(labels, indices), tf.int32)

    epochs = tf.data.Dataset.range(sys.maxsize)
    return epochs.map(shuffle).rebatch(problem.BATCH_SIZE, drop_remainder=True).map(gather).prefetch(4)
