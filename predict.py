"""Tell which digits pictures show, with a model that distributed.py has exported.

    python predict.py --model DIR picture.png ...

A picture may have any size and any colours, dark on light or light on dark; it shows one digit. It is made into what
MNIST has: the digit, upright, fitted into 20 x 20 pixels, with its centre of mass in the middle of 28 x 28.
"""

import argparse
import os
import sys
from collections.abc import Callable

from runtime import environment  # noqa: F401  # first: it sets what TensorFlow reads when it is imported

# isort: split
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from PIL import Image, ImageFilter, ImageOps

from runtime.errors import UnusableError

Ink = npt.NDArray[np.float64]  # [height, width], from 0 for paper to 1

IMAGE_SIZE, DIGIT_SIZE = 28, 20  # of MNIST, and of the box that a digit fits into there
WORK_SIZE = 280  # every picture is brought to this size first
MIN_CONTRAST = 24  # of 255: a picture with less has no digit
MIN_INK = 0.2  # what is fainter is a shadow, or what JPEG leaves around a stroke
MAX_SLANT = 0.6  # of a digit, sideways for each step up; more is no slant


def prepare(path: str) -> npt.NDArray[np.uint8]:
    """Read a picture and make it into one of MNIST's images, uint8 [28, 28], 0 is paper and 255 is ink.

    Raises:
      UnusableError: it cannot be read, or shows nothing.
    """
    try:
        with Image.open(path) as file:
            picture = _to_8_bits(ImageOps.exif_transpose(file)).convert("RGBA")
    except Exception as error:  # each format's decoder has errors of its own for a broken file
        raise UnusableError(f"{path} cannot be read as a picture: {error}") from error
    picture = picture.resize(_sides(picture.size, WORK_SIZE), Image.Resampling.BICUBIC)
    ink = _find_ink(np.asarray(picture, np.float64))
    if not ink.any():
        raise UnusableError(f"{path} shows no digit: it is empty, or too faint")
    return _center(_fit(_cut_out(_deskew(_cut_out(ink)))))


def _to_8_bits(picture: Image.Image) -> Image.Image:
    """Return a picture whose pixels have 8 bits: those with more are scaled, so that 0 stays 0 as far as it is there.

    Pillow itself would clip them. Such pictures often use a part of their range only, such as 12 of 16 bits.
    """
    if picture.mode not in ("I", "F") and not picture.mode.startswith("I;16"):
        return picture
    pixels = np.nan_to_num(np.asarray(picture, np.float64), posinf=0, neginf=0)
    lowest, highest = min(pixels.min(), 0), max(pixels.max(), 0)
    return Image.fromarray((255 * (pixels - lowest) / ((highest - lowest) or 1)).astype(np.uint8))


def _sides(sides: tuple[int, ...], longest: int) -> tuple[int, int]:
    """Scale the sides of a rectangle so that the longer one has `longest` pixels, and the other at least one."""
    first, second = (max(1, round(side * longest / max(sides))) for side in sides)
    return first, second


def _find_ink(pixels: npt.NDArray[np.float64]) -> Ink:
    """Return how much each pixel, of [height, width, 4], differs from the paper: that is the colour of the border."""
    colors, opacity = pixels[..., :3], pixels[..., 3:] / 255
    if np.median(opacity) < 0.5:  # what is opaque is ink, so any other colour will do as paper
        ink_color = np.average(colors, axis=(0, 1), weights=opacity[..., 0] + 1e-9)
        colors = opacity * colors + (1 - opacity) * np.where(ink_color.mean() < 128, 255, 0)
    border = np.concatenate([colors[0], colors[-1], colors[:, 0], colors[:, -1]])
    difference = np.abs(colors - np.median(border, axis=0)).max(axis=2)
    # A lonely dot is noise.
    solid = np.asarray(Image.fromarray(difference.astype(np.uint8)).filter(ImageFilter.MedianFilter(3)), np.float64)
    if solid.max() < MIN_CONTRAST:
        return np.zeros_like(difference)
    ink = np.minimum(difference / solid.max(), 1)
    ink[np.asarray(solid) < MIN_INK * solid.max()] = 0
    return ink


