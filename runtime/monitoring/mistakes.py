"""What a model takes for what: the confusion matrix, and its worst mistakes."""

import base64
from typing import Any

import numpy as np
import numpy.typing as npt

NUM_MISTAKES = 24


def find_mistakes(
    logits: npt.NDArray[np.float32], images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]
) -> dict[str, Any]:
    """Return what the model takes for what, as JSON can express it, from [n, classes], [n, pixels] and [n].

    `confusion`: how many examples of each class (row) were taken for each class (column). `mistakes`: the examples of
    which the model was most sure and wrong, each with its index, label, guess, the probability of the guess, and the
    pixels in Base64.
    """
    guesses = logits.argmax(axis=1)
    confusion = np.zeros((logits.shape[1],) * 2, np.int64)
    np.add.at(confusion, (labels, guesses), 1)
    probabilities = 1 / np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)  # softmax, of the guess alone
    wrong = np.flatnonzero(guesses != labels)
    mistakes = [
        {
            "index": int(index),
            "label": int(labels[index]),
            "guess": int(guesses[index]),
            "probability": round(float(probabilities[index]), 4),
            "pixels": base64.b64encode(images[index].tobytes()).decode(),
        }
        for index in wrong[np.argsort(-probabilities[wrong], kind="stable")][:NUM_MISTAKES]
    ]
    return {"confusion": confusion.tolist(), "mistakes": mistakes}
