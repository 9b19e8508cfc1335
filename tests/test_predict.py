"""What examples/digits/predict.py makes of pictures."""

import os
import sys
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from PIL import Image, ImageDraw, ImageFont

from examples.digits import predict
from runtime.process.errors import UnusableError


def draw(digit, size=(200, 200), mode="RGB", paper="white", ink="black", height=120, corner=(60, 30)):
    """Draw a digit in the font that Pillow brings along."""
    picture = Image.new(mode, size, paper)
    ImageDraw.Draw(picture).text(corner, str(digit), fill=ink, font=ImageFont.load_default(height))
    return picture


def photograph(digit, random):
    """Return a sheet of squared paper in uneven light, with a shadow and noise; `digit`, ink [28, 28], stands on it."""
    width, height, size = 360, 480, int(random.integers(140, 260))
    down, right = np.mgrid[0:height, 0:width]
    top, left = (int(random.integers(20, side - size - 20)) for side in (height, width))
    ink = Image.new("L", (width, height))
    ink.paste(Image.fromarray(digit).resize((size, size), Image.Resampling.BICUBIC), (left, top))
    slope, (a, b), angle = random.uniform(-90, 90, 2), random.integers(0, 30, 2), random.uniform(0, 2 * np.pi)
    light = 200 + slope[0] * (right / width - 0.5) + slope[1] * (down / height - 0.5)
    from_edge = (
        np.cos(angle) * (right / width - 0.5) + np.sin(angle) * (down / height - 0.5) - random.uniform(-0.2, 0.3)
    )
    light *= 1 - 0.4 / (1 + np.exp(-30 * from_edge))
    light *= 1 - 0.2 * (((right - a) % 30 < 2) | ((down - b) % 30 < 2))
    light *= 1 - 0.7 * np.asarray(ink) / 255
    sheet = light[..., np.newaxis] * (1, 0.97, 0.9) + random.normal(0, 6, (height, width, 3))
    return Image.fromarray(np.clip(sheet, 0, 255).astype(np.uint8))


VARIANTS = {
    "16 bits.png": {"mode": "I;16", "paper": 60000, "ink": 20000},
    "12 of 16 bits.png": {"mode": "I;16", "paper": 4000, "ink": 600},
    "32 bits.tiff": {"mode": "I", "paper": 0, "ink": 2**31 - 1},
    "float.tiff": {"mode": "F", "paper": 1.0, "ink": -0.5},
    "inverted.png": {"paper": "black", "ink": "white"},
    "colours of the same brightness.png": {"paper": "#e00000", "ink": "#0066e0"},
    "grey.png": {"mode": "L", "paper": 150, "ink": 90},
    "transparent paper.png": {"mode": "RGBA", "paper": (0, 0, 0, 0), "ink": "black"},
    "white on transparent.png": {"mode": "RGBA", "paper": (0, 0, 0, 0), "ink": "white"},
    "jpeg.jpg": {},
    "in a corner.png": {"corner": (2, 0)},
    "wide.png": {"size": (640, 200), "corner": (500, 10)},
    "small.png": {"size": (40, 36), "height": 24, "corner": (8, 3)},
    "large.png": {"size": (1600, 1600), "height": 960, "corner": (480, 240)},
}


@pytest.mark.promises("pictures")
@pytest.mark.parametrize("digit", [2, 7])
@pytest.mark.parametrize("name", VARIANTS)
def test_size_colours_and_place_do_not_matter(tmp_path, digit, name):
    draw(digit).save(tmp_path / "plain.png")
    draw(digit, **VARIANTS[name]).save(tmp_path / name)
    plain, variant = (predict.prepare(str(tmp_path / file)).astype(float) for file in ("plain.png", name))
    assert np.corrcoef(plain.ravel(), variant.ravel())[0, 1] > 0.93


@pytest.mark.promises("pictures")
@pytest.mark.parametrize("digit", range(10))
def test_a_photographed_sheet_shows_the_digit_alone(tmp_path, digit):
    plain = draw(digit, height=180, corner=(50, 0))
    plain.save(tmp_path / "plain.png")
    ink = 255 - np.asarray(plain.convert("L").resize((28, 28)))
    photograph(ink, np.random.default_rng(digit)).save(tmp_path / "photo.jpg", quality=80)
    images = [predict.prepare(str(tmp_path / name)).astype(float) for name in ("plain.png", "photo.jpg")]
    assert np.corrcoef(*(image.ravel() for image in images))[0, 1] > 0.85


