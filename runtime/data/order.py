"""In which order examples and files are read: all that is shuffled, is shuffled here, by the seed of the run."""

from typing import Any

import tensorflow.compat.v1 as tf

ROUNDS = 16  # of the cipher that permutes; with TensorFlow's 4, the permutations of two epochs are nearly the same


def build_numbers(first: tf.Tensor, num_positions: int, num_items: int, seed: int, stream: int | None) -> tf.Tensor:
    """Build which items stand at some positions of an endless stream of epochs, each of which has each item once.

    The rest of the stream is not computed.

    Args:
      first: the first of the positions, int64 []; they follow each other, and may span several epochs.
      num_positions: how many there are.
      num_items: in an epoch.
      seed: the run's seed.
      stream: tells this stream from others of the same seed, as the index of a worker does; None: of all workers.

    Returns:
      int64 [num_positions], in [0, num_items).
    """
    positions = first + tf.range(num_positions, dtype=tf.int64)
    epochs = positions // num_items
    words = [tf.fill([num_positions], tf.constant(word, tf.int64)) for word in _words(seed, stream)]
    return tf.raw_ops.RandomIndexShuffle(
        index=positions - epochs * num_items,
        seed=tf.stack([*words, epochs], 1),
        max_index=tf.constant(num_items - 1, tf.int64),
        rounds=ROUNDS,
    )


def build_seed(seed: int, stream: int | None, *numbers: tf.Tensor) -> tf.Tensor:
    """Build the seed, int64 [2], of a part of a stream that has these numbers, such as its epoch."""
    words = tf.constant(_words(seed, stream), tf.int64)
    for number in numbers:
        words = tf.random.experimental.stateless_fold_in(words, number)
    return words


def shuffle(items: Any, seed: tf.Tensor) -> tf.Tensor:
    """Shuffle a tensor, [n, ...]: a tenth of the work of `build_numbers()`, where all of it is needed."""
    return tf.random.experimental.stateless_shuffle(items, seed)


def _words(seed: int, stream: int | None) -> list[int]:
    return [seed, -1 if stream is None else stream]
