"""A picture of the worst mistakes, for TensorBoard. It needs PIL, which takes a moment to import."""

import base64
import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from PIL import Image, ImageDraw, ImageFont

COLUMNS = 6
SCALE = 4  # pixels of the picture to one of an example
GAP = 8  # as what follows, in pixels of the picture
CAPTION_SIZE = 13


def draw_mistakes(mistakes: Sequence[dict[str, Any]]) -> tf.Summary.Image:
    """Draw each of `mistakes`, one at least, as `find_mistakes()` returns them, with its label and guess.

    Images that are no grey squares become squares without meaning.
    """
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
        digit = Image.fromarray(255 - pixels[: side * side].reshape(side, side))  # ink is black
        picture.paste(digit.resize((size, size)), (left, top))
        draw.rectangle((left, top, left + size - 1, top + size - 1), outline=192)
        caption = f"{mistake['label']}, taken for {mistake['guess']}"
        draw.text((left + size // 2, top + size + 2), caption, fill=0, font=font, anchor="ma")
    file = io.BytesIO()
    picture.save(file, "PNG")
    return tf.Summary.Image(
        width=picture.width, height=picture.height, colorspace=1, encoded_image_string=file.getvalue()
    )
