"""A folder of pictures by class, as people have it."""

import os
import pathlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from PIL import Image

from examples.digits import predict
from examples.pictures import mnist_input
from runtime.data import pictures
from runtime.data.sources import open_source
from runtime.process.errors import UnusableError

RED, GREY = (200, 40, 0), (90, 90, 90)


def save(path, color=RED, mode="RGB", size=(12, 8), **how):
    path = pathlib.Path(os.fsdecode(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).convert(mode).save(path, how.pop("format", None), **how)


def fill(folder, **counts):
    """Make folders of so many pictures each."""
    for name, count in counts.items():
        for number in range(count):
            save(folder / name / f"{number:03}.png")


def names(folder, split):
    paths, labels = pictures.list_pictures(str(folder), split)
    return [(os.path.relpath(path, folder), label) for path, label in zip(paths, labels, strict=True)]


def test_every_tenth_picture_of_each_class_is_for_tests_and_none_is_lost(tmp_path):
    fill(tmp_path, cat=21, dog=2, owl=1)
    train, tests = (names(tmp_path, split) for split in ("train", "t10k"))
    assert tests == [("cat/001.png", 0), ("cat/011.png", 0), ("dog/001.png", 1)]
    assert len({*train, *tests}) == len(train) + len(tests) == 24
    assert [label for _, label in train] == [0] * 19 + [1, 2]
    assert pictures.find_classes(str(tmp_path)) == ["cat", "dog", "owl"]


@pytest.mark.parametrize("tests", ["test", "VAL", "validation", ""])
def test_tests_have_a_folder_of_their_own_or_a_tenth_of_the_others(tmp_path, tests):
    fill(tmp_path / "Train", cat=2, dog=2)
    if tests:
        fill(tmp_path / tests, dog=1)
    found = [[name for name, _ in names(tmp_path, split)] for split in ("train", "t10k")]
    if tests:
        assert found == [
            [f"Train/{name}/00{n}.png" for name in ("cat", "dog") for n in range(2)],
            [f"{tests}/dog/000.png"],
        ]
    else:
        assert found == [[f"Train/{name}/00{n}.png" for name in ("cat", "dog")] for n in range(2)]


def test_a_picture_is_what_begins_like_one_at_any_depth_and_what_is_left_out_is_counted(tmp_path, caplog):
    caplog.set_level("INFO")
    kinds = {"jpg": "JPEG", "JPG": "JPEG", "jfif": "GIF", "webp": "WEBP", "bmp": "BMP", "gif": "GIF", "tif": "TIFF"}
    for ending, kind in kinds.items():
        save(tmp_path / "cat" / "2019" / f"a.{ending}", format=kind)
        save(tmp_path / "dog" / f"a.{ending}", format=kind)
    save(tmp_path / "dog" / "no name", format="PNG")
    for name in ("dog/Thumbs.db", "cat/2019/list.txt", "dog/b.HEIC", "README", "dog/._a.jpg", ".DS_Store"):
        (tmp_path / name).write_bytes(b"\0\5\x16\7")
    for name in ("__MACOSX/cat/._a.jpg", ".git/a.jpg", "dog/@eaDir/a.jpg/thumb.jpg"):
        (tmp_path / name).parent.mkdir(parents=True)
        save(tmp_path / name)
    (tmp_path / "dog" / "again").symlink_to(tmp_path / "dog")
    assert len(names(tmp_path, "train")) == 13
    each = ".gif 1, .jfif 1, .jpg 2, .tif 1, .webp 1"
    left = "cat 1 (.txt 1), dog 2 (.db 1, .heic 1), no class 1 (no ending 1)"
    assert caplog.messages == [
        f"13 pictures of train in {tmp_path}: cat 6 ({each}), dog 7 ({each}, no ending 1); ignored: {left}"
    ]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["cat/a.png", "empty/"], "a class has no pictures: add some, or remove its folder: {}/empty$"),
        (["cat/a.png", "old/a.doc"], "a class has no pictures: add some, or remove its folder: {}/old$"),
        (["a.png"], "{} must have a folder of pictures for each class, at least 2, found none$"),
        (["Pets/cat/a.png", "Pets/dog/a.png"], "at least 2, found only Pets: try --data_dir={}/Pets$"),
        (["cat/a.png", "dog/a.png", "test/a.png"], "{} has a folder test for tests, but no folder train: ren"),
        (["train/a.png", "test/a.png"], "{}/train must have a folder .*, found none$"),
        (["train/a/a.png", "train/b/a.png", "test/c/a.png"], "{}/test/c is not one of the training classes, a, b: re"),
        (["train/a/a.png", "train/b/a.png", "test/a.png"], "{}/test has no test pictures in its class folders"),
        (["cat/a.png", "dog/a.png"], "{} has no test pictures in its class folders: add some$"),
        (["cat/a.png", "dog/b.jpg", "dog/a.html.JPG"], "named like pictures are not pictures: .*: {}/dog/a.html.JPG$"),
    ],
)
def test_a_folder_that_is_not_as_it_should_be_is_refused_with_its_path(tmp_path, files, message):
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith((".doc", ".JPG")):
            (tmp_path / name).write_text("<html>")
        elif name.endswith("/"):
            (tmp_path / name).mkdir()
        else:
            save(tmp_path / name)
    with pytest.raises(UnusableError, match=message.format(tmp_path)):
        pictures.list_pictures(str(tmp_path), "t10k")


