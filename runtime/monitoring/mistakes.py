"""What a model takes for what: the confusion matrix, and its worst mistakes."""

import base64
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow.compat.v1 as tf

from runtime.data.reader import Columns

NUM_MISTAKES = 24
MAX_TEXT = 200  # characters of one that is no picture
MAX_CLASSES = 50  # of a confusion matrix that somebody can read
NUM_PAIRS = 20  # of classes, where there are more


class Guesses(NamedTuple):
    """What a model takes some examples for; of the probabilities, which may be many, no others are kept."""

    classes: npt.NDArray[np.int64]  # [n]
    probabilities: npt.NDArray[np.float32]  # [n], of these


def guess(probabilities: npt.NDArray[np.float32]) -> Guesses:
    """Return the guesses of a batch, from float32 [n, classes]."""
    return Guesses(probabilities.argmax(axis=1), probabilities.max(axis=1))


def find_mistakes(
    batches: Sequence[Guesses],
    labels: npt.NDArray[Any],
    examples: Columns,
    num_classes: int,
    spec: Any,
    names: Sequence[str] = (),
) -> dict[str, Any]:
    """Return what the model takes for what, as JSON can express it, in a size that the report can show.

    `confusion`: how many examples of each class (row) were taken for each class (column), and the names of the
    `classes`, or their numbers. Where these are more than `MAX_CLASSES`, `num_classes` and
    `confused`: the pairs that were most often confused, [name of the label, name of the guess, how many].

    `mistakes`: the examples of which the model was most sure and wrong, each with its index, label, guess and the
    probability of the guess; and with the `text` of `examples.show(index)`, or with the `shape` and the `pixels`, in
    Base64, of a picture; or with its numbers as `text`.

    Args:
      batches: what it takes the examples for, in their order.
      labels: of the examples, integers [n], as the model takes them.
      examples: inputs, [n, ...], and what labels were made of.
      num_classes: how many there are.
      spec: says what an input is: see `choose_picture_shape()`.
      names: of the classes, by their labels, if they have any.
    """
    *inputs, _ = examples
    guesses, probabilities = map(np.concatenate, zip(*batches, strict=True))

    def name(label: int) -> str:
        return names[label] if names else str(label)

    wrong = np.flatnonzero(guesses != labels)
    found, shape = _count(labels, guesses, num_classes, name), choose_picture_shape(spec)
    found["mistakes"] = []
    for index in wrong[np.argsort(-probabilities[wrong], kind="stable")][:NUM_MISTAKES]:
        mistake = {"index": int(index), "label": name(int(labels[index])), "guess": name(int(guesses[index]))}
        mistake["probability"] = round(float(probabilities[index]), 4)
        if hasattr(examples, "show"):
            mistake["text"] = str(examples.show(index))[:MAX_TEXT]
        elif shape:
            mistake |= {"shape": shape, "pixels": base64.b64encode(inputs[0][index].tobytes()).decode()}
        else:
            arrays = (np.asarray(part[index]) for part in inputs)  # that of a text is none
            parts = (np.array2string(array, precision=3, threshold=8, edgeitems=3) for array in arrays)
            mistake["text"] = ", ".join(parts)[:MAX_TEXT]
        found["mistakes"].append(mistake)
    return found


def choose_picture_shape(spec: Any) -> list[int]:
    """Return the shape of the pictures that inputs are, if `spec` is uint8 [h, w] or [h, w, 1 or 3]; else []."""
    shape: list[int] = spec.shape.as_list() if isinstance(spec, tf.TensorSpec) and spec.dtype == tf.uint8 else []
    return shape if len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3)) else []


def _count(
    labels: npt.NDArray[Any], guesses: npt.NDArray[Any], num_classes: int, name: Callable[[int], str]
) -> dict[str, Any]:
    """Return the confusion matrix or, of many classes, the pairs that were most often confused."""
    pairs = labels.astype(np.int64) * num_classes + guesses
    if num_classes <= MAX_CLASSES:
        confusion = np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)
        return {"classes": [name(label) for label in range(num_classes)], "confusion": confusion.tolist()}
    pairs, counts = np.unique(pairs[labels != guesses], return_counts=True)
    most = np.argsort(-counts, kind="stable")[:NUM_PAIRS]
    confused = [[*map(name, divmod(int(pairs[place]), num_classes)), int(counts[place])] for place in most]
    return {"num_classes": num_classes, "confused": confused}
