"""A wide and a deep part of feature columns, each with an optimizer of its own, and made-up rows of a census."""

from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

EDUCATIONS, OCCUPATIONS = 8, 12
INPUT = {
    "age": tf.TensorSpec([], tf.float32),
    "education": tf.TensorSpec([], tf.int64),
    "occupation": tf.TensorSpec([], tf.int64),
}


class DataError(Exception):
    pass


class Rows(NamedTuple):
    age: np.ndarray
    education: np.ndarray
    occupation: np.ndarray
    income: np.ndarray


def load(data_dir, split):
    pay = np.random.default_rng(0).normal(size=[EDUCATIONS, OCCUPATIONS])
    random = np.random.default_rng(1 if split == "train" else 2)
    size = 8000
    age = random.uniform(17, 90, size).astype(np.float32)
    education, occupation = random.integers(0, EDUCATIONS, size), random.integers(0, OCCUPATIONS, size)
    odds = 2 * pay[education, occupation] + 2 - ((age - 50) / 20) ** 2
    return Rows(age, education, occupation, (random.uniform(size=size) < 1 / (1 + np.exp(-odds))).astype(np.float32))


def decode(age, education, occupation, income):
    return to_inputs(age, education, occupation), income


def to_inputs(age, education, occupation):
    return {"age": age, "education": education, "occupation": occupation}


def build_model_columns():
    age = tf.feature_column.numeric_column("age", normalizer_fn=lambda x: (x - 50.0) / 20.0)
    buckets = tf.feature_column.bucketized_column(
        tf.feature_column.numeric_column("age"), boundaries=[25, 35, 45, 55, 65, 75]
    )
    education = tf.feature_column.categorical_column_with_identity("education", EDUCATIONS)
    occupation = tf.feature_column.categorical_column_with_identity("occupation", OCCUPATIONS)
    crossed = tf.feature_column.crossed_column(["education", "occupation"], hash_bucket_size=1000)
    wide = [education, occupation, buckets, crossed]
    return wide, [age, tf.feature_column.indicator_column(education), tf.feature_column.embedding_column(occupation, 4)]


def build_logits(features, is_training):
    wide, deep = build_model_columns()
    with tf.variable_scope("dnn"):
        net = tf.feature_column.input_layer(features, deep)
        for units in (16, 8):
            net = tf.layers.dense(net, units, activation=tf.nn.relu)
        logits = tf.layers.dense(net, 1)
    with tf.variable_scope("linear"):
        logits += tf.feature_column.linear_model(features, wide)
    return tf.squeeze(logits, axis=1)


def build_loss(logits, labels):
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))


def build_metrics(logits, labels):
    return {"auc": tf.metrics.auc(labels, tf.sigmoid(logits))}


def build_predictions(logits):
    return {"probabilities": tf.sigmoid(logits)}


def build_optimizer(learning_rate):
    return {"linear": tf.train.FtrlOptimizer(0.5), "dnn": tf.train.AdagradOptimizer(0.1)}