def test_a_folder_that_is_not_there_is_refused_with_its_path(tmp_path):
    with pytest.raises(UnusableError, match=f"{tmp_path}/no cannot be read: No such file"):
        pictures.find_classes(f"{tmp_path}/no")


QUARTERS = np.array([[10, 90], [170, 250]], np.uint8).repeat(32, 0).repeat(64, 1)  # 128 wide, 64 high


@pytest.mark.parametrize("orientation", range(1, 9))
def test_training_and_predictions_turn_a_photo_as_its_exif_data_say(tmp_path, orientation):
    turned = Image.fromarray(QUARTERS)
    undo = [None, None, "FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_90", "TRANSVERSE"]
    name = [*undo, "ROTATE_270"][orientation]
    exif = Image.Exif()
    exif[0x112] = orientation
    path = str(tmp_path / "a.jpg")
    (turned.transpose(Image.Transpose[name]) if name else turned).save(path, exif=exif, quality=100)
    found = pictures.read_picture(path, [2, 2])
    np.testing.assert_allclose(found, [[10, 90], [170, 250]], atol=2)
    assert pictures.open_upright(path).size == (128, 64)
    assert predict.open_upright is pictures.open_upright


@pytest.mark.parametrize(
    ("mode", "kind", "how", "tolerance"),
    [
        ("RGB", "PNG", {}, 0),
        ("RGB", "JPEG", {"quality": 95}, 4),
        ("CMYK", "JPEG", {"quality": 95}, 4),
        ("RGB", "WEBP", {"lossless": True}, 0),
        ("P", "GIF", {}, 30),
        ("RGB", "BMP", {}, 0),
        ("RGBA", "PNG", {}, 0),
        ("RGB", "TIFF", {}, 0),
    ],
)
def test_a_picture_of_any_kind_has_its_colours(tmp_path, mode, kind, how, tolerance):
    save(tmp_path / "a", mode=mode, format=kind, **how)
    found = pictures.read_picture(os.fsencode(tmp_path / "a"), [4, 4, 3])
    assert found.dtype == np.uint8
    np.testing.assert_allclose(found, np.broadcast_to(RED, [4, 4, 3]), atol=tolerance)
    grey = pictures.read_picture(os.fsencode(tmp_path / "a"), [4, 4, 1])
    np.testing.assert_allclose(grey, np.full([4, 4, 1], 83), atol=max(tolerance, 1))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_transparent_pixels_hide_is_white(tmp_path, mode):
    picture = Image.new("RGBA", (4, 4), (*GREY, 255))
    picture.paste((0, 0, 0, 0), (0, 0, 2, 4))
    if mode == "P":
        picture = picture.convert("RGB").quantize(2)
        picture.info["transparency"] = picture.getpixel((0, 0))
    else:
        picture = picture.convert(mode)
    picture.save(tmp_path / "a.png")
    for channels in (1, 3):
        found = pictures.read_picture(str(tmp_path / "a.png"), [1, 2, channels])
        np.testing.assert_array_equal(found, [[[255] * channels, [90] * channels]])


def test_deep_pictures_are_scaled_for_training_as_for_predictions(tmp_path):
    Image.fromarray(np.array([[0, 1000], [2000, 4000]], np.uint16)).save(tmp_path / "a.png")
    assert pictures.read_picture(str(tmp_path / "a.png"), [2, 2]).tolist() == [[0, 63], [127, 255]]


def test_the_example_reads_what_it_lists_and_names_what_is_damaged(tmp_path, caplog, monkeypatch):
    caplog.set_level("ERROR", logger="absl")  # a process of pytest cannot send lines that are no text to another one
    not_text = os.fsdecode(b"\xe9t\xe9")
    for name in ("cat", not_text):
        for number in range(3):
            save(tmp_path / name / f"{number}.png", GREY if name == "cat" else RED, size=(64, 64))
    images, labels = open_source(str(tmp_path), "train", mnist_input).load()
    assert images.shape == (4, 32, 32, 3)
    assert {(*image[0, 0], label) for image, label in zip(images, labels, strict=True)} == {(*GREY, 0), (*RED, 1)}
    with monkeypatch.context() as patch:
        patch.setattr(mnist_input, "INPUT", tf.TensorSpec([32, 32, 1], tf.uint8, "images"))
        assert open_source(str(tmp_path), "train", mnist_input).load()[0].shape == (4, 32, 32, 1)
    path = tmp_path / not_text / "2.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(UnusableError, match=r"/2\.png cannot be read .*truncated.*; fix it, or exclude it$"):
        open_source(str(tmp_path), "train", mnist_input)
