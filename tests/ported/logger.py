"""Summaries of everything, and a hook that logs, in the form of the scripts that have both."""

import time

import tensorflow.compat.v1 as tf


def variable_summaries(var):
    with tf.name_scope("summaries"):
        mean = tf.reduce_mean(var)
        tf.summary.scalar("mean", mean)
        tf.summary.scalar("stddev", tf.sqrt(tf.reduce_mean(tf.square(var - mean))))
        tf.summary.histogram("histogram", var)


def nn_layer(x, size, name, act=tf.nn.relu):
    with tf.variable_scope(name):
        weights = tf.get_variable(
            "weights", [x.shape[1], size], initializer=tf.truncated_normal_initializer(stddev=0.1)
        )
        variable_summaries(weights)
        preactivate = tf.matmul(x, weights) + tf.get_variable(
            "biases", [size], initializer=tf.constant_initializer(0.1)
        )
        tf.summary.histogram("pre_activations", preactivate)
        return act(preactivate, name="activation")


def build_logits(images, is_training):
    tf.summary.image("input", tf.reshape(images, [-1, 28, 28, 1]), 3)
    return nn_layer(nn_layer(images, 50, "layer1"), 10, "layer2", act=tf.identity)


def build_loss(logits, labels):
    cross_entropy = tf.losses.sparse_softmax_cross_entropy(labels=labels, logits=logits)
    tf.summary.scalar("cross_entropy", cross_entropy)
    return cross_entropy


def build_metrics(logits, labels):
    accuracy = tf.reduce_mean(tf.cast(tf.nn.in_top_k(logits, labels, 1), tf.float32))
    tf.summary.scalar("accuracy", accuracy)
    return {"accuracy": accuracy}


def build_optimizer(learning_rate):
    return tf.train.AdamOptimizer(0.003)


class LoggerHook(tf.train.SessionRunHook):
    """Prints the loss, and how long a run took."""

    def __init__(self, loss):
        self._loss = loss

    def begin(self):
        self._step = -1

    def before_run(self, run_context):
        self._step += 1
        self._start_time = time.time()
        return tf.train.SessionRunArgs(self._loss)

    def after_run(self, run_context, run_values):
        duration = time.time() - self._start_time
        if self._step % 10 == 0:
            print(f"logger: run {self._step}, loss = {run_values.results:.2f} ({duration:.3f} sec/batch)", flush=True)
