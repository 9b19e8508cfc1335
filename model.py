"""The models: their parameters, and from images to logits, loss and accuracy.

Shapes: b examples in a batch, 784 = 28 * 28 pixels, 10 classes.
"""

from collections.abc import Mapping

import tensorflow.compat.v1 as tf

MODELS = ("mlp", "cnn")


def build_parameters(model: str, hidden_units: int) -> dict[str, tf.Variable]:
    """Make the variables of one of `MODELS`, float32, with the names under which `build_logits()` expects them.

    Args:
      model: `mlp` is a hidden layer with ReLU, and the logits; `cnn` has two convolutions with pooling before that.
      hidden_units: width of the hidden layer.
    """
    shapes: dict[str, list[int]] = {}
    num_inputs = 28 * 28
    if model == "cnn":
        shapes |= {"conv1/weights": [5, 5, 1, 16], "conv1/biases": [16]}
        shapes |= {"conv2/weights": [5, 5, 16, 32], "conv2/biases": [32]}
        num_inputs = 7 * 7 * 32
    shapes |= {"hidden/weights": [num_inputs, hidden_units], "hidden/biases": [hidden_units]}
    shapes |= {"logits/weights": [hidden_units, 10], "logits/biases": [10]}
    initializers = {"weights": tf.glorot_uniform_initializer(), "biases": tf.zeros_initializer()}
    with tf.variable_scope(model):
        return {
            name: tf.get_variable(name, shape, initializer=initializers[name.partition("/")[2]])
            for name, shape in shapes.items()
        }


def build_logits(parameters: Mapping[str, tf.Tensor], images: tf.Tensor) -> tf.Tensor:
    """Build the logits of `images`.

    Args:
      parameters: the variables that `build_parameters()` returned, or tensors in their place, such as copies.
      images: float32 [b, 784], in [0, 1].

    Returns:
      Unnormalised log-probabilities of the classes, float32 [b, 10].
    """
    with tf.name_scope("model"):
        inputs = images
        if "conv1/weights" in parameters:
            maps = tf.reshape(images, [-1, 28, 28, 1])
            maps = _build_conv("conv1", parameters, maps)  # [b, 14, 14, 16]
            maps = _build_conv("conv2", parameters, maps)  # [b, 7, 7, 32]
            inputs = tf.reshape(maps, [-1, 7 * 7 * 32])
        hidden = tf.nn.relu(_build_dense("hidden", parameters, inputs))  # [b, hidden_units]
        return _build_dense("logits", parameters, hidden)


def build_loss(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Build the cross-entropy, averaged over the batch: float32 [], from float32 [b, 10] and int32 [b]."""
    with tf.name_scope("loss"):
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=labels))


def build_accuracy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Build the fraction of examples whose largest logit is that of their label: float32 [], in [0, 1]."""
    with tf.name_scope("accuracy"):
        predictions = tf.argmax(logits, axis=1, output_type=tf.int32)
        return tf.reduce_mean(tf.cast(tf.equal(predictions, labels), tf.float32))


def _build_dense(name: str, parameters: Mapping[str, tf.Tensor], inputs: tf.Tensor) -> tf.Tensor:
    """A fully connected layer without activation: float32 [b, inputs] to [b, outputs]."""
    with tf.name_scope(name):
        return tf.matmul(inputs, parameters[f"{name}/weights"]) + parameters[f"{name}/biases"]


def _build_conv(name: str, parameters: Mapping[str, tf.Tensor], inputs: tf.Tensor) -> tf.Tensor:
    """A convolution, ReLU and 2x2 max pooling: float32 [b, h, w, c] to [b, h/2, w/2, maps]."""
    with tf.name_scope(name):
        maps = tf.nn.conv2d(inputs, parameters[f"{name}/weights"], strides=1, padding="SAME")
        maps = tf.nn.relu(maps + parameters[f"{name}/biases"])
        return tf.nn.max_pool2d(maps, ksize=2, strides=2, padding="SAME")
