"""Files of tf.train.Example: how a data set becomes some, how they are read, and which are refused."""

import os
import re
import shutil
import signal
import subprocess
import sys
import types
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
import tensorflow.compat.v1 as tf

import mnist_input
from benchmarks.testbed.processes import PROJECT
from examples import convert
from runtime.data import download
from runtime.data.files import name_of
from runtime.data.memory import MemorySource
from runtime.data.records import RecordSource
from runtime.data.sources import open_source
from runtime.data.users import UsersSource
from runtime.process.errors import DataLostError, UnusableError
from tests import idx_files


def make_examples(num_examples):
    """Return images and labels, from which the number of each can be told."""
    images = np.zeros((num_examples, 28, 28), np.uint8)
    images[:, 0, 0], images[:, 0, 1] = np.divmod(np.arange(num_examples), 256)
    return images, (np.arange(num_examples) % 10).astype(np.uint8)


def numbers_of(images):
    images = images.reshape(len(images), -1)
    return 256 * images[:, 0].astype(int) + images[:, 1]


@pytest.fixture
def data_dir(tmp_path):
    """The files of a data set of 1003 examples and 50 to test with."""
    folder = tmp_path / "data"
    folder.mkdir()
    for split, count in (("train", 1003), ("t10k", 50)):
        idx_files.write(folder, split, *make_examples(count))
    return str(folder)


@pytest.fixture
def make_files(data_dir, tmp_path):
    """Convert them."""

    def make_files(num_files, name="files"):
        convert.convert(mnist_input.load, mnist_input.FEATURES, data_dir, str(tmp_path / name), num_files)
        return tmp_path / name

    return make_files


def draw(source, batch_size, num_runs, num_batches=2, seed=0, first_batch=0):
    """Return the columns of a worker's batches, one after the other."""
    with tf.Graph().as_default(), tf.Session() as session:
        batches = source.draw(num_batches, batch_size, seed)
        batches.start(session, first_batch)
        of_a_run = [batches.columns(inputs) for inputs in tf.unstack(batches.inputs)]
        drawn = []
        for _ in range(num_runs):
            with source.telling_faults():
                drawn += session.run(of_a_run)
    return [np.concatenate(parts) for parts in zip(*drawn, strict=True)]


def write(path, records, compression=""):
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)


def example(**features):
    """Return a record: bytes, ints or floats by name."""
    made = tf.train.Example()
    for name, values in features.items():
        values = values if isinstance(values, list) else [values]
        kind = (
            {bytes: "bytes_list", int: "int64_list", float: "float_list"}[type(values[0])] if values else "int64_list"
        )
        getattr(made.features.feature[name], kind).value.extend(values)
    return made.SerializeToString()


def reader_of(spec, **names):
    return types.SimpleNamespace(INPUT=spec, DataError=ValueError, **names)


