"""The models: from images to logits, loss and accuracy.

Shapes: b examples in a batch, 784 = 28 * 28 pixels, 10 classes.
"""

import tensorflow.compat.v1 as tf

MODELS = ("mlp", "cnn")


def build_logits(images: tf.Tensor, model: str, hidden_units: int) -> tf.Tensor:
    """Build one of `MODELS`; a second call in the same graph shares the variables of the first.

    Args:
      images: float32 [b, 784], in [0, 1].
      model: `mlp` or `cnn`.
      hidden_units: width of the fully connected hidden layer.

    Returns:
      Unnormalised log-probabilities of the classes, float32 [b, 10].
    """
    with tf.variable_scope(model, reuse=tf.AUTO_REUSE):
        if model == "mlp":
            return _build_mlp(images, hidden_units)
        return _build_cnn(images, hidden_units)


def build_loss(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Build the cross-entropy, averaged over the batch: float32 [], from float32 [b, 10] and int32 [b]."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=labels))


def build_accuracy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Build the fraction of examples whose largest logit is their label's: float32 [], in [0, 1]."""
    predictions = tf.argmax(logits, axis=1, output_type=tf.int32)
    return tf.reduce_mean(tf.cast(tf.equal(predictions, labels), tf.float32))


def _build_mlp(inputs: tf.Tensor, hidden_units: int) -> tf.Tensor:
    """Inputs float32 [b, n], then `hidden_units` with ReLU, then 10."""
    hidden = tf.nn.relu(_build_dense("hidden", inputs, hidden_units))
    return _build_dense("logits", hidden, 10)


def _build_cnn(images: tf.Tensor, hidden_units: int) -> tf.Tensor:
    """Twice convolution, ReLU and pooling, then `mlp`: 28x28x1, 14x14x16, 7x7x32, `hidden_units`, 10."""
    maps = tf.reshape(images, [-1, 28, 28, 1])
    maps = _build_conv("conv1", maps, 16)  # [b, 14, 14, 16]
    maps = _build_conv("conv2", maps, 32)  # [b, 7, 7, 32]
    return _build_mlp(tf.reshape(maps, [-1, 7 * 7 * 32]), hidden_units)


def _build_dense(name: str, inputs: tf.Tensor, num_outputs: int) -> tf.Tensor:
    """A fully connected layer without activation: float32 [b, num_outputs]."""
    with tf.variable_scope(name):
        weights = tf.get_variable(
            "weights", [inputs.shape[1], num_outputs], initializer=tf.glorot_uniform_initializer()
        )
        biases = tf.get_variable("biases", [num_outputs], initializer=tf.zeros_initializer())
        return tf.matmul(inputs, weights) + biases


def _build_conv(name: str, inputs: tf.Tensor, num_maps: int) -> tf.Tensor:
    """A 5x5 convolution, ReLU and 2x2 max pooling: float32 [b, h, w, c] to [b, h/2, w/2, num_maps]."""
    with tf.variable_scope(name):
        shape = [5, 5, inputs.shape[3], num_maps]
        weights = tf.get_variable("weights", shape, initializer=tf.glorot_uniform_initializer())
        biases = tf.get_variable("biases", [num_maps], initializer=tf.zeros_initializer())
        maps = tf.nn.relu(tf.nn.conv2d(inputs, weights, strides=1, padding="SAME") + biases)
        return tf.nn.max_pool2d(maps, ksize=2, strides=2, padding="SAME")
