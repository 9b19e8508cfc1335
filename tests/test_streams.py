"""The stream of batches of examples in memory, and how they are shared."""

import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import mnist_input
from runtime.data.memory import MemorySource
from runtime.process.errors import UnusableError


@pytest.mark.promises("static-shares")
@pytest.mark.parametrize("num_shares", [1, 2, 3, 7])
def test_shares_are_disjoint_and_complete(num_shares):
    source = MemorySource(mnist_input.Examples(np.arange(60000)[:, None], np.arange(60000)))
    shares = [source.share(index, num_shares).load() for index in range(num_shares)]
    assert sorted(np.concatenate([share.labels for share in shares])) == list(range(60000))
    for index, share in enumerate(shares):
        assert share.labels[:2].tolist() == [index, index + num_shares]
        assert (share.images[:, 0] == share.labels).all()


def test_a_share_without_examples_is_refused():
    source = MemorySource(mnist_input.Examples(np.zeros((2, 784), np.uint8), np.zeros(2, np.uint8)))
    with pytest.raises(UnusableError, match="2 examples cannot be shared by 3 workers"):
        source.share(0, 3)


def draw(num_examples, batch_size, num_runs, num_batches=1, seed=0, stream=0, first_batch=0):
    """Return the indices of the examples drawn: int [num_runs * num_batches * batch_size]."""
    # Each example's index is written into its first two pixels.
    images = np.zeros((num_examples, 784), np.uint8)
    images[:, 0], images[:, 1] = np.divmod(np.arange(num_examples), 256)
    labels = (np.arange(num_examples) % 10).astype(np.uint8)
    with tf.Graph().as_default(), tf.Session() as session:
        source = MemorySource(mnist_input.Examples(images, labels), stream)
        batches = source.draw(num_batches, batch_size, seed)
        batches.start(session, first_batch)
        of_a_run = [mnist_input.decode(*batches.columns(inputs)) for inputs in tf.unstack(batches.inputs)]
        drawn = [batch for _ in range(num_runs) for batch in session.run(of_a_run)]
    indices = np.concatenate([np.rint(255 * (256 * image[:, 0] + image[:, 1])) for image, _ in drawn]).astype(int)
    assert (np.concatenate([label for _, label in drawn]) == indices % 10).all()
    assert all(image.shape == (batch_size, 784) and image.dtype == np.float32 for image, _ in drawn)
    return indices


@pytest.mark.promises("order-of-seed")
@pytest.mark.parametrize("num_batches", [1, 4])
@pytest.mark.parametrize("batch_size", [100, 70, 1000])  # a divisor, no divisor, more than there are
def test_each_epoch_uses_every_example_once_in_a_new_order(batch_size, num_batches):
    indices = draw(300, batch_size, num_runs=1000 // batch_size + 1, num_batches=num_batches)
    epochs = [indices[start : start + 300] for start in (0, 300, 600)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(300))
    assert not (epochs[0] == epochs[1]).all()
    assert not (epochs[1] == epochs[2]).all()


@pytest.mark.promises("order-of-seed")
def test_the_order_is_that_of_seed_and_stream():
    def order(seed, stream):
        return draw(300, 100, 6, 1, seed, stream).tolist()

    assert order(1, 2) == order(1, 2)
    assert order(1, 2) != order(1, 3)
    assert order(1, 2) != order(2, 2)
    assert order(1, 2) != order(2, 1)


def test_the_examples_are_no_part_of_the_graph(graph):
    examples = mnist_input.Examples(np.zeros((60000, 784), np.uint8), np.zeros(60000, np.uint8))
    MemorySource(examples, stream=0).draw(1, 100, 0)
    assert graph.as_graph_def().ByteSize() < 20_000


@pytest.mark.promises("order-goes-on")
@pytest.mark.parametrize("first_batch", [0, 1, 9, 10, 11, 25])
def test_a_stream_goes_on_where_earlier_sessions_stopped(first_batch):
    undisturbed = draw(num_examples=100, batch_size=10, num_runs=40)
    resumed = draw(num_examples=100, batch_size=10, num_runs=40 - first_batch, first_batch=first_batch)
    np.testing.assert_array_equal(resumed, undisturbed[10 * first_batch :])


@pytest.mark.promises("compared-data")
def test_the_description_tells_other_labels_too():
    examples = mnist_input.Examples(np.zeros([2, 784], np.uint8), np.array([1, 2], np.uint8))
    description = MemorySource(examples).description
    assert re.fullmatch(r"\(2 examples, CRC-32 [0-9a-f]{8}\)", description)
    assert MemorySource(examples._replace(images=examples.images.copy())).description == description
    assert MemorySource(examples._replace(labels=np.array([2, 1], np.uint8))).description != description


def test_the_description_of_strings_is_the_same_in_every_process():
    def make_source(*words):
        numbered = [f"{word}{number}" for number, word in enumerate(words)]  # objects of their own
        return MemorySource(mnist_input.Examples(np.array(numbered, object)[:, None], np.arange(len(words))))

    one, same, other = make_source("a", "b"), make_source("a", "b"), make_source("b", "a")
    assert one.description == same.description != other.description