def read_folder(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# What becomes such files


@pytest.mark.slow
@pytest.mark.promises("convert")
def test_the_command_converts_and_the_same_examples_give_the_same_bytes(data_dir, make_files, tmp_path):
    output_dir = str(tmp_path / "output")
    flags = ["--shards", "4", "--data_dir", data_dir, "--output_dir", output_dir]
    command = [sys.executable, "examples/convert.py", *flags]
    process = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert process.stdout == f"give --data_dir={output_dir} to distributed.py\n"
    assert "train: 1003 examples in 4 files\n" in process.stderr
    files = make_files(4)
    assert read_folder(files) == read_folder(type(files)(output_dir))
    names = [name_of("train", index, 4) for index in range(4)]
    assert sorted(os.listdir(files)) == ["t10k-00000-of-00001.tfrecord", *names]


@pytest.mark.promises("convert")
def test_any_tensorflow_reads_them(make_files, data_dir):
    files = make_files(3)
    images, labels = mnist_input.load(data_dir, "train")
    found = []
    for index in range(3):
        records = list(tf.io.tf_record_iterator(str(files / name_of("train", index, 3))))
        assert len(records) == len(images[index::3])
        features = [tf.train.Example.FromString(record).features.feature for record in records]
        found += [(of["image"].bytes_list.value[0], of["label"].int64_list.value[0]) for of in features]
    expected = zip(images, labels.tolist(), strict=True)
    assert sorted(found) == [(image.tobytes(), label) for image, label in expected]


@pytest.mark.promises("convert")
def test_what_is_sorted_is_mixed_by_a_conversion(make_files):
    numbers = numbers_of(open_source(str(make_files(3)), "train", mnist_input).load()[0])
    for part in np.split(numbers[:1000], 10):
        assert len(set(part // 100) - {10}) == 10  # of all tenths of the data set


@pytest.mark.slow
@pytest.mark.promises("convert-whole")
def test_a_killed_conversion_leaves_nothing_that_is_taken_for_whole(data_dir, tmp_path):
    slow = """
import sys, time
import mnist_input
from examples import convert
def load_slowly(data_dir, split):
    if split == "t10k":
        print("the other split is written", flush=True)
        time.sleep(1000)
    return mnist_input.load(data_dir, split)
convert.convert(load_slowly, mnist_input.FEATURES, *sys.argv[1:3], 2)
"""
    output_dir = tmp_path / "files"
    process = subprocess.Popen(
        [sys.executable, "-c", slow, data_dir, str(output_dir)], cwd=PROJECT, stdout=subprocess.PIPE
    )
    assert process.stdout.readline()
    left = f"{output_dir}.unfinished"
    arguments = mnist_input.load, mnist_input.FEATURES, data_dir, str(output_dir), 2
    with pytest.raises(UnusableError, match=f"{left} exists: if no other conversion is running, remove it"):
        convert.convert(*arguments)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not output_dir.exists()
    assert os.path.exists(left)
    with pytest.raises(UnusableError, match=r"has TFRecord files, such as .*, but none for t10k"):
        open_source(left, "t10k", mnist_input)
    shutil.rmtree(left)
    convert.convert(*arguments)
    assert len(open_source(str(output_dir), "train", mnist_input).load()[0]) == 1003
    assert not os.path.exists(left)


@pytest.mark.slow
def test_ctrl_c_ends_a_conversion_without_a_traceback_and_leaves_nothing(data_dir, tmp_path):
    slow = """
import time
import mnist_input
from examples import convert
def load_slowly(data_dir, split):
    print("it has begun", flush=True)
    time.sleep(1000)
mnist_input.load = load_slowly
convert.main()
"""
    flags = ["--shards=2", f"--data_dir={data_dir}", f"--output_dir={tmp_path}/files"]
    command = [sys.executable, "-c", slow, *flags]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "it has begun\n"
        process.send_signal(signal.SIGINT)
        assert "Traceback" not in process.stderr.read()
    assert process.returncode == 130
    assert os.listdir(tmp_path) == ["data"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--data_dir=~/mnist", "--output_dir=new"],
            "--data_dir=~/mnist: only a shell expands ~, and only at the start of a word: write $HOME",
        ),
        (["--output_dir=gs://bucket/data"], "--output_dir gs://bucket/data is not a folder: gs:// is not supported"),
        (["--data_dir={folder}"], "--data_dir needs --output_dir, because nothing is written into --data_dir"),
        (
            ["--data_dir={folder}", "--output_dir=new"],
            "is missing, and {folder} has table.csv: put the right file there",
        ),
        (["--data_dir={folder}", "--output_dir=new", "--typo=1"], "Unknown command line flag 'typo'"),
    ],
)
def test_the_command_refuses_what_is_not_meant(mnist_dir, tmp_path, flags, message):
    (tmp_path / "table.csv").touch()
    command = [sys.executable, "examples/convert.py", "--shards=2"]
    command += [flag.format(folder=tmp_path) for flag in flags]
    process = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert process.returncode == 2
    assert os.listdir(tmp_path) == ["table.csv"]
    assert message.format(folder=tmp_path) in process.stderr.splitlines()[-1]
    assert "Traceback" not in process.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["FEATURES", "load"])
