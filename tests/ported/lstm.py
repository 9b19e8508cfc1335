"""An LSTM over sequences of several lengths, which tells lines from noise."""

from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

MAX_LENGTH, HIDDEN = 12, 16
INPUT = {"x": tf.TensorSpec([MAX_LENGTH, 1], tf.float32), "seqlen": tf.TensorSpec([], tf.int32)}


class DataError(Exception):
    pass


class Sequences(NamedTuple):
    x: np.ndarray
    seqlen: np.ndarray
    labels: np.ndarray


def load(data_dir, split):
    random = np.random.default_rng(1 if split == "train" else 2)
    size = 6000
    lengths = random.integers(6, MAX_LENGTH + 1, size).astype(np.int32)
    labels = random.integers(0, 2, size).astype(np.int32)
    lines = random.uniform(0, 0.5, (size, 1)) + np.arange(MAX_LENGTH) * 0.04
    x = np.where(labels[:, None] == 1, lines, random.uniform(0, 1, (size, MAX_LENGTH)))
    x[np.arange(MAX_LENGTH) >= lengths[:, None]] = 0
    return Sequences(x[:, :, None].astype(np.float32), lengths, labels)


def decode(x, seqlen, labels):
    return to_inputs(x, seqlen), labels


def to_inputs(x, seqlen):
    return {"x": x, "seqlen": seqlen}


def dynamic_rnn(x, seqlen, weights, biases):
    cell = tf.nn.rnn_cell.BasicLSTMCell(HIDDEN)
    outputs, _ = tf.nn.dynamic_rnn(cell, x, dtype=tf.float32, sequence_length=seqlen)
    index = tf.range(0, tf.shape(outputs)[0]) * MAX_LENGTH + (seqlen - 1)
    last = tf.gather(tf.reshape(outputs, [-1, HIDDEN]), index)
    return tf.matmul(last, weights["out"]) + biases["out"]


def build_logits(inputs, is_training):
    weights = {"out": tf.Variable(tf.random_normal([HIDDEN, 2]))}
    biases = {"out": tf.Variable(tf.random_normal([2]))}
    return dynamic_rnn(inputs["x"], inputs["seqlen"], weights, biases)


def build_loss(pred, labels):
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(logits=pred, labels=tf.one_hot(labels, 2)))


def build_metrics(pred, labels):
    return {"accuracy": tf.reduce_mean(tf.cast(tf.equal(tf.argmax(pred, 1, output_type=tf.int32), labels), tf.float32))}


def build_optimizer(learning_rate):
    return tf.train.AdamOptimizer(0.01)
