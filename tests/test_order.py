"""The order of the examples: each once in an epoch, whichever pieces it is computed in."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from runtime.data.order import build_numbers


def numbers(first, num_positions, num_examples, seed=0, stream=0):
    with tf.Graph().as_default(), tf.Session() as session:
        start = tf.constant(first, tf.int64)
        return session.run(build_numbers(start, num_positions, num_examples, seed, stream))


@pytest.mark.promises("undisturbed")
@pytest.mark.parametrize("num_examples", [1, 2, 7, 300, 1009])
def test_each_epoch_has_each_example_once(num_examples):
    epochs = numbers(0, 3 * num_examples, num_examples).reshape(3, num_examples)
    for epoch in epochs:
        assert sorted(epoch) == list(range(num_examples))
    if num_examples > 128:
        assert (epochs[0] != epochs[1]).any()


def test_pieces_are_parts_of_one_order():
    whole = numbers(0, 400, 150)
    pieces = [numbers(first, 80, 150) for first in range(0, 400, 80)]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


def test_one_order_says_nothing_of_the_next_nor_an_example_of_its_neighbour():
    def correlation(these, those):
        return abs(np.corrcoef(these, those)[0, 1])

    first, second = numbers(0, 20000, 10000).reshape(2, 10000)
    others = [second, numbers(0, 10000, 10000, seed=1), numbers(0, 10000, 10000, stream=1)]
    assert max(correlation(first, other) for other in others) < 0.05  # with fewer rounds, 0.9
    assert max(correlation(first[:-lag], first[lag:]) for lag in (1, 2, 4, 16)) < 0.05


def test_a_stream_may_be_long():
    far = 10**15
    assert sorted(numbers(far * 7, 7, 7)) == list(range(7))
