"""How good is the model that the ps tasks hold?"""

from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

import mnist_input
import model

BATCH_SIZE = 1000  # the activations of cnn for all test images would take a gigabyte


class Measures(NamedTuple):
    """What was found."""

    loss: float
    accuracy: float  # in [0, 1]
    global_step: int  # that the parameters had


class Evaluation:
    """The part of the graph that measures the model on given examples."""

    def __init__(self, model_name: str, hidden_units: int):
        """Build the model, with its variables if they are not there yet: see `model.build_logits()`."""
        self._images = tf.placeholder(tf.uint8, [None, mnist_input.NUM_PIXELS], name="test_images")
        self._labels = tf.placeholder(tf.uint8, [None], name="test_labels")
        logits = model.build_logits(mnist_input.to_float(self._images), model_name, hidden_units)
        labels = tf.cast(self._labels, tf.int32)
        self._measures = [model.build_loss(logits, labels), model.build_accuracy(logits, labels)]
        self._global_step = tf.train.get_global_step()

    def run(self, session: tf.Session, examples: mnist_input.Examples) -> Measures:
        """Measure the parameters as they are now on all `examples`."""
        sums = np.zeros(2)
        for start in range(0, len(examples.labels), BATCH_SIZE):
            images, labels = (part[start : start + BATCH_SIZE] for part in examples)
            sums += len(labels) * np.array(session.run(self._measures, {self._images: images, self._labels: labels}))
        loss, accuracy = sums / len(examples.labels)
        return Measures(float(loss), float(accuracy), int(session.run(self._global_step)))
