"""What a model takes for what: the confusion matrix, and its worst mistakes."""

import base64
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.data.reader import Columns

NUM_MISTAKES = 24


def find_mistakes(logits: npt.NDArray[np.float32], examples: Columns) -> dict[str, Any]:
    """Return what the model takes for what, as JSON can express it.

    `classes`: their names, if `examples.name(label)` tells them, or numbers. `confusion`: how many examples of each
    class (row) were taken for each class (column). `mistakes`: the examples of which the model was most sure and wrong,
    each with its index, label, guess and the probability of the guess; and with the text of `examples.show(index)` or,
    if there is no such method, its bytes in Base64.

    Args:
      logits: [n, classes].
      examples: inputs, [n, ...], and labels, [n].
    """
    inputs, labels = examples
    guesses = logits.argmax(axis=1)
    confusion = np.zeros((logits.shape[1],) * 2, np.int64)
    np.add.at(confusion, (labels, guesses), 1)
    probabilities = 1 / np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)  # softmax, of the guess alone
    wrong = np.flatnonzero(guesses != labels)
    name = getattr(examples, "name", int)
    classes = [str(name(label)) for label in range(len(confusion))]
    mistakes = []
    for index in wrong[np.argsort(-probabilities[wrong], kind="stable")][:NUM_MISTAKES]:
        mistake = {"index": int(index), "label": classes[labels[index]], "guess": classes[guesses[index]]}
        mistake["probability"] = round(float(probabilities[index]), 4)
        if hasattr(examples, "show"):
            mistake["text"] = str(examples.show(index))
        else:
            mistake["pixels"] = base64.b64encode(inputs[index].tobytes()).decode()
        mistakes.append(mistake)
    return {"classes": classes, "confusion": confusion.tolist(), "mistakes": mistakes}