def test_two_digits_in_a_picture_are_told(tmp_path):
    for name, corner in (("beside.png", (105, 30)), ("below.png", (30, 105))):
        picture = draw(3, height=80, corner=(20, 20))
        picture.paste(draw(5, size=(75, 90), height=80, corner=(10, 0)), corner)
        picture.save(tmp_path / name)
        with pytest.raises(UnusableError, match=f"{name} shows several digits: cut it"):
            predict.prepare(str(tmp_path / name))


@pytest.fixture
def predict_with(tmp_path, monkeypatch, capsysbinary):
    """Run predict.py, with a model that is so sure of a 1, and return its status and what it has said."""

    def run(probability, *names):
        arrays = {"classes": np.array([1]), "probabilities": np.array([[1 - probability, probability]])}
        outputs = {name: types.SimpleNamespace(numpy=lambda array=array: array) for name, array in arrays.items()}
        monkeypatch.setattr(predict, "load_model", lambda *_: lambda image: outputs)
        monkeypatch.setattr(sys, "argv", ["predict.py", "--model=m", *names])
        monkeypatch.chdir(tmp_path)
        with pytest.raises(SystemExit) as ended:
            predict.main()
        return (ended.value.code, *map(os.fsdecode, capsysbinary.readouterr()))

    return run


@pytest.mark.promises("unusable-picture")
def test_a_bad_file_among_good_ones_does_not_take_their_answers(tmp_path, predict_with):
    not_text = os.fsdecode(b"a\xe9.png")
    for name in (not_text, "b.png"):
        draw(1).save(tmp_path / name)
    (tmp_path / "text.png").write_text("no picture")
    status, said, errors = predict_with(0.99, not_text, "text.png", "b.png")
    assert (status, said) == (2, f"{not_text}: 1 (99.0 %)\nb.png: 1 (99.0 %)\n")
    assert errors.startswith("error: text.png cannot be read as a picture")


@pytest.mark.promises("perhaps")
def test_a_guess_is_called_a_guess(tmp_path, predict_with):
    draw(1).save(tmp_path / "a.png")
    assert predict_with(0.6, "a.png") == (0, "a.png: perhaps 1 (60.0 %)\n", "")


@pytest.mark.promises("pictures")
def test_a_digit_is_fitted_and_centred_as_mnist_was(tmp_path):
    draw(7, corner=(10, 5)).save(tmp_path / "seven.png")
    image = predict.prepare(str(tmp_path / "seven.png"))
    assert (image.dtype, image.shape, image.max()) == (np.uint8, (28, 28), 255)
    rows, columns = np.flatnonzero(image.any(axis=1)), np.flatnonzero(image.any(axis=0))
    assert max(np.ptp(rows), np.ptp(columns)) + 1 in (20, 21)  # its edges may lie within pixels
    center = [np.average(axis, weights=image) for axis in np.indices(image.shape)]
    assert center == pytest.approx([13.5, 13.5], abs=0.1)


@pytest.mark.promises("pictures")
@pytest.mark.parametrize("slant", [-0.4, 0.4])
def test_a_slanted_digit_is_made_upright(tmp_path, slant):
    upright = draw(1, corner=(70, 30))
    upright.transform(upright.size, Image.Transform.AFFINE, (1, slant, -100 * slant, 0, 1, 0), fillcolor="white").save(
        tmp_path / "slanted.png"
    )
    image = predict.prepare(str(tmp_path / "slanted.png"))
    rows, columns = (axis - np.average(axis, weights=image) for axis in np.indices(image.shape))
    assert abs(np.average(rows * columns, weights=image) / np.average(rows**2, weights=image)) < 0.05


def test_lonely_dots_are_no_part_of_a_digit(tmp_path):
    picture = draw(3)
    picture.save(tmp_path / "clean.png")
    for dot in [(3, 3), (190, 10), (20, 195)]:
        picture.putpixel(dot, (0, 0, 0))
    picture.save(tmp_path / "dots.png")
    images = [predict.prepare(str(tmp_path / name)) for name in ("clean.png", "dots.png")]
    np.testing.assert_array_equal(*images)


