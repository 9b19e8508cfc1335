"""TFRecord files: how a data set becomes some, how they are read, and which are refused."""

import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import psutil
import pytest
import tensorflow.compat.v1 as tf

import mnist_input
from benchmarks.testbed.processes import PROJECT
from runtime.data import convert, download, streams
from runtime.data.sources import open_source
from runtime.data.tfrecords import name_of
from runtime.process.errors import UnusableError, reason
from tests import forked, idx_files

FRAMED = mnist_input.RECORD_BYTES + 16


def make_examples(num_examples):
    """Return images and labels, from which the number of each can be told."""
    images = np.zeros((num_examples, 28, 28), np.uint8)
    images[:, 0, 0], images[:, 0, 1] = np.divmod(np.arange(num_examples), 256)
    return images, (np.arange(num_examples) % 10).astype(np.uint8)


def numbers_of(images):
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
def make_shards(data_dir, tmp_path):
    """Convert them."""

    def make_shards(num_shards, name="shards"):
        convert.convert(mnist_input.load, data_dir, str(tmp_path / name), num_shards)
        return tmp_path / name

    return make_shards


def read_folder(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_command_converts_and_the_same_examples_give_the_same_bytes(data_dir, make_shards):
    process = forked.run("mnist_input.py", "convert", "--shards", "4", "--data_dir", data_dir)
    assert process.returncode == 0, process.stderr
    output_dir = f"{data_dir}/tfrecord"
    assert process.stdout == f"give --data_dir={output_dir} to distributed.py\n"
    assert "train: 1003 of 1003 examples\n" in process.stderr
    shards = make_shards(4)
    assert read_folder(shards) == read_folder(type(shards)(output_dir))
    names = [name_of("train", index, 4) for index in range(4)]
    assert sorted(os.listdir(shards)) == ["t10k-00000-of-00001.tfrecord", *names]


def test_any_reader_of_tfrecords_reads_them(make_shards, data_dir):
    shards = make_shards(3)
    images, labels = mnist_input.load(data_dir, "train")
    for index in range(3):
        records = list(tf.io.tf_record_iterator(str(shards / name_of("train", index, 3))))
        assert records == [
            image.tobytes() + bytes([label]) for image, label in zip(images[index::3], labels[index::3], strict=True)
        ]


def test_a_killed_conversion_leaves_nothing_that_is_taken_for_whole(data_dir, tmp_path):
    slow = """
import sys, time
import mnist_input
from runtime.data import convert
def load_slowly(data_dir, split):
    if split == "t10k":
        print("the other split is written", flush=True)
        time.sleep(1000)
    return mnist_input.load(data_dir, split)
convert.convert(load_slowly, *sys.argv[1:3], 2)
"""
    output_dir = tmp_path / "shards"
    process = subprocess.Popen(
        [sys.executable, "-c", slow, data_dir, str(output_dir)], cwd=PROJECT, stdout=subprocess.PIPE
    )
    assert process.stdout.readline()
    left = f"{output_dir}.unfinished"
    with pytest.raises(UnusableError, match=f"{left} is there: another process converts, or was killed: remove it"):
        convert.convert(mnist_input.load, data_dir, str(output_dir), 2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not output_dir.exists()
    assert os.path.exists(left)
    with pytest.raises(UnusableError, match=r"is what an unfinished conversion has left: remove it, convert again"):
        open_source(left, "train", mnist_input)
    shutil.rmtree(left)
    convert.convert(mnist_input.load, data_dir, str(output_dir), 2)
    assert open_source(str(output_dir), "train", mnist_input).num_examples == 1003
    assert not os.path.exists(left)


def test_ctrl_c_ends_a_conversion_without_a_traceback_and_leaves_nothing(data_dir, tmp_path):
    slow = """
import time
import mnist_input
from runtime.data import convert
def load_slowly(data_dir, split):
    print("it has begun", flush=True)
    time.sleep(1000)
convert.main(load_slowly, mnist_input.DataError)
"""
    flags = ["convert", "--shards=2", f"--data_dir={data_dir}", f"--output_dir={tmp_path}/shards"]
    command = [sys.executable, "-c", slow, *flags]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "it has begun\n"
        process.send_signal(signal.SIGINT)
        assert "Traceback" not in process.stderr.read()
    assert process.returncode == 130
    assert os.listdir(tmp_path) == ["data"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--data_dir=~/mnist"], "--data_dir=~/mnist: ~ is only understood by a shell: write $HOME"),
        (["--output_dir=gs://bucket/data"], "--output_dir gs://bucket/data is not a folder: gs:// is not supported"),
        (["--data_dir={shards}"], "--data_dir {shards} has TFRecord files already: give that of the IDX files"),
        (
            ["--data_dir={shards}/../other"],
            "--data_dir {shards}/../other has other files, such as table.csv, and none of those that are converted"
            f" ({', '.join(download.SHA256)}): give the folder that has them, or a new one for MNIST",
        ),
    ],
)
@pytest.mark.parametrize("script", ["mnist_input.py", "examples/fashion_mnist/mnist_input.py"])
def test_the_command_refuses_a_folder_that_is_not_meant(make_shards, tmp_path, script, flags, message):
    shards = make_shards(2)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "table.csv").touch()
    command = [sys.executable, script, "convert", "--shards=2", *(flag.format(shards=shards) for flag in flags)]
    # The files of the example take the place of MNIST's own, in the project.
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    process = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True)
    assert process.returncode == 2
    assert os.listdir(tmp_path / "other") == ["table.csv"]
    assert process.stderr.endswith(f"error: {message.format(shards=shards)}\n")


