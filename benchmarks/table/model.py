"""A model that is little more than its table: rows of 20 numbers, of which an example needs eight."""

import tensorflow.compat.v1 as tf
from absl import flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("rows", 10_000, "rows of the table", lower_bound=1)
DIM = 20


def build_logits(numbers, is_training):
    """Build the logits, float32 [b, 2], of the mean of the rows that some numbers, int32 [b, 8], say."""
    initializer = tf.random_uniform_initializer(-1 / DIM, 1 / DIM)
    table = tf.get_variable("table", [FLAGS.rows, DIM], initializer=initializer)
    rows = tf.nn.embedding_lookup(table, numbers % FLAGS.rows)
    return tf.matmul(tf.reduce_mean(rows, axis=1), tf.get_variable("logits", [DIM, 2]))


def build_loss(logits, labels):
    """Build the cross-entropy, averaged over the batch, float32 []."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=labels))


def build_metrics(logits, labels):
    """Build the fraction of examples that are right, float32 []."""
    predictions = tf.argmax(logits, axis=1, output_type=tf.int32)
    return {"accuracy": tf.reduce_mean(tf.cast(tf.equal(predictions, labels), tf.float32))}
