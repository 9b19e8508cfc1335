"""How good the model is that the ps tasks hold."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

BATCH_SIZE = 1000  # the activations of the cnn for all test images at once would take a gigabyte


class Measures(NamedTuple):
    """How good the model is on some examples."""

    loss: float
    accuracy: float  # in [0, 1]
    global_step: int  # that the parameters had


class Evaluation(NamedTuple):
    """The part of the graph that measures the model on the examples that it is fed."""

    images: tf.Tensor  # a placeholder, [n, ...]
    labels: tf.Tensor  # a placeholder, [n]
    loss: tf.Tensor  # float32 [], averaged over them
    accuracy: tf.Tensor  # float32 []

    def run(self, session: tf.Session, images: Any, labels: Any) -> Measures:
        """Measure the parameters as they are now on all of `images` and `labels`."""
        sums = np.zeros(2)
        for start in range(0, len(labels), BATCH_SIZE):
            batch = slice(start, start + BATCH_SIZE)
            feed_dict = {self.images: images[batch], self.labels: labels[batch]}
            sums += len(labels[batch]) * np.array(session.run([self.loss, self.accuracy], feed_dict))
        loss, accuracy = sums / len(labels)
        return Measures(float(loss), float(accuracy), int(session.run(tf.train.get_global_step(session.graph))))
