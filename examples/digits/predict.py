"""Classify pictures of digits with a model that distributed.py has exported.

    python examples/digits/predict.py --model DIR [--user_dir DIR] picture.png ...

A picture shows one digit. It may have any size and any colours, dark on light or light on dark, and it may be a
photograph in uneven light. As in MNIST, the digit is made upright and scaled to 20 x 20 pixels. Its centre of mass
comes into the middle of 28 x 28 pixels.
"""

import argparse
import functools
import io
import os
import pathlib
import sys
from collections.abc import Callable, Mapping

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))  # where runtime/ is

from runtime.process import environment  # noqa: F401  # first: it sets what TensorFlow reads when it is imported

# isort: split
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from PIL import Image, ImageFilter

from runtime.data.pictures import open_upright
from runtime.process.errors import UNUSABLE_STATUS, UnusableError
from runtime.roles import program

Ink = npt.NDArray[np.float64]  # [height, width], from 0 for paper to 1

IMAGE_SIZE, DIGIT_SIZE = 28, 20  # of MNIST, and of the box that a digit fits into there
EXPECTED = {"classes": (1,), "probabilities": (1, 10)}  # of what the model returns
WORK_SIZE = 280  # every picture is brought to this size first
MIN_CONTRAST = 24  # of 255: a picture with less has no digit
MIN_INK = 0.2  # what is fainter is a shadow, or what JPEG leaves around a stroke
MAX_UNEVENNESS = 3  # of 255: a border whose quarter differs more is of a sheet in uneven light
MIN_INK_OF_PHOTO = 0.4  # what is fainter there may be squared paper
PAPER_SCALE, PAPER_SIZE = 4, 25  # to see the paper: so many pixels become one, and so many around count
MIN_SHARE = 0.25  # of all ink, in a digit beside another one
MIN_PROBABILITY = 0.8  # below this, the answer begins with "perhaps"
MAX_SLANT = 0.6  # of a digit, sideways for each step down; more is not slant
OVERSAMPLING = 20  # so many pixels, in each direction, become one: enough that no pixel of a picture is left out


def prepare(path: str) -> npt.NDArray[np.uint8]:
    """Read a picture and return an image like MNIST's, uint8 [28, 28], where 0 is paper and 255 is ink.

    Raises:
      UnusableError: the picture cannot be read, or shows no digit or several.
    """
    try:
        picture = open_upright(path).convert("RGBA")
    except Exception as error:  # each format's decoder has errors of its own for a broken file
        raise UnusableError(f"{path} cannot be read as a picture: {error}") from error
    width, height = (max(1, round(side * WORK_SIZE / max(picture.size))) for side in picture.size)
    picture = picture.resize((width, height), Image.Resampling.BICUBIC)
    ink = _find_ink(np.asarray(picture, np.float64))
    if not ink.any():
        raise UnusableError(f"{path} shows no digit: it is empty, or too faint")
    if _has_gap(ink) or _has_gap(ink.T):
        raise UnusableError(f"{path} shows several digits: cut it into pictures of one digit each")
    return _center(ink)


def _find_ink(pixels: npt.NDArray[np.float64]) -> Ink:
    """Return how much each pixel of [height, width, 4] differs from the paper, whose colour the border has."""
    colors, opacity = pixels[..., :3], pixels[..., 3:] / 255
    if np.median(opacity) < 0.5:  # what is opaque is ink, so any other colour will do as paper
        ink_color = np.average(colors, axis=(0, 1), weights=opacity[..., 0] + 1e-9)
        colors = opacity * colors + (1 - opacity) * np.where(ink_color.mean() < 128, 255, 0)
    border = np.concatenate([colors[0], colors[-1], colors[:, 0], colors[:, -1]])
    paper = np.median(border, axis=0)
    difference, min_ink, dot_size = np.abs(colors - paper).max(axis=2), MIN_INK, 3
    if np.percentile(np.abs(border - paper).max(axis=1), 75) > MAX_UNEVENNESS:
        paper = _find_paper(colors)
        # Light and shadow multiply what comes from the paper and from the ink alike.
        difference = 255 * (np.abs(colors - paper) / np.maximum(np.maximum(colors, paper), 1)).max(axis=2)
        min_ink, dot_size = MIN_INK_OF_PHOTO, 5
    # A lonely dot is noise, and so is a line that is thinner than strokes are.
    dots = ImageFilter.MedianFilter(dot_size)
    solid = np.asarray(Image.fromarray(difference.astype(np.uint8)).filter(dots), np.float64)
    if solid.max() < MIN_CONTRAST:
        return np.zeros_like(difference)
    return np.where(solid < min_ink * solid.max(), 0, np.minimum(difference / solid.max(), 1))


