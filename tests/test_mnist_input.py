import gzip
import hashlib
import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import mnist_input
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
        (IMAGES, os.remove, "cannot be read as a gzip file"),
        (IMAGES, lambda path: path.write_text("<html>not found</html>"), "cannot be read as a gzip file"),
        (IMAGES, truncate_gzip, "cannot be read as a gzip file"),
        (IMAGES, break_gzip, "cannot be read as a gzip file"),
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
        pixels = session.run(mnist_input.to_inputs(tf.constant([[0, 51, 255]], tf.uint8)))
    np.testing.assert_array_max_ulp(pixels, np.float32([[0.0, 0.2, 1.0]]))
