import gzip
import hashlib
import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl.testing import flagsaver

import mnist_input
import model
from tests import idx_files

IMAGES = "train-images-idx3-ubyte.gz"
LABELS = "train-labels-idx1-ubyte.gz"


@pytest.fixture
def data_dir(tmp_path):
    """Three images, the k-th of which has pixel 28 + k set to 10 * k."""
    images = np.zeros((3, 28, 28), np.uint8)
    for k in range(3):
        images[k, 1, k] = 10 * k
    idx_files.write(tmp_path, "train", images, np.array([5, 0, 9], np.uint8))
    return str(tmp_path)


def test_reads_hand_made_files(data_dir):
    examples = mnist_input.load(data_dir, "train")
    assert examples.images.shape == (3, 784)
    assert examples.images.dtype == np.uint8
    assert [list(np.flatnonzero(image)) for image in examples.images] == [[], [29], [30]]
    assert examples.images[2, 30] == 20
    assert examples.labels.tolist() == [5, 0, 9]


def test_reads_the_real_mnist(mnist_dir):
    train, test = mnist_input.load(mnist_dir, "train"), mnist_input.load(mnist_dir, "t10k")
    assert train.images.shape == (60000, 784)
    assert test.images.shape == (10000, 784)
    # Known MD5 of the four files' content; the headers are 16 and 8 bytes.
    digests = [
        hashlib.md5(bytes.fromhex(header) + part.tobytes()).hexdigest()
        for header, part in (
            ("00000803 0000ea60 0000001c 0000001c", train.images),
            ("00000801 0000ea60", train.labels),
            ("00000803 00002710 0000001c 0000001c", test.images),
            ("00000801 00002710", test.labels),
        )
    ]
    assert digests == [
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    ]


def truncate_gzip(path):
    os.truncate(path, os.path.getsize(path) - 10)


def break_gzip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def rewrite(change):
    return lambda path: path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes()))))


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        (IMAGES, os.remove, "is missing, and "),
        (IMAGES, lambda path: path.write_text("<html>not found</html>"), "begins with 0x3c68746d, expected 0x00000803"),
        (IMAGES, truncate_gzip, "cannot be read (Compressed file ended"),
        (IMAGES, break_gzip, "cannot be read (Error -3 while decompressing"),
        (IMAGES, rewrite(lambda content: b""), "has 0 bytes, expected a header of 16"),
        (IMAGES, rewrite(lambda content: content[:-1]), "has 2367 bytes, expected 2368 for the 3 items"),
        (IMAGES, rewrite(lambda content: content + b"x"), "has 2369 bytes, expected 2368 for the 3 items"),
        (IMAGES, rewrite(lambda content: b"\0\0\x08\x01" + content[4:]), "begins with 0x00000801, expected 0x00000803"),
        (IMAGES, rewrite(lambda content: content[:11] + b"\x20" + content[12:]), "images of [32, 28] pixels"),
        (LABELS, rewrite(lambda content: content[:4] + b"\0\0\0\0"), "has 8 bytes, expected 8 for the 0 items"),
        (LABELS, rewrite(lambda content: content[:-1] + b"\x0a"), "label 2 is 10, expected 0 to 9"),
        (LABELS, rewrite(lambda content: content[:7] + b"\2" + content[8:10]), "has 3 images, but"),
    ],
)
def test_an_unusable_file_is_refused(tmp_path, data_dir, name, damage, message):
    damage(tmp_path / name)
    with pytest.raises(mnist_input.DataError) as error:
        mnist_input.load(data_dir, "train")
    assert f"{tmp_path}/{name}" in str(error.value)
    assert message in str(error.value)


def test_pixels_become_floats_from_0_to_1():
    with tf.Graph().as_default(), tf.Session() as session:
        pixels = session.run(mnist_input.to_inputs(tf.constant([[0, 51, 255, *[0] * 781]], tf.uint8)))
    np.testing.assert_array_max_ulp(pixels[:, :3], np.float32([[0.0, 0.2, 1.0]]))


