"""Weight decay through a collection of losses, and RMSProp, in the form of the scripts for CIFAR-10."""

import tensorflow.compat.v1 as tf


def _variable_on_cpu(name, shape, initializer):
    with tf.device("/cpu:0"):
        return tf.get_variable(name, shape, initializer=initializer, dtype=tf.float32)


def _variable_with_weight_decay(name, shape, stddev, wd):
    var = _variable_on_cpu(name, shape, tf.truncated_normal_initializer(stddev=stddev))
    if wd is not None:
        tf.add_to_collection("losses", tf.multiply(tf.nn.l2_loss(var), wd, name="weight_loss"))
    return var


def inference(images):
    with tf.variable_scope("conv1") as scope:
        kernel = _variable_with_weight_decay("weights", [5, 5, 1, 8], 0.1, None)
        conv = tf.nn.conv2d(tf.reshape(images, [-1, 28, 28, 1]), kernel, [1, 2, 2, 1], padding="SAME")
        biases = _variable_on_cpu("biases", [8], tf.constant_initializer(0.0))
        conv1 = tf.nn.relu(tf.nn.bias_add(conv, biases), name=scope.name)
    pool1 = tf.nn.max_pool(conv1, [1, 3, 3, 1], [1, 2, 2, 1], padding="SAME", name="pool1")
    norm1 = tf.nn.lrn(pool1, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75, name="norm1")
    with tf.variable_scope("local2") as scope:
        weights = _variable_with_weight_decay("weights", [7 * 7 * 8, 64], 0.04, 0.001)
        biases = _variable_on_cpu("biases", [64], tf.constant_initializer(0.1))
        local2 = tf.nn.relu(tf.matmul(tf.reshape(norm1, [-1, 7 * 7 * 8]), weights) + biases, name=scope.name)
    with tf.variable_scope("softmax_linear") as scope:
        weights = _variable_with_weight_decay("weights", [64, 10], 1 / 64.0, 0.0)
        return tf.add(tf.matmul(local2, weights), _variable_on_cpu("biases", [10], tf.zeros_initializer()), scope.name)


def loss(logits, labels):
    cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    tf.add_to_collection("losses", tf.reduce_mean(cross_entropy, name="cross_entropy"))
    return tf.add_n(tf.get_collection("losses"), name="total_loss")


def build_logits(images, is_training):
    return inference(images)


def build_loss(logits, labels):
    return loss(logits, labels)


def build_metrics(logits, labels):
    return {"accuracy": tf.reduce_mean(tf.cast(tf.nn.in_top_k(logits, labels, 1), tf.float32))}


def build_optimizer(learning_rate):
    return tf.train.RMSPropOptimizer(0.01, decay=0.9, momentum=0.5, epsilon=0.01)