@pytest.mark.parametrize("size", [(2000, 3), (3, 2000), (10000, 1)])
def test_a_picture_may_be_a_thin_strip(tmp_path, size):
    picture = Image.new("L", size, 255)
    picture.paste(0, (0, 0, max(1, size[0] // 4), max(1, size[1] // 4)))
    picture.save(tmp_path / "strip.png")
    assert predict.prepare(str(tmp_path / "strip.png")).any()


def test_what_is_no_picture_of_a_digit_is_refused(tmp_path):
    (tmp_path / "text.png").write_text("no picture")
    Image.new("L", (50, 50), 200).save(tmp_path / "empty.png")
    Image.new("I;16", (50, 50), 60000).save(tmp_path / "empty 16 bits.png")
    Image.new("F", (50, 50), 0).save(tmp_path / "empty float.tiff")
    Image.new("L", (10000, 1), 200).save(tmp_path / "line.png")
    (tmp_path / "broken.ppm").write_text("P6 4 x 255")
    for name, message in [
        ("missing.png", "missing.png cannot be read as a picture: .*No such file"),
        ("text.png", "text.png cannot be read as a picture"),
        ("broken.ppm", "broken.ppm cannot be read as a picture"),
        ("empty.png", "empty.png shows no digit"),
        ("empty 16 bits.png", "empty 16 bits.png shows no digit"),
        ("empty float.tiff", "empty float.tiff shows no digit"),
        ("line.png", "line.png shows no digit"),
    ]:
        with pytest.raises(UnusableError, match=message):
            predict.prepare(str(tmp_path / name))


def test_a_folder_without_a_model_ends_with_2_and_one_line(tmp_path, monkeypatch, capsys):
    draw(5).save(tmp_path / "five.png")
    (tmp_path / "1").mkdir()
    monkeypatch.setattr(sys, "argv", ["predict.py", f"--model={tmp_path}", str(tmp_path / "five.png")])
    with pytest.raises(SystemExit, match="2"):
        predict.main()
    assert capsys.readouterr().err == (
        f"error: --model {tmp_path} has no exported model that can be loaded: give the --export_dir of distributed.py\n"
    )


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "num_classes"),
    [
        ("words", [24], "int32", 10),
        ("images", [32, 32, 3], "uint8", 10),  # of examples/pictures
        ("images", [28, 28], "float32", 10),
        ("images", [28, 28], "uint8", 26),  # of letters
    ],
)
def test_a_model_of_something_else_ends_with_2_and_says_what_it_takes(
    tmp_path, monkeypatch, capsys, name, shape, dtype, num_classes
):
    draw(5).save(tmp_path / "five.png")
    with tf.Graph().as_default(), tf.Session() as session:
        given = tf.placeholder(dtype, [None, *shape], name)
        probabilities = tf.zeros([tf.shape(given)[0], num_classes])
        outputs = {"classes": tf.argmax(probabilities, axis=1), "probabilities": probabilities}
        tf.saved_model.simple_save(session, str(tmp_path / "1"), {name: given}, outputs)
    monkeypatch.setattr(sys, "argv", ["predict.py", f"--model={tmp_path}", str(tmp_path / "five.png")])
    with pytest.raises(SystemExit, match="2"):
        predict.main()
    error = capsys.readouterr().err
    assert error.startswith(
        f"error: --model {tmp_path} has a model of {name} {dtype} (None, {', '.join(map(str, shape))}"
    )
    assert f"probabilities float32 (None, {num_classes})" in error
    assert error.endswith(" of ten digits: give a model of pictures of digits, and its --user_dir\n")


def test_a_model_of_ones_own_gets_a_picture_as_its_input_says(tmp_path):
    with tf.Graph().as_default(), tf.Session() as session:
        given = tf.placeholder(tf.uint8, [None, 28, 28, 1], "digit")
        probabilities = tf.one_hot(tf.reduce_max(given, axis=[1, 2, 3]), 10)
        outputs = {"classes": tf.argmax(probabilities, axis=1), "probabilities": probabilities}
        tf.saved_model.simple_save(session, str(tmp_path / "1"), {"digit": given}, outputs)
    with tf.Graph().as_default(), tf.Session() as session:
        model = predict.load_model(str(tmp_path), {"digit": tf.TensorSpec([28, 28, 1], tf.uint8)})
        assert session.run(model(np.full([28, 28], 7, np.uint8))["classes"]).tolist() == [7]
    with pytest.raises(UnusableError, match="as INPUT says"):
        predict.load_model(str(tmp_path), {"images": tf.TensorSpec([28, 28], tf.uint8)})