@pytest.fixture
def set_users_flags():
    saved = flagsaver.save_flag_values()
    yield lambda *flags: tf.flags.FLAGS(["", *flags], known_only=True)
    flagsaver.restore_flag_values(saved)


@pytest.mark.promises("idx-names", "emnist")
@pytest.mark.parametrize(("num_classes", "first_label"), [(26, 1), (47, 0), (62, 0)])
def test_emnist_has_more_classes_and_may_begin_with_1(tmp_path, set_users_flags, num_classes, first_label):
    labels = np.arange(num_classes) + first_label
    for word, split in (("train", "train"), ("test", "t10k")):
        images = idx_files.write_file(
            tmp_path, f"emnist-letters-{word}-images-idx3-ubyte.gz", 0x803, IMAGES_OF[num_classes]
        )
        idx_files.write_file(tmp_path, f"emnist-letters-{word}-labels-idx1-ubyte.gz", 0x801, labels)
        with pytest.raises(mnist_input.DataError, match=r"give --num_classes and --first_label"):
            mnist_input.load(str(tmp_path), split)
    set_users_flags(f"--num_classes={num_classes}", f"--first_label={first_label}")
    for split in ("train", "t10k"):
        assert mnist_input.load(str(tmp_path), split).labels.tolist() == list(range(num_classes))
    with tf.Graph().as_default():
        logits = model.build_logits(tf.zeros([1, 784]), is_training=False)
        assert logits.shape == [1, num_classes]
        exported = model.build_predictions(tf.one_hot([0, 3], num_classes, 9.0))
        with tf.Session() as session:
            assert session.run(exported["classes"]).tolist() == labels[[0, 3]].tolist(), "as the files have them"
    assert mnist_input.find_classes(str(tmp_path)) == [str(label) for label in labels]
    assert os.path.exists(images)


IMAGES_OF = {count: np.zeros((count, 28, 28), np.uint8) for count in (26, 47, 62)}


@pytest.mark.promises("idx-names")
@pytest.mark.parametrize(
    "name",
    [
        "train-images-idx3-ubyte",
        "train-images.idx3-ubyte",
        "train-images.idx3-ubyte.gz",
    ],
)
def test_files_as_others_unpack_and_name_them(tmp_path, data_dir, name):
    expected = mnist_input.load(data_dir, "train")
    for path, kind in ((tmp_path / IMAGES, "images-idx3"), (tmp_path / LABELS, "labels-idx1")):
        moved = tmp_path / name.replace("images-idx3", kind).replace("images.idx3", kind.replace("-", "."))
        content = path.read_bytes()
        path.unlink()
        moved.write_bytes(content if name.endswith(".gz") else gzip.decompress(content))
    found = mnist_input.load(data_dir, "train")
    assert (found.images == expected.images).all()
    assert (found.labels == expected.labels).all()


def test_a_file_in_two_forms_must_be_the_same_in_both(tmp_path, data_dir):
    raw, dotted = tmp_path / IMAGES.removesuffix(".gz"), tmp_path / "train-images.idx3-ubyte.gz"
    raw.write_bytes(gzip.decompress((tmp_path / IMAGES).read_bytes()))
    dotted.write_bytes(raw.read_bytes())  # whatever its name says, it is not gzipped
    assert len(mnist_input.load(data_dir, "train").images) == 3
    raw.write_bytes(raw.read_bytes()[:-1] + b"x")
    with pytest.raises(mnist_input.DataError, match=rf"{raw} and \S+ differ: delete the wrong one"):
        mnist_input.load(data_dir, "train")


def test_a_folder_without_them_or_with_several_is_told_what_it_has(tmp_path):
    (tmp_path / "cats").mkdir()
    with pytest.raises(mnist_input.DataError, match=rf"is missing, and {tmp_path} has cats: put the right file there"):
        mnist_input.load(str(tmp_path), "train")
    for name in ("emnist-letters", "emnist-digits"):
        (tmp_path / f"{name}-train-images-idx3-ubyte").touch()
    with pytest.raises(mnist_input.DataError, match=r"has several data sets, .*: give a folder with only one"):
        mnist_input.load(str(tmp_path), "train")
