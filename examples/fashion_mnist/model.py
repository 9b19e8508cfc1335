"""A network for Fashion-MNIST: three convolutions with strides in place of pooling.

Shapes: b examples in a batch, 784 = 28 * 28 pixels, 10 classes.
"""

from collections.abc import Mapping

import tensorflow.compat.v1 as tf

MODELS = ("strided",)
MAPS = (1, 16, 32, 64)  # of the image, and of what each convolution makes
SIZE = 4  # 28 pixels, halved three times and rounded up


def build_parameters(model: str, hidden_units: int) -> dict[str, tf.Variable]:
    """Make the variables, float32; `hidden_units` is the width of the layer before the logits."""
    shapes = {f"conv{n}/weights": [3, 3, *MAPS[n - 1 : n + 1]] for n in (1, 2, 3)}
    shapes |= {"hidden/weights": [SIZE * SIZE * MAPS[-1], hidden_units], "logits/weights": [hidden_units, 10]}
    parameters = {}
    with tf.variable_scope(model):
        for name, shape in shapes.items():
            parameters[name] = tf.get_variable(name, shape, initializer=tf.glorot_uniform_initializer())
            name = name.replace("weights", "biases")
            parameters[name] = tf.get_variable(name, shape[-1:], initializer=tf.zeros_initializer())
    return parameters


def build_logits(parameters: Mapping[str, tf.Tensor], images: tf.Tensor) -> tf.Tensor:
    """Build the logits, float32 [b, 10], of images, float32 [b, 784]."""
    with tf.name_scope("model"):
        maps = tf.reshape(images, [-1, 28, 28, 1])
        for n in (1, 2, 3):
            maps = tf.nn.conv2d(maps, parameters[f"conv{n}/weights"], strides=2, padding="SAME")
            maps = tf.nn.relu(maps + parameters[f"conv{n}/biases"])
        inputs = tf.reshape(maps, [-1, SIZE * SIZE * MAPS[-1]])
        hidden = tf.nn.relu(tf.matmul(inputs, parameters["hidden/weights"]) + parameters["hidden/biases"])
        return tf.matmul(hidden, parameters["logits/weights"]) + parameters["logits/biases"]


def build_loss(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Build the cross-entropy, averaged over the batch: float32 [], from float32 [b, 10] and int32 [b]."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=labels))


def build_accuracy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Build the fraction of examples whose largest logit is that of their label: float32 [], in [0, 1]."""
    predictions = tf.argmax(logits, axis=1, output_type=tf.int32)
    return tf.reduce_mean(tf.cast(tf.equal(predictions, labels), tf.float32))