def _find_paper(colors: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the colour of a photographed sheet at each pixel, [height, width, 3], from the pixels around it."""
    picture = Image.fromarray(colors.astype(np.uint8))
    small = picture.reduce(PAPER_SCALE)
    bands = [band.filter(ImageFilter.MedianFilter(PAPER_SIZE)) for band in small.split()]
    return np.asarray(Image.merge("RGB", bands).resize(picture.size, Image.Resampling.BICUBIC), np.float64)


def _has_gap(ink: Ink) -> bool:
    """Return whether columns without ink separate two parts that are both too large for a piece of one digit."""
    of_columns = ink.sum(axis=0)
    shares = np.cumsum(of_columns)[of_columns == 0] / of_columns.sum()
    return bool(np.any((shares > MIN_SHARE) & (shares < 1 - MIN_SHARE)))


def _center(ink: Ink) -> npt.NDArray[np.uint8]:
    """Make a digit upright, scale its longer side to 20 pixels, and put its centre of mass into the middle.

    A digit is upright if its ink leans to neither side. It stays inside the image even if its mass is at one end.
    """
    rows, columns = (places + 0.5 for places in np.nonzero(ink))
    mean = functools.partial(np.average, weights=ink[ink > 0])
    heights = rows - mean(rows)
    variance = mean(heights**2)
    slant = np.clip(mean(heights * columns) / variance if variance else 0, -MAX_SLANT, MAX_SLANT)
    upright = columns - slant * heights
    scale = (max(np.ptp(rows), np.ptp(upright)) + 1) / DIGIT_SIZE  # pixels of the picture to one of the image
    starts = []  # where the top and the left side of the image lie in the picture
    for places in (rows, upright):
        edge, length = places.min() - 0.5, np.ptp(places) + 1
        margin = scale * IMAGE_SIZE / 2 - (mean(places) - edge)
        starts.append(edge - np.clip(margin, 0, scale * IMAGE_SIZE - length))
    top, left = starts
    fine = scale / OVERSAMPLING
    to_picture = (fine, slant * fine, left + slant * (top - mean(rows)), 0, fine, top)
    size = (OVERSAMPLING * IMAGE_SIZE,) * 2
    picture = Image.fromarray(ink.astype(np.float32)).transform(size, Image.Transform.AFFINE, to_picture)
    image = np.asarray(picture.reduce(OVERSAMPLING))
    return np.round(255 * image / image.max()).astype(np.uint8)


def load_model(folder: str, spec: Mapping[str, tf.TensorSpec]) -> Callable[..., dict[str, tf.Tensor]]:
    """Load the newest model in a folder of exports, or the folder itself if it is a model; the result takes one image.

    Raises:
      UnusableError: there is no model, it cannot be loaded, or it does not take what `spec`, or `INPUT`, says.
    """
    try:
        versions = [name for name in os.listdir(folder) if name.isdigit()]
        loaded = tf.saved_model.load(os.path.join(folder, max(versions, key=int, default="")))
        model = loaded.signatures["serving_default"]
    except (OSError, KeyError, tf.errors.OpError) as error:
        remedy = "give the --export_dir of distributed.py"
        raise UnusableError(f"--model {folder} has no exported model that can be loaded: {remedy}") from error
    inputs, outputs = model.structured_input_signature[1], model.structured_outputs
    found = {**inputs, **outputs}
    expected = {name: (1, *of_name.shape) for name, of_name in spec.items()} | EXPECTED
    fits = [name in found and found[name].shape.is_compatible_with(shape) for name, shape in expected.items()]
    images = [(of_name.dtype, of_name.shape[1:].num_elements()) for of_name in inputs.values()]
    if images != [(tf.uint8, IMAGE_SIZE**2)] or not all(fits):
        shapes = "; ".join(f"{name} {of_name.dtype.name} {of_name.shape}" for name, of_name in found.items())
        raise UnusableError(
            f"--model {folder} has a model of {shapes}, expected uint8 images of 28 x 28, as INPUT says, and classes"
            " and probabilities of ten digits: give a model of pictures of digits, and its --user_dir"
        )
    (name,) = inputs
    return lambda image: model(**{name: tf.constant(image.reshape(expected[name]))})


def main() -> None:
    """Print the class of each picture, and how sure the model is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", metavar="DIR", required=True, help="the --export_dir of distributed.py")
    parser.add_argument("--user_dir", help="folder with its model.py and mnist_input.py, as for distributed.py")
    parser.add_argument("pictures", metavar="picture", nargs="+", help="a picture of one digit")
    arguments = parser.parse_args()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # the name of a picture need not be text
    status = 0
    try:
        model = load_model(arguments.model, program.import_files().inputs)
        for path in arguments.pictures:
            try:
                outputs = model(prepare(path))
            except UnusableError as error:  # of this picture
                status = _say(error)
                continue
            (label,), (probabilities,) = outputs["classes"].numpy(), outputs["probabilities"].numpy()
            doubt = "perhaps " if probabilities[label] < MIN_PROBABILITY else ""
            print(f"{path}: {doubt}{label} ({100 * probabilities[label]:.1f} %)")
    except UnusableError as error:
        status = _say(error)
    sys.exit(status)


def _say(error: UnusableError) -> int:
    """Print what is wrong, and return the exit status for it."""
    print(f"error: {error}", file=sys.stderr, flush=True)
    return UNUSABLE_STATUS


if __name__ == "__main__":
    main()
