"""Examples that no model can learn from or be tested on are refused before anything is built."""

import os
import threading
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmarks.testbed.processes import poll_for
from runtime.data.sources import open_source
from runtime.process import threads
from runtime.process.errors import UnusableError


class Examples(NamedTuple):
    numbers: np.ndarray
    labels: np.ndarray


class Reader:
    INPUT = tf.TensorSpec([1, 2], tf.uint8, "numbers")

    def __init__(self, numbers, labels):
        self.examples = Examples(np.array(numbers, np.uint8), np.array(labels))

    def load(self, data_dir, split):
        return self.examples


@pytest.fixture
def data_dir(tmp_path):
    (tmp_path / "own_file").touch()  # into this folder no MNIST is fetched
    return str(tmp_path)


@pytest.mark.parametrize(
    ("numbers", "labels", "expected"),
    [
        ([[1, 2], [3, 4]], [0], r"the same number in each array, found arrays of the shapes \[\[2, 2\], \[1\]\]"),
        (np.zeros([0, 2]), [], r"expected at least one example, .* found arrays of the shapes \[\[0, 2\], \[0\]\]"),
    ],
)
def test_examples_without_a_label_for_each_are_refused(data_dir, numbers, labels, expected):
    reader, message = Reader(numbers, labels), f"of --data_dir {data_dir} cannot be used: .*{expected}"
    with pytest.raises(UnusableError, match=f"the examples 'train' {message}"):
        open_source(data_dir, "train", reader)
    with pytest.raises(UnusableError, match=message):
        open_source(data_dir, "t10k", reader).load()


def test_examples_that_do_not_come_are_said(data_dir, monkeypatch, caplog):
    """A file server that is away never answers: neither would the task ever say a word."""
    monkeypatch.setattr(threads, "REMINDER_SECS", 0.05)
    fifo = os.path.join(data_dir, "fifo")
    os.mkfifo(fifo)
    reader = Reader([[1, 2]], [0])

    def load(*_):
        with open(fifo) as file:  # waits for a writer
            file.read()
        return reader.examples

    reader.load = load
    opening = threading.Thread(target=open_source, args=(data_dir, "train", reader), daemon=True)
    opening.start()
    poll_for(lambda: f"still reading the examples 'train': check that {data_dir} responds" in caplog.text, "line")
    with open(fifo, "w"):
        pass
    opening.join()


@pytest.mark.parametrize("loaded", [None, [[[1, 2]], [0]], (np.zeros([1, 2]), np.zeros(1, int))])
def test_what_is_no_named_tuple_of_arrays_is_refused(data_dir, loaded):
    reader = Reader([[1, 2]], [0])
    reader.load = lambda *_: loaded
    with pytest.raises(
        UnusableError, match=f"expected a named tuple of arrays, found {type(loaded).__name__}; correct"
    ):
        open_source(data_dir, "train", reader)


def test_test_examples_that_are_not_as_input_says_are_refused(data_dir):
    expected = r"expected uint8 \(1, 2\), as INPUT says for numbers, found uint8 \(3,\); correct mnist_input\.py"
    with pytest.raises(UnusableError, match=expected):
        open_source(data_dir, "t10k", Reader([[1, 2, 3]], [0])).load()
    assert open_source(data_dir, "t10k", Reader([[1, 2]], [0])).load().numbers.tolist() == [[1, 2]]


def test_only_an_empty_folder_is_filled_and_only_by_who_reads_it(tmp_path):
    reader = Reader([[1, 2]], [0])
    open_source(str(tmp_path), "train", reader)
    assert not os.listdir(tmp_path)
    reader.fetch = lambda data_dir: (tmp_path / "own_file").write_text(data_dir)
    open_source(str(tmp_path), "train", reader)
    assert (tmp_path / "own_file").read_text() == str(tmp_path)
    reader.fetch = None  # it is not called
    open_source(str(tmp_path), "train", reader)
    assert os.listdir(tmp_path) == ["own_file"]


class Weighted(NamedTuple):
    texts: np.ndarray
    labels: np.ndarray
    weights: np.ndarray


def test_strings_and_weights_are_columns_as_others_are(graph, tmp_path):
    texts = np.array(["yes", "no", "perhaps"])
    examples = Weighted(texts[:, None], np.arange(3), np.float32([1, 2, 4]))
    reader = Reader([], [])
    reader.INPUT, reader.load = tf.TensorSpec([1], tf.string, "texts"), lambda *_: examples
    batches = open_source(str(tmp_path), "train", reader).share(0, 1).draw(1, 3, 0)
    with tf.Session() as session:
        batches.start(session, 0)
        drawn, labels, weights = session.run(batches.columns(batches.inputs[0]))
    assert [text.decode() for text in drawn[:, 0]] == texts[labels].tolist()
    assert weights.tolist() == (2.0**labels).tolist()