def test_a_file_that_does_not_say_what_to_convert_is_refused(data_dir, tmp_path, name):
    code = f"import mnist_input; from examples import convert; del mnist_input.{name}; convert.main()"
    flags = ["--shards=2", f"--data_dir={data_dir}", f"--output_dir={tmp_path}/files"]
    process = subprocess.run([sys.executable, "-c", code, *flags], cwd=PROJECT, capture_output=True, text=True)
    assert process.returncode == 2
    expected = f"error: a conversion needs {name} in mnist_input.py"
    assert process.stderr.splitlines()[-1] == expected


def test_what_cannot_be_converted_is_refused_and_leaves_nothing(data_dir, make_files, tmp_path):
    load, features = mnist_input.load, mnist_input.FEATURES
    with pytest.raises(UnusableError, match="1003 examples of train cannot fill 1004 files: give fewer --shards"):
        convert.convert(load, features, data_dir, str(tmp_path / "files"), 1004)
    with pytest.raises(UnusableError, match="/dev/null/files cannot be written: Not a directory"):
        convert.convert(load, features, data_dir, "/dev/null/files", 2)
    first, *_ = features.items()
    with pytest.raises(UnusableError, match=r"FEATURES has 1 entries, but examples have 2 parts"):
        convert.convert(load, dict([first]), data_dir, str(tmp_path / "files"), 2)

    def load_fractions(*split):
        return load(*split)._replace(labels=np.full(1003, 0.5))

    with pytest.raises(UnusableError, match="FEATURES says int64 of label, found float64 "):
        convert.convert(load_fractions, features, data_dir, str(tmp_path / "files"), 2)
    files = make_files(2)
    with pytest.raises(UnusableError, match=f"{files} already exists: remove it, or give another --output_dir"):
        make_files(3)
    assert sorted(os.listdir(tmp_path)) == ["data", "files"]
    assert len(os.listdir(files)) == 3


# How they are read


@pytest.mark.promises("parse-first")
def test_all_examples_are_read_back(data_dir, make_files):
    images, labels = open_source(str(make_files(4)), "train", mnist_input).load()
    expected = mnist_input.load(data_dir, "train")
    order = np.argsort(numbers_of(images), kind="stable")
    np.testing.assert_array_equal(images[order].reshape(-1, 784), expected.images)
    np.testing.assert_array_equal(labels[order], expected.labels)
    images, _ = open_source(str(make_files(2, "others")), "t10k", mnist_input).load()
    np.testing.assert_array_equal(numbers_of(images), np.arange(50))


@pytest.mark.promises("tfrecord-names")
@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
@pytest.mark.parametrize(
    "name",
    [
        "train-00000-of-00001",
        "mnist-train.tfrecord-00000-of-00001",
        "train.tfrecords",
        "part-1-train.tfrecord.gz",
        "pet_train.record",
    ],
)
def test_files_as_others_name_and_compress_them(tmp_path, name, compression):
    path = tmp_path / name
    images, labels = make_examples(30)
    records = [example(image=i.tobytes(), label=int(label)) for i, label in zip(images, labels, strict=True)]
    write(path, records, compression)
    source = open_source(str(tmp_path), "train", mnist_input)
    images, labels = draw(source.share(0, 1), 10, num_runs=3)
    assert images.shape == (60, 784)
    assert np.bincount(numbers_of(images)).tolist() == [2] * 30
    assert (labels == numbers_of(images) % 10).all()


