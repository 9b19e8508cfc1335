"""Three convolutions with strides, for small pictures: from images to logits, loss and accuracy."""

import tensorflow.compat.v1 as tf
from absl import flags

import mnist_input

FLAGS = flags.FLAGS
flags.DEFINE_float("dropout", 0.3, "fraction of the hidden units that a training step drops", 0.0, 0.9)


def build_logits(images: tf.Tensor, is_training: bool) -> tf.Tensor:
    """Build the unnormalised log-probabilities of the classes, float32 [b, classes], from float32 [b, h, w, c]."""
    maps = images
    for number, size in enumerate((16, 32, 64)):
        with tf.variable_scope(f"conv{number}"):
            weights = tf.get_variable(
                "weights", [3, 3, maps.shape[3], size], initializer=tf.glorot_uniform_initializer()
            )
            biases = tf.get_variable("biases", [size], initializer=tf.zeros_initializer())
            maps = tf.nn.relu(tf.nn.conv2d(maps, weights, strides=2, padding="SAME") + biases)
    hidden = tf.reshape(maps, [-1, maps.shape[1:].num_elements()])
    if is_training:
        hidden = tf.nn.dropout(hidden, rate=FLAGS.dropout)
    num_classes = len(mnist_input.find_classes(FLAGS.data_dir))
    with tf.variable_scope("logits"):
        weights = tf.get_variable(
            "weights", [hidden.shape[1], num_classes], initializer=tf.glorot_uniform_initializer()
        )
        return tf.matmul(hidden, weights) + tf.get_variable("biases", [num_classes], initializer=tf.zeros_initializer())


def build_loss(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Build the cross-entropy, averaged over the batch: float32 []."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=labels))


def build_metrics(logits: tf.Tensor, labels: tf.Tensor) -> dict[str, tf.Tensor]:
    """Build the fraction of examples whose largest logit is that of their label: float32 [], in [0, 1]."""
    predictions = tf.argmax(logits, axis=1, output_type=tf.int32)
    return {"accuracy": tf.reduce_mean(tf.cast(tf.equal(predictions, labels), tf.float32))}
