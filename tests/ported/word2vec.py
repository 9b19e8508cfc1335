"""Skip-gram with noise-contrastive estimation, on a made-up text whose words come in groups."""

from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

VOCABULARY, DIM, SAMPLED, GROUP = 400, 16, 16, 10
INPUT = tf.TensorSpec([], tf.int32, "words")


class DataError(Exception):
    pass


class Pairs(NamedTuple):
    words: np.ndarray
    contexts: np.ndarray


def load(data_dir, split):
    random = np.random.default_rng(1 if split == "train" else 2)
    words = (VOCABULARY * random.uniform(size=20000) ** 2).astype(np.int32)
    return Pairs(words, (words // GROUP * GROUP + random.integers(0, GROUP, len(words))).astype(np.int32))


def decode(words, contexts):
    return to_inputs(words), contexts


def to_inputs(words):
    return words


def build_logits(train_inputs, is_training):
    embeddings = tf.Variable(tf.random_uniform([VOCABULARY, DIM], -1.0, 1.0), name="embeddings")
    return tf.nn.embedding_lookup(embeddings, train_inputs)


def build_loss(embed, train_labels):
    nce_weights = tf.Variable(tf.truncated_normal([VOCABULARY, DIM], stddev=DIM**-0.5), name="nce_weights")
    nce_biases = tf.Variable(tf.zeros([VOCABULARY]), name="nce_biases")
    loss = tf.nn.nce_loss(
        weights=nce_weights,
        biases=nce_biases,
        labels=tf.expand_dims(train_labels, 1),
        inputs=embed,
        num_sampled=SAMPLED,
        num_classes=VOCABULARY,
    )
    return tf.reduce_mean(loss)


def build_optimizer(learning_rate):
    return tf.train.GradientDescentOptimizer(1.0)