@pytest.mark.slow
@pytest.mark.promises("several-lengths")
def test_pictures_sequences_and_sparse_ids(tmp_path):
    """JPEG and PNG; ids of several lengths, as each kind of feature has them; strings."""
    pictures = np.full((2, 40, 50, 3), 200, np.uint8)
    with tf.Graph().as_default(), tf.Session() as session:
        jpeg, png = session.run([tf.io.encode_jpeg(pictures[0]), tf.io.encode_png(pictures[1])])
    records = [
        example(picture=content, words=ids, sparse=ids, ragged=ids, text=text)
        for content, ids, text in ((jpeg, [1], b"a"), (png, [1, 2, 3], b"bc"))
    ]
    for split in ("train", "test"):
        write(tmp_path / f"{split}.tfrecord", records)
    features = {
        "picture": tf.io.FixedLenFeature([], tf.string),
        "words": tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True),
        "sparse": tf.io.VarLenFeature(tf.int64),
        "ragged": tf.io.RaggedFeature(tf.int64),
        "text": tf.io.FixedLenFeature([], tf.string),
    }

    def parse(serialized):  # as docs/data.md has it
        def decode(content):
            return tf.image.resize(tf.io.decode_png(content, channels=3), [20, 30])  # and JPEG

        parsed = tf.io.parse_example(serialized, features)
        pictures = tf.map_fn(decode, parsed.pop("picture"), fn_output_signature=tf.float32)
        return tf.cast(pictures, tf.uint8), *parsed.values()

    reader = reader_of(tf.TensorSpec([20, 30, 3], tf.uint8, "picture"), parse=parse)
    drawn = draw(open_source(str(tmp_path), "train", reader).share(0, 1), 4, num_runs=1, num_batches=1)
    assert drawn[0].shape == (4, 20, 30, 3)
    assert abs(drawn[0].astype(int) - 200).max() <= 1
    assert open_source(str(tmp_path), "t10k", reader).load()[0].shape == (2, 20, 30, 3)

    of_text = {name: features[name] for name in ("text", "words", "sparse", "ragged")}
    reader = reader_of(tf.TensorSpec([], tf.string, "text"), FEATURES=of_text)
    for columns in (
        draw(open_source(str(tmp_path), "train", reader).share(0, 1), 4, num_runs=1, num_batches=1),
        open_source(str(tmp_path), "t10k", reader).load(),
    ):
        order = np.argsort(columns[0])[:: len(columns[0]) // 2]
        text, words, sparse, ragged = (column[order].tolist() for column in columns)
        assert text == [b"a", b"bc"]
        assert words == [[1, 0, 0], [1, 2, 3]]
        assert sparse == ragged == [[1, -1, -1], [1, 2, 3]]


class Parsed(NamedTuple):
    numbers: Any
    labels: Any

    def show(self, index):
        return f"number {self.numbers[index]}"


def parse(serialized):
    features = tf.io.parse_example(serialized, {"n": tf.io.FixedLenFeature([], tf.int64)})
    return Parsed(features["n"], features["n"] % 2)


@pytest.mark.promises("parse-first")
def test_what_parse_returns_is_read_and_shown(tmp_path):
    for split in ("train", "validation"):
        write(tmp_path / f"{split}.tfrecord", [example(n=n) for n in range(10)])
    reader = reader_of(tf.TensorSpec([], tf.int64, "numbers"), parse=parse)
    numbers, labels = draw(open_source(str(tmp_path), "train", reader).share(0, 1), 10, 1, num_batches=1)
    assert sorted(numbers) == list(range(10))
    assert (labels == numbers % 2).all()
    assert open_source(str(tmp_path), "t10k", reader).load().show(3) == "number 3"
    wrong = reader_of(tf.TensorSpec([], tf.int32, "numbers"), parse=parse)
    with pytest.raises(UnusableError, match=r"expected int32 \(\), as INPUT says for numbers, found int64"):
        open_source(str(tmp_path), "t10k", wrong).load()


@pytest.mark.promises("features-in-order")
def test_features_come_in_the_order_of_input(tmp_path):
    write(tmp_path / "train.tfrecord", [example(**{"a": 1.0, "b": 2.0, "a/label": 3})])
    spec = {name: tf.TensorSpec([], tf.float32) for name in "ab"}
    features = {name: tf.io.FixedLenFeature([], tf.float32) for name in "ab"}
    features["a/label"] = tf.io.FixedLenFeature([], tf.int64)
    source = open_source(str(tmp_path), "train", reader_of(spec, FEATURES=features))
    assert [column.tolist() for column in source.load()] == [[1.0], [2.0], [3]]
    other = reader_of(dict(reversed(spec.items())), FEATURES=features)
    with pytest.raises(UnusableError, match="expected the inputs in the order of INPUT, b, a, found a, b; correct mn"):
        open_source(str(tmp_path), "train", other)


def test_load_has_the_word_where_a_reader_says_nothing_of_records(make_files):
    loaded = mnist_input.Examples(np.zeros((2, 784), np.uint8), np.zeros(2, np.uint8))
    reader = reader_of(mnist_input.INPUT, load=lambda data_dir, split: loaded)
    assert open_source(str(make_files(2)), "train", reader).load() is loaded


def test_a_folder_without_such_files_is_told_with_what_it_has(tmp_path):
    (tmp_path / "train.rec").touch()
    reader = reader_of(mnist_input.INPUT, FEATURES=mnist_input.FEATURES)
    with pytest.raises(
        UnusableError, match=r"has train\.rec, and no TFRecord files, such as train-00000-of-00004\.tfrec"
    ):
        open_source(str(tmp_path), "train", reader)


@pytest.mark.promises("which-way")
def test_a_pipeline_comes_before_records_and_these_before_load(make_files):
    folder, kinds = str(make_files(2)), []
    loaded = mnist_input.Examples(np.zeros((1, 784), np.uint8), np.zeros(1, np.uint8))
    reader = reader_of(mnist_input.INPUT, load=lambda *_: loaded)
    for more in (
        {},
        {"FEATURES": mnist_input.FEATURES, "parse": mnist_input.parse},
        {"build_dataset": lambda *_: tf.data.Dataset.from_tensors((np.zeros(784, np.uint8), 1))},
    ):
        vars(reader).update(more)
        kinds.append(type(open_source(folder, "train", reader)))
    assert kinds == [MemorySource, RecordSource, UsersSource]


@pytest.mark.promises("tfrecord-first-word")
def test_the_first_matching_word_chooses_the_test_set(tmp_path):
    reader = reader_of(tf.TensorSpec([], tf.int64, "n"), parse=parse)
    for number, word in enumerate(["eval", "val", "validation", "test", "t10k"]):
        write(tmp_path / f"{word}.tfrecord", [example(n=number)])
        assert open_source(str(tmp_path), "t10k", reader).load()[0].tolist() == [number]


@pytest.mark.promises("compared-data")
def test_the_description_tells_other_files(make_files):
    folder = make_files(4)
    description = open_source(str(folder), "train", mnist_input).description
    assert description.startswith("(4 files, ")
    assert open_source(str(make_files(4, "same")), "train", mnist_input).description == description
    path = folder / name_of("train", 1, 4)
    write(path, list(tf.io.tf_record_iterator(str(path)))[::-1])
    assert open_source(str(folder), "train", mnist_input).description != description


@pytest.mark.slow
def test_memory_does_not_grow_with_the_files(make_files, tmp_path):
    small = (make_files(1) / name_of("train", 0, 1)).read_bytes()
    big = tmp_path / "big"
    big.mkdir()
    for index in range(2):
        with open(big / name_of("train", index, 2), "wb") as file:
            for _ in range(160):
                file.write(small)
    source = open_source(str(big), "train", mnist_input).share(0, 1)
    num_bytes = sum(path.stat().st_size for path in big.iterdir())
    with tf.Graph().as_default(), tf.Session() as session:
        batches = source.draw(16, 100, 0)
        batches.start(session, 0)
        for _ in range(40):
            session.run(batches.drawn[0].op)
        before = psutil.Process().memory_info().rss
        for _ in range(2 * 160 * 1003 // 1600):
            session.run(batches.drawn[0].op)
        grown = psutil.Process().memory_info().rss - before
    assert grown < num_bytes / 2


# Which are refused


def remove(folder):
    os.remove(folder / name_of("train", 1, 4))


def empty(folder):
    os.truncate(folder / name_of("train", 1, 4), 0)


def mix(folder):
    (folder / name_of("train", 0, 5)).write_bytes((folder / name_of("train", 0, 4)).read_bytes())


def have_one_twice(folder):
    """As `gzip -k` leaves it, in the place of another; and a copy that has not ended is none."""
    remove(folder)
    (folder / f"{name_of('train', 0, 4)}.gz").touch()
    (folder / f".{name_of('train', 1, 4)}.Ab12cD").touch()


def flip(folder):
    path = folder / name_of("train", 1, 4)
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)


def cut(num_bytes):
    """Leave some bytes of the last record, as a copy does that is broken off."""

    def damage(folder):
        path = folder / name_of("train", 1, 4)
        write(path, 100 * [example(image=IMAGE)])  # its end, zeros, looks like an empty record
        os.truncate(path, path.stat().st_size - 16 - len(example(image=IMAGE)) + num_bytes)

    return damage


def forbid(folder):
    (folder / name_of("train", 1, 4)).chmod(0)


def put_into_a_folder(folder):
    """As Spark names what it writes."""
    remove(folder)
    (folder / name_of("train", 1, 4)).mkdir()


def compress(folder):
    path = folder / name_of("train", 1, 4)
    write(path, list(tf.io.tf_record_iterator(str(path))), "GZIP")


def rename_all(folder):
    for path in folder.glob("train-*"):
        path.rename(folder / f"part-{path.name[6:]}")


def write_others(**features):
    return lambda folder: write(folder / name_of("train", 1, 4), [example(**features)])


IMAGE = bytes(784)


@pytest.mark.promises("checked-before-training")
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove, "has an incomplete or mixed set of train files: add what is missing, and remove other"),
        (empty, "train-00001-of-00004.tfrecord is empty: copy it again, or create the set without it"),
        (mix, "has an incomplete or mixed set of train files: "),
        (have_one_twice, "has an incomplete or mixed set of train files: "),
        (
            flip,
            "train-00001-of-00004.tfrecord is not a TFRecord file, has no record, or has a corrupt first record",
        ),
        (cut(1), "train-00001-of-00004.tfrecord ends in the middle of a record: copy it again, or create"),
        (cut(11), "train-00001-of-00004.tfrecord ends in the middle of a record"),
        (cut(100), "train-00001-of-00004.tfrecord ends in the middle of a record"),
        (rename_all, "but none for train: name them train-00000-of-00004.tfrecord and so on, or with train"),
        (write_others(image=IMAGE), "train-00001-of-00004.tfrecord: record 0 cannot be parsed ("),
        (write_others(image=IMAGE, label=0.5), "train-00001-of-00004.tfrecord: record 0 cannot be parsed ("),
        (write_others(image=b"abc", label=1), "train-00001-of-00004.tfrecord: record 0 cannot be parsed ("),
        (
            write_others(image=bytes(3 * 784), label=1),
            "record 0 cannot be parsed (InvalidArgumentError: assertion failed: [parse() must return a row for each",
        ),
        (
            write_others(image=IMAGE, label=10),
            "assertion failed: [expected labels from 0 to 9, found] [10]); it has image",
        ),
        (write_others(image=IMAGE, label=2**32 + 3), "[expected labels from 0 to 9, found] [4294967299]"),
        (
            write_others(picture=IMAGE, number=1),
            "); it has number (int64_list), picture (bytes_list); correct the file, or FEATURES or parse()",
        ),
        (
            put_into_a_folder,
            "tfrecord cannot be read: Is a directory; move its files out of it, with the split in their",
        ),
        (forbid, "train-00001-of-00004.tfrecord cannot be read: Permission denied"),
    ],
)
def test_unusable_files_are_refused(make_files, obeying_permissions, damage, message):
    folder = make_files(4)
    damage(folder)
    with pytest.raises(UnusableError) as error:
        open_source(str(folder), "train", mnist_input)
    assert message in str(error.value)
    assert str(folder) in str(error.value)