def test_what_cannot_be_converted_is_refused_and_leaves_nothing(data_dir, make_shards, tmp_path):
    with pytest.raises(UnusableError, match="1003 examples of train cannot fill 1004 shards: give fewer"):
        convert.convert(mnist_input.load, data_dir, str(tmp_path / "shards"), 1004)
    with pytest.raises(UnusableError, match="/dev/null/shards cannot be written: Not a directory"):
        convert.convert(mnist_input.load, data_dir, "/dev/null/shards", 2)
    shards = make_shards(2)
    with pytest.raises(UnusableError, match=f"{shards} is there already: remove it, or give another --output_dir"):
        make_shards(3)
    assert sorted(os.listdir(tmp_path)) == ["data", "shards"]
    assert len(os.listdir(shards)) == 3


def test_all_examples_are_read_back(data_dir, make_shards):
    source = open_source(str(make_shards(4)), "train", mnist_input)
    expected, read = mnist_input.load(data_dir, "train"), source.load()
    order = np.argsort(numbers_of(read.images), kind="stable")
    np.testing.assert_array_equal(read.images[order], expected.images)
    np.testing.assert_array_equal(read.labels[order], expected.labels)
    test_examples = open_source(str(make_shards(2, "others")), "t10k", mnist_input).load()
    np.testing.assert_array_equal(numbers_of(test_examples.images), np.arange(50))


def test_a_read_that_is_cut_short_goes_on(make_shards, monkeypatch):
    whole, preadv = open_source(str(make_shards(2)), "train", mnist_input).load(), os.preadv
    cut = lambda file, buffers, offset: preadv(file, [buffers[0][:10_000]], offset)  # noqa: E731
    monkeypatch.setattr(os, "preadv", cut)
    again = open_source(str(make_shards(2, "again")), "train", mnist_input).load()
    np.testing.assert_array_equal(again.images, whole.images)


def draw(source, batch_size, num_runs, num_batches=2, seed=0, first_batch=0):
    """Return the numbers of the examples in a worker's batches."""
    with tf.Graph().as_default(), tf.Session() as session:
        batches = streams.build_batches(source, num_batches, batch_size, seed)
        session.run(batches.initializer, batches.feed_dict(first_batch))
        of_a_run = [batches.columns(inputs) for inputs in tf.unstack(batches.inputs)]
        drawn = [batch for _ in range(num_runs) for batch in session.run(of_a_run)]
    numbers = np.concatenate([numbers_of(images) for images, _ in drawn])
    np.testing.assert_array_equal(np.concatenate([labels for _, labels in drawn]), numbers % 10)
    return numbers


