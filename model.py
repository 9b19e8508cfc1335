"""The models: from images to logits, loss and metrics. They make their variables where they use them.

Shapes: b examples in a batch, 784 = 28 * 28 pixels, 10 classes.
"""

import tensorflow.compat.v1 as tf
from absl import flags

FLAGS = flags.FLAGS
flags.DEFINE_enum("model", "mlp", ["mlp", "cnn"], "one hidden layer, or two convolutions with pooling before it")
flags.DEFINE_integer("hidden_units", 100, "number of units in the hidden layer", lower_bound=1)


def build_logits(images, is_training):
    """Build the unnormalised log-probabilities of the classes, float32 [b, classes].

    Args:
      images: float32 [b, 784], in [0, 1].
      is_training: whether the logits are for training; these models do the same in a test.
    """
    with tf.variable_scope(FLAGS.model):
        inputs = images
        if FLAGS.model == "cnn":
            maps = tf.reshape(images, [-1, 28, 28, 1])
            maps = _build_conv("conv1", maps, 16)  # [b, 14, 14, 16]
            maps = _build_conv("conv2", maps, 32)  # [b, 7, 7, 32]
            inputs = tf.reshape(maps, [-1, 7 * 7 * 32])
        hidden = tf.nn.relu(_build_dense("hidden", inputs, FLAGS.hidden_units))
        num_classes = FLAGS.num_classes if "num_classes" in FLAGS else 10  # a flag of mnist_input.py
        return _build_dense("logits", hidden, num_classes)


def build_loss(logits, labels):
    """Build the cross-entropy, averaged over the batch: float32 [], from float32 [b, 10] and int32 [b]."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=labels))


def build_metrics(logits, labels):
    """Build the fraction of examples whose largest logit is that of their label: float32 [], in [0, 1]."""
    predictions = tf.argmax(logits, axis=1, output_type=tf.int32)
    return {"accuracy": tf.reduce_mean(tf.cast(tf.equal(predictions, labels), tf.float32))}


def build_predictions(logits):
    """Build what an exported model returns: the classes, int64 [b], as the files have them, and all probabilities."""
    first_label = FLAGS.first_label if "first_label" in FLAGS else 0  # a flag of mnist_input.py
    return {"classes": tf.argmax(logits, axis=1) + first_label, "probabilities": tf.nn.softmax(logits)}


def _build_dense(name, inputs, size):
    """A fully connected layer without activation: float32 [b, inputs] to [b, size]."""
    with tf.variable_scope(name):
        weights = tf.get_variable("weights", [inputs.shape[1], size], initializer=tf.glorot_uniform_initializer())
        return tf.matmul(inputs, weights) + tf.get_variable("biases", [size], initializer=tf.zeros_initializer())


def _build_conv(name, maps, size):
    """A convolution, ReLU and 2x2 max pooling: float32 [b, h, w, c] to [b, h/2, w/2, size]."""
    with tf.variable_scope(name):
        shape = [5, 5, maps.shape[3], size]
        weights = tf.get_variable("weights", shape, initializer=tf.glorot_uniform_initializer())
        maps = tf.nn.conv2d(maps, weights, strides=1, padding="SAME")
        maps = tf.nn.relu(maps + tf.get_variable("biases", [size], initializer=tf.zeros_initializer()))
        return tf.nn.max_pool2d(maps, ksize=2, strides=2, padding="SAME")