def test_the_parts_of_a_checkpoint_are_no_examples(data_dir, tmp_path):
    """One folder may be --data_dir and --train_dir."""
    folder = shutil.copytree(data_dir, tmp_path / "both")
    (folder / "model.ckpt-0.data-00000-of-00001").touch()
    assert len(open_source(str(folder), "train", mnist_input).load()[0]) == 1003


def corrupt(path, records):
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


def vanish(path, records):
    path.unlink()


def leave_out_a_label(path, records):
    write(path, [*records[:-3], example(image=IMAGE), *records[-2:]])


def enlarge_a_picture(path, records):
    write(path, [*records[:-3], example(image=bytes(3 * 784), label=1), *records[-2:]])


@pytest.mark.slow
@pytest.mark.promises("fault-while-training")
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (corrupt, "{path}: record 500 is corrupt ("),
        (vanish, "{path} cannot be read: No such file or directory"),
        (leave_out_a_label, "{path}: record 498 cannot be parsed ("),
        (enlarge_a_picture, "{path}: record 498 cannot be parsed ("),
    ],
)
def test_what_happens_to_a_file_while_it_is_read_is_told_with_the_record(make_files, damage, message):
    folder = make_files(2)
    source = open_source(str(folder), "train", mnist_input).share(1, 2)
    path = folder / name_of("train", 1, 2)
    records = list(tf.io.tf_record_iterator(str(path)))
    damage(path, records)
    with pytest.raises(UnusableError) as error:  # before the first step
        draw(source, 500, num_runs=4)
    assert message.format(path=path) in str(error.value)
    source._has_read = True
    with pytest.raises(DataLostError):
        draw(source, 500, num_runs=4)


