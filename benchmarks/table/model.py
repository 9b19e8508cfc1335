"""A model that is little more than its table: `--hidden_units` rows of 20 numbers, of which an example needs eight."""

from collections.abc import Mapping

import tensorflow.compat.v1 as tf

from runtime.tables import Table

MODELS = ("table",)
DIM = 20
num_rows = 0


def build_parameters(model: str, hidden_units: int) -> dict[str, object]:
    """Make the table and a layer of logits."""
    global num_rows
    num_rows = hidden_units
    return {"table": Table(num_rows, DIM), "logits": tf.get_variable("logits", [DIM, 2])}


def build_ids(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
    """Build which rows examples need: int32 [b, 8]."""
    return {"table": inputs % num_rows}


def build_logits(parameters: Mapping[str, tf.Tensor], inputs: tf.Tensor) -> tf.Tensor:
    """Build the logits, float32 [b, 2], of the mean of the rows."""
    return tf.matmul(tf.reduce_mean(parameters["table"], axis=1), parameters["logits"])


def build_loss(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Build the cross-entropy, averaged over the batch, float32 []."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=labels))


def build_accuracy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Build the fraction of examples that are right, float32 []."""
    return tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), labels), tf.float32))