def _cut_out(ink: Ink) -> Ink:
    """Return the smallest rectangle with all ink."""
    rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
    return ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _deskew(ink: Ink) -> Ink:
    """Return a digit whose slant is taken away: its rows are moved until its ink leans to neither side."""
    rows, columns = (axis - np.average(axis, weights=ink) for axis in np.indices(ink.shape))
    variance = np.average(rows**2, weights=ink)
    slant = np.average(rows * columns, weights=ink) / variance if variance else 0.0
    slant = float(np.clip(slant, -MAX_SLANT, MAX_SLANT))
    margin = int(np.ceil(abs(slant) * ink.shape[0]))
    padded = Image.fromarray(np.pad(ink, ((0, 0), (margin, margin))).astype(np.float32))
    shear = (1, slant, -slant * ink.shape[0] / 2, 0, 1, 0)
    upright = np.asarray(padded.transform(padded.size, Image.Transform.AFFINE, shear, Image.Resampling.BILINEAR))
    return np.where(upright < MIN_INK / 2, 0, upright).astype(np.float64)


def _fit(ink: Ink) -> Ink:
    """Scale a digit so that its longer side has 20 pixels."""
    height, width = _sides(ink.shape, DIGIT_SIZE)
    picture = Image.fromarray(ink.astype(np.float32)).resize((width, height), Image.Resampling.LANCZOS)
    scaled = np.clip(np.asarray(picture, np.float64), 0, 1)
    return scaled / scaled.max()


def _center(ink: Ink) -> npt.NDArray[np.uint8]:
    """Put the centre of mass of a digit into the middle of an image, as far as its edges allow."""
    image = np.zeros((IMAGE_SIZE, IMAGE_SIZE), np.uint8)
    corner = []
    for axis, size in enumerate(ink.shape):
        mass = np.average(np.indices(ink.shape)[axis], weights=ink)
        corner.append(int(np.clip(round((IMAGE_SIZE - 1) / 2 - mass), 0, IMAGE_SIZE - size)))
    image[corner[0] : corner[0] + ink.shape[0], corner[1] : corner[1] + ink.shape[1]] = np.round(255 * ink)
    return image


def load_model(folder: str) -> Callable[..., dict[str, tf.Tensor]]:
    """Load the newest version in a folder of exported models, or the folder itself if it is one.

    Raises:
      UnusableError: there is none, or it cannot be loaded.
    """
    versions = [name for name in os.listdir(folder) if name.isdigit()] if os.path.isdir(folder) else []
    try:
        model = tf.saved_model.load(os.path.join(folder, max(versions, key=int, default="")))
        return model.signatures["serving_default"]
    except (OSError, KeyError, tf.errors.OpError) as error:
        remedy = "give what distributed.py was given as --export_dir"
        raise UnusableError(f"--model {folder} has no exported model that can be loaded: {remedy}") from error


def main() -> None:
    """Print the class of each picture, and how sure the model is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", metavar="DIR", required=True, help="the --export_dir of distributed.py")
    parser.add_argument("pictures", metavar="picture", nargs="+", help="a picture of one digit")
    arguments = parser.parse_args()
    try:
        images = np.stack([prepare(path) for path in arguments.pictures])
        outputs = load_model(arguments.model)(images=tf.constant(images))
    except UnusableError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    classes, probabilities = outputs["classes"].numpy(), outputs["probabilities"].numpy()
    for path, label, of_classes in zip(arguments.pictures, classes, probabilities, strict=True):
        print(f"{path}: {label} ({100 * of_classes[label]:.1f} %)")


if __name__ == "__main__":
    main()