def test_what_cannot_be_read_is_told_while_the_examples_of_a_run_that_goes_on_are_counted(make_files):
    folder = make_files(2)
    source = open_source(str(folder), "train", mnist_input).share(1, 2)
    corrupt(folder / name_of("train", 1, 2), [])
    with pytest.raises(UnusableError, match=r"train-00001-of-00002\.tfrecord: record 500 is corrupt \("):
        draw(source, 5, num_runs=1, first_batch=3)


@pytest.mark.promises("unequal-shares")
@pytest.mark.parametrize(("index", "hold", "is_told"), [(0, None, True), (1, None, False), (0, object(), False)])
def test_the_chief_tells_of_files_that_make_unequal_shares(make_files, caplog, index, hold, is_told):
    folder = make_files(4)
    path = folder / name_of("train", 3, 4)
    for size, told in ((2, False), (20, is_told)):
        records = list(tf.io.tf_record_iterator(str(path)))
        write(folder / name_of("train", 1, 4), records * size)
        open_source(str(folder), "train", mnist_input).share(index, 2, hold)
        what = r"the files make unequal shares, \d+ bytes for worker 0, \d+ for worker 1: give --sharding=dynamic"
        assert bool(re.search(what, caplog.text)) == told


def test_a_file_that_becomes_empty_while_it_is_read_is_told(make_files):
    folder = make_files(1)
    source = open_source(str(folder), "train", mnist_input).share(0, 1)
    os.truncate(folder / name_of("train", 0, 1), 0)
    source._has_read = True
    with pytest.raises(DataLostError, match=r"train-00000-of-00001\.tfrecord is empty: copy it again"):
        draw(source, 5, num_runs=1)


# Where they stand


def test_files_take_the_place_of_mnist(make_files):
    folder = str(make_files(2))
    download.fetch(folder)
    assert not [name for name in os.listdir(folder) if name.endswith(".gz")]
