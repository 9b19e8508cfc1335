"""What a model takes for what: the confusion matrix, and its worst mistakes."""

import base64
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL import Image

NUM_MISTAKES = 24

# The picture of the mistakes, in pixels: each is enlarged, and has its caption below.
COLUMNS, SCALE, CAPTION_SIZE, GAP = 6, 4, 13, 8


def find_mistakes(
    logits: npt.NDArray[np.float32], images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]
) -> dict[str, Any]:
    """Return what the model takes for what, as JSON can express it.

    Args:
      logits: float32 [n, classes].
      images: uint8 [n, pixels].
      labels: uint8 [n].

    Returns:
      `confusion`: how many examples of each class (row) were taken for each class (column). `mistakes`: the examples of
      which the model was most sure and wrong, each with its index, label, guess, the probability of the guess, and the
      pixels in Base64.
    """
    guesses = logits.argmax(axis=1)
    confusion = np.zeros((logits.shape[1],) * 2, np.int64)
    np.add.at(confusion, (labels, guesses), 1)
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = exponentials.max(axis=1) / exponentials.sum(axis=1)
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


def draw_mistakes(mistakes: Sequence[dict[str, Any]]) -> "Image.Image":
    """Return a picture of `mistakes`, one at least, as `find_mistakes()` returns them: each with its label and guess."""
    from PIL import Image, ImageDraw, ImageFont  # here, since only the chief draws, and only at the end

    images = [np.frombuffer(base64.b64decode(mistake["pixels"]), np.uint8) for mistake in mistakes]
    side = math.isqrt(len(images[0]))
    size = SCALE * side
    width, height = size + GAP, size + CAPTION_SIZE + 2 * GAP
    rows = math.ceil(len(images) / COLUMNS)
    picture = Image.new("L", (COLUMNS * width + GAP, rows * height + GAP), color=255)
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(CAPTION_SIZE)
    for number, (mistake, pixels) in enumerate(zip(mistakes, images, strict=True)):
        row, column = divmod(number, COLUMNS)
        left, top = GAP + column * width, GAP + row * height
        digit = Image.fromarray(255 - pixels.reshape(side, side))  # ink is black
        picture.paste(digit.resize((size, size)), (left, top))
        draw.rectangle((left, top, left + size - 1, top + size - 1), outline=192)
        caption = f"{mistake['label']}, taken for {mistake['guess']}"
        draw.text((left + size // 2, top + size + 2), caption, fill=0, font=font, anchor="ma")
    return picture
