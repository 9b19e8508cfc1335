"""A network for Fashion-MNIST: three convolutions with strides in place of pooling, and dropout.

Shapes: b examples in a batch, 784 = 28 * 28 pixels, 10 classes.
"""

from typing import Any

import tensorflow.compat.v1 as tf
from absl import flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("hidden_units", 100, "width of the layer before the logits", lower_bound=1)
flags.DEFINE_float("dropout", 0.2, "fraction of this layer that a training step drops", 0, 1)


def build_logits(images: tf.Tensor, is_training: bool) -> tf.Tensor:
    """Build the logits, float32 [b, 10], of images, float32 [b, 784]."""
    maps = tf.reshape(images, [-1, 28, 28, 1])
    for n, size in enumerate((16, 32, 64), start=1):  # [b, 14, 14, 16], [b, 7, 7, 32], [b, 4, 4, 64]
        weights, biases = _make_variables(f"conv{n}", [3, 3, maps.shape[3], size])
        maps = tf.nn.relu(tf.nn.conv2d(maps, weights, strides=2, padding="SAME") + biases)
    flat = tf.reshape(maps, [-1, 4 * 4 * 64])
    weights, biases = _make_variables("hidden", [flat.shape[1], FLAGS.hidden_units])
    hidden = tf.nn.relu(tf.matmul(flat, weights) + biases)
    if is_training:
        hidden = tf.nn.dropout(hidden, rate=FLAGS.dropout)
    weights, biases = _make_variables("logits", [FLAGS.hidden_units, 10])
    return tf.matmul(hidden, weights) + biases


def _make_variables(layer: str, shape: list[Any]) -> tuple[tf.Variable, tf.Variable]:
    """Make the weights of a layer, of this shape, and its biases."""
    with tf.variable_scope(layer):
        weights = tf.get_variable("weights", shape, initializer=tf.glorot_uniform_initializer())
        return weights, tf.get_variable("biases", shape[-1:], initializer=tf.zeros_initializer())


def build_loss(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Build the cross-entropy, averaged over the batch: float32 [], from float32 [b, 10] and int32 [b]."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=labels))


def build_metrics(logits: tf.Tensor, labels: tf.Tensor) -> dict[str, tf.Tensor]:
    """Build the fraction of examples whose largest logit is that of their label: float32 [], in [0, 1]."""
    return {"accuracy": tf.reduce_mean(tf.cast(tf.nn.in_top_k(logits, labels, 1), tf.float32))}
