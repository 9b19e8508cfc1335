"""A hidden layer of `tf.Variable`s, in the form of the replicated scripts for MNIST."""

import tensorflow.compat.v1 as tf

PIXELS, HIDDEN, CLASSES = 784, 100, 10


def inference(x):
    hid_w = tf.Variable(tf.truncated_normal([PIXELS, HIDDEN], stddev=PIXELS**-0.5), name="hid_w")
    hid_b = tf.Variable(tf.zeros([HIDDEN]), name="hid_b")
    sm_w = tf.Variable(tf.truncated_normal([HIDDEN, CLASSES], stddev=HIDDEN**-0.5), name="sm_w")
    sm_b = tf.Variable(tf.zeros([CLASSES]), name="sm_b")
    hid = tf.nn.relu(tf.nn.xw_plus_b(x, hid_w, hid_b))
    return tf.nn.softmax(tf.nn.xw_plus_b(hid, sm_w, sm_b))


def build_logits(images, is_training):
    return inference(images)


def build_loss(y, labels):
    y_ = tf.one_hot(labels, CLASSES)
    return tf.reduce_mean(-tf.reduce_sum(y_ * tf.log(tf.clip_by_value(y, 1e-10, 1.0)), axis=1))


def build_metrics(y, labels):
    return {"accuracy": tf.reduce_mean(tf.cast(tf.equal(tf.argmax(y, 1, output_type=tf.int32), labels), tf.float32))}


def build_optimizer(learning_rate):
    return tf.train.AdamOptimizer(0.003)
