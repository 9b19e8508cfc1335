"""Two convolutions, dropout and a rate that decays, in the form of the deep tutorials for MNIST."""

import tensorflow.compat.v1 as tf


def weight_variable(shape):
    return tf.Variable(tf.truncated_normal(shape, stddev=0.1))


def bias_variable(shape):
    return tf.Variable(tf.constant(0.1, shape=shape))


def conv2d(x, w):
    return tf.nn.conv2d(x, w, strides=[1, 1, 1, 1], padding="SAME")


def max_pool_2x2(x):
    return tf.nn.max_pool(x, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME")


def deepnn(x, keep_prob):
    with tf.name_scope("conv1"):
        x_image = tf.reshape(x, [-1, 28, 28, 1])
        h_conv1 = tf.nn.relu(conv2d(x_image, weight_variable([5, 5, 1, 8])) + bias_variable([8]))
        h_pool1 = max_pool_2x2(h_conv1)
    with tf.name_scope("conv2"):
        h_conv2 = tf.nn.relu(conv2d(h_pool1, weight_variable([5, 5, 8, 16])) + bias_variable([16]))
        h_pool2 = tf.reshape(max_pool_2x2(h_conv2), [-1, 7 * 7 * 16])
    with tf.name_scope("fc1"):
        h_fc1 = tf.nn.relu(tf.matmul(h_pool2, weight_variable([7 * 7 * 16, 64])) + bias_variable([64]))
        h_fc1_drop = tf.nn.dropout(h_fc1, keep_prob)
    with tf.name_scope("fc2"):
        return tf.matmul(h_fc1_drop, weight_variable([64, 10])) + bias_variable([10])


def build_logits(images, is_training):
    return deepnn(images, keep_prob=0.5 if is_training else 1.0)


def build_loss(logits, labels):
    return tf.losses.sparse_softmax_cross_entropy(labels=labels, logits=logits)


def build_metrics(logits, labels):
    return {"accuracy": tf.reduce_mean(tf.cast(tf.nn.in_top_k(logits, labels, 1), tf.float32))}


def build_learning_rate(global_step):
    return tf.train.exponential_decay(0.004, global_step, 50, 0.7, staircase=True)


def build_optimizer(learning_rate):
    return tf.train.AdamOptimizer(learning_rate)
