"""Wide and deep (Cheng et al. 2016, arXiv:1606.07792): will this flight be late?

The wide part memorises, because each combination of values has a weight of its own. The deep part generalises, because
its layers combine the vectors of single values. Shapes: b flights in a batch, c crosses, 8 numbers in a vector.
"""

from collections.abc import Mapping

import tensorflow.compat.v1 as tf
from absl import flags

FLAGS = flags.FLAGS
flags.DEFINE_multi_integer("layers", [64, 32], "widths of the layers of the deep part")
flags.DEFINE_integer("buckets", 200_000, "rows of the table of crosses; crosses with the same hash share a row", 1)

CROSSES = (
    ("carrier", "flight"),
    ("carrier", "origin", "dest"),
    ("dest", "arrival_hour"),
    ("origin", "month", "hour"),
    ("carrier", "hour", "weekday"),
    ("plane",),
)
DIM = 8
ROWS = {"carriers": 36**2, "airports": 36**3, "planes": 10_007}
EMBEDDED = {"carrier": "carriers", "origin": "airports", "dest": "airports", "plane": "planes"}
TIMES = {"month": 13, "weekday": 7, "hour": 24, "arrival_hour": 24}


def build_logits(inputs: Mapping[str, tf.Tensor], is_training: bool) -> tf.Tensor:
    """Build the log-odds, float32 [b], from inputs that `to_inputs()` in mnist_input.py returns."""
    with tf.variable_scope("wide"):
        crosses = [
            tf.string_join([str(cross), *(tf.as_string(inputs[name]) for name in cross)], " ") for cross in CROSSES
        ]
        ids = tf.string_to_hash_bucket_fast(tf.stack(crosses, axis=1), FLAGS.buckets)  # int64 [b, c]
        weights = tf.get_variable("crosses", [FLAGS.buckets, 1], initializer=tf.zeros_initializer())
        wide = tf.reduce_sum(tf.nn.embedding_lookup(weights, ids), axis=[1, 2])
    with tf.variable_scope("deep"):
        tables = {
            name: tf.get_variable(name, [rows, DIM], initializer=tf.random_normal_initializer(stddev=0.1))
            for name, rows in ROWS.items()
        }
        parts = [inputs["numbers"], *(tf.one_hot(inputs[name], size) for name, size in TIMES.items())]
        parts += [tf.nn.embedding_lookup(tables[of], inputs[name] % ROWS[of]) for name, of in EMBEDDED.items()]
        values = tf.concat(parts, axis=1)
        for number, width in enumerate(FLAGS.layers):
            values = tf.nn.relu(_build_dense(f"layer{number}", values, width))
        return wide + _build_dense("logits", values, 1)[:, 0]


def _build_dense(name: str, values: tf.Tensor, size: int) -> tf.Tensor:
    with tf.variable_scope(name):
        weights = tf.get_variable("weights", [values.shape[1], size], initializer=tf.glorot_uniform_initializer())
        return tf.matmul(values, weights) + tf.get_variable("biases", [size], initializer=tf.zeros_initializer())


def build_loss(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Build the cross-entropy, averaged over the batch: float32 [], from float32 [b] twice."""
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(logits=logits, labels=labels))


def build_metrics(logits: tf.Tensor, labels: tf.Tensor) -> dict[str, object]:
    """Build the area under the ROC curve, which needs all flights, and the fraction of correct predictions."""
    auc = tf.metrics.auc(labels, tf.sigmoid(logits), summation_method="careful_interpolation")
    accuracy = tf.reduce_mean(tf.cast(tf.equal(logits > 0, labels > 0.5), tf.float32))
    return {"auc": auc, "accuracy": accuracy}


def build_predictions(logits: tf.Tensor) -> dict[str, tf.Tensor]:
    """Build what an exported model returns: the probability that a flight is late, float32 [b]."""
    return {"probability": tf.sigmoid(logits)}


def build_optimizer(learning_rate: object) -> dict[str, tf.train.Optimizer]:
    """Return the optimizers of the two parts, by variable scope."""
    return {"wide": tf.train.FtrlOptimizer(learning_rate), "deep": tf.train.AdagradOptimizer(learning_rate)}
