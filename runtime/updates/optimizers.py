"""The optimizers that a run can choose from."""

import tensorflow.compat.v1 as tf

OPTIMIZERS = ("adam", "momentum", "sgd")
MOMENTUM = 0.9


def make_optimizer(name: str, learning_rate: float) -> tf.train.Optimizer:
    """Return one of `OPTIMIZERS`."""
    if name == "adam":
        return tf.train.AdamOptimizer(learning_rate)
    if name == "momentum":
        return tf.train.MomentumOptimizer(learning_rate, MOMENTUM)
    return tf.train.GradientDescentOptimizer(learning_rate)
