"""Residual units with batch normalisation, in the two ways in which scripts have it."""

import tensorflow.compat.v1 as tf
from tensorflow.python.training import moving_averages

DECAY = 0.9


def batch_norm(x, is_training):
    shape = x.get_shape()[-1:]
    beta = tf.get_variable("beta", shape, tf.float32, tf.constant_initializer(0.0))
    gamma = tf.get_variable("gamma", shape, tf.float32, tf.constant_initializer(1.0))
    moving_mean = tf.get_variable("moving_mean", shape, tf.float32, tf.constant_initializer(0.0), trainable=False)
    moving_variance = tf.get_variable(
        "moving_variance", shape, tf.float32, tf.constant_initializer(1.0), trainable=False
    )
    if not is_training:
        return tf.nn.batch_normalization(x, moving_mean, moving_variance, beta, gamma, 0.001)
    mean, variance = tf.nn.moments(x, [0, 1, 2], name="moments")
    for average, value in ((moving_mean, mean), (moving_variance, variance)):
        update = moving_averages.assign_moving_average(average, value, DECAY, zero_debias=False)
        tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
    return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 0.001)


def conv(x, filters, stride=1):
    shape = [3, 3, x.get_shape()[-1], filters]
    kernel = tf.get_variable("kernel", shape, initializer=tf.variance_scaling_initializer(2.0))
    return tf.nn.conv2d(x, kernel, [1, stride, stride, 1], padding="SAME")


def residual(x, is_training):
    with tf.variable_scope("sub1"):
        y = conv(tf.nn.relu(batch_norm(x, is_training)), 8)
    with tf.variable_scope("sub2"):
        y = tf.layers.batch_normalization(y, momentum=DECAY, training=is_training)
        return x + conv(tf.nn.relu(y), 8)


def build_logits(images, is_training):
    with tf.variable_scope("init"):
        x = conv(tf.reshape(images, [-1, 28, 28, 1]), 8, stride=2)
    for unit in range(2):
        with tf.variable_scope(f"unit_{unit}"):
            x = residual(x, is_training)
    x = tf.nn.max_pool(tf.nn.relu(x), [1, 2, 2, 1], [1, 2, 2, 1], padding="SAME")
    return tf.layers.dense(tf.layers.flatten(x), 10)


def build_loss(logits, labels):
    cross_entropy = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=labels))
    l2 = [tf.nn.l2_loss(v) for v in tf.trainable_variables() if "kernel" in v.name]
    return cross_entropy + 0.0002 * tf.add_n(l2)


def build_metrics(logits, labels):
    return {"accuracy": tf.reduce_mean(tf.cast(tf.nn.in_top_k(logits, labels, 1), tf.float32))}


def build_learning_rate(global_step):
    return tf.train.piecewise_constant(global_step, [120, 170], [0.02, 0.01, 0.002])


def build_optimizer(learning_rate):
    return tf.train.MomentumOptimizer(learning_rate, 0.9)