@pytest.mark.parametrize("batch_size", [10, 400, 3])
def test_each_worker_reads_every_example_of_its_files_once_in_an_epoch(make_shards, batch_size):
    source = open_source(str(make_shards(5)), "train", mnist_input)
    read = []
    for worker, num_examples in enumerate((401, 401, 201)):  # of 5 files: 0 and 3, 1 and 4, 2
        share = source.share(worker, 3)
        assert share.num_examples == num_examples
        numbers = draw(share, batch_size, num_runs=2 * num_examples // (2 * batch_size) + 1)
        for end in range(2 * batch_size, len(numbers) + 1, 2 * batch_size):  # the run at an epoch's end has both
            counts = np.bincount(numbers[:end], minlength=1003)[sorted(set(numbers))]
            assert {*counts} <= {end // num_examples, end // num_examples + 1}
        assert (numbers[:50] != sorted(numbers[:50])).any()
        read += sorted(set(numbers))
    assert sorted(read) == list(range(1003))


def test_a_stream_goes_on_where_earlier_sessions_stopped(make_shards):
    share = open_source(str(make_shards(2)), "train", mnist_input).share(1, 2)
    undisturbed = draw(share, 16, num_runs=40)
    resumed = draw(share, 16, num_runs=28, first_batch=24)
    np.testing.assert_array_equal(resumed, undisturbed[24 * 16 :])
    assert (draw(share, 16, num_runs=40, seed=1) != undisturbed).any()


def remove(folder):
    os.remove(folder / name_of("train", 1, 4))


def truncate(folder):
    os.truncate(folder / name_of("train", 1, 4), 100 * FRAMED - 1)


def empty(folder):
    os.truncate(folder / name_of("train", 1, 4), 0)


def mix(folder):
    (folder / name_of("train", 0, 5)).write_bytes((folder / name_of("train", 0, 4)).read_bytes())


def flip(place):
    def flip(folder):
        path = folder / name_of("train", 1, 4)
        content = bytearray(path.read_bytes())
        content[place] ^= 1
        path.write_bytes(content)

    return flip


def write_other_records(folder):
    with tf.io.TFRecordWriter(str(folder / name_of("train", 1, 4))) as writer:
        writer.write(b"another record")


def rename_all(folder):
    for path in folder.glob("train-*"):
        path.rename(folder / f"part-{path.name[6:]}")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove, "lacks train-00001-of-00004.tfrecord: 1 of 4 shards of train are missing"),
        (truncate, f"has {100 * FRAMED - 1} bytes, expected a multiple of {FRAMED}"),
        (empty, "does not begin with a record of 785 bytes"),
        (mix, "has files of several sets, of 4 and of 5 shards of train"),
        (flip(20), "the first record is damaged"),
        (flip(-20), "the last record is damaged"),
        (flip(-1), "the last record is damaged"),
        (flip(0), "does not begin with a record of 785 bytes"),
        (write_other_records, "does not begin with a record of 785 bytes"),
        (rename_all, "has TFRecord files, but none of train: expected train-00000-of-00004.tfrecord and so on"),
    ],
)
def test_unusable_files_are_refused(make_shards, damage, message):
    folder = make_shards(4)
    damage(folder)
    with pytest.raises(UnusableError) as error:
        open_source(str(folder), "train", mnist_input)
    assert message in str(error.value)
    assert str(folder) in str(error.value)


def test_files_that_change_in_the_middle_of_a_run_are_named_in_one_line(make_shards):
    folder = make_shards(2)
    source = open_source(str(folder), "train", mnist_input).share(0, 2)
    path = folder / name_of("train", 0, 2)
    os.truncate(path, 10 * FRAMED)
    with pytest.raises(tf.errors.OpError) as error:
        draw(source, 100, num_runs=4)
    (line,) = reason(error.value).splitlines()
    assert f"{path} is damaged at record " in line


def test_fewer_files_than_workers_are_refused(make_shards):
    source = open_source(str(make_shards(2)), "train", mnist_input)
    message = "2 shards cannot be shared by 3 workers: convert into more of them, or give --sharding=dynamic"
    for index in range(3):  # all, or the others would train without the one that is refused
        with pytest.raises(UnusableError, match=message):
            source.share(index, 3)


def test_the_description_tells_other_files(make_shards):
    folder = make_shards(4)
    description = open_source(str(folder), "train", mnist_input).description
    assert description.startswith("(1003 examples in 4 shards, CRC-32 of a sample ")
    assert open_source(str(make_shards(4, "same")), "train", mnist_input).description == description
    path = folder / name_of("train", 1, 4)
    os.truncate(path, path.stat().st_size - FRAMED)  # whole records: only the others can tell
    assert open_source(str(folder), "train", mnist_input).description != description


def test_files_take_the_place_of_mnist(make_shards):
    folder = str(make_shards(2))
    download.fetch(folder)
    assert not [name for name in os.listdir(folder) if name.endswith(".gz")]


def test_memory_does_not_grow_with_the_files(make_shards, tmp_path):
    small = (make_shards(1) / name_of("train", 0, 1)).read_bytes()
    big = tmp_path / "big"
    big.mkdir()
    for index in range(2):
        with open(big / name_of("train", index, 2), "wb") as file:
            for _ in range(160):
                file.write(small)
    source = open_source(str(big), "train", mnist_input).share(0, 1)
    assert source.num_examples == 2 * 160 * 1003
    num_bytes = source.num_examples * mnist_input.RECORD_BYTES
    with tf.Graph().as_default(), tf.Session() as session:
        batches = streams.build_batches(source, 16, 100, 0)
        session.run(batches.initializer, batches.feed_dict(0))
        for _ in range(10):
            session.run(batches.inputs.op)
        before = psutil.Process().memory_info().rss
        for _ in range(source.num_examples // 1600):
            session.run(batches.inputs.op)
        grown = psutil.Process().memory_info().rss - before
    assert grown < num_bytes / 5
