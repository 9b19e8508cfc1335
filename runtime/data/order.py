"""The order of the examples: a new permutation in each epoch, of which any piece can be computed without the rest."""

import tensorflow.compat.v1 as tf

ROUNDS = 16  # of the cipher that permutes; with TensorFlow's 4, the permutations of two epochs are nearly the same
SHIFT = 0.618  # of all examples, from one epoch to the next: so blocks begin elsewhere, and another example is the last


def build_numbers(
    first: tf.Tensor, num_positions: int, num_examples: int, block_size: int, seed: int, stream: int | None
) -> tf.Tensor:
    """Build which examples stand at some positions of an endless stream of epochs.

    An epoch permutes blocks of neighbours, and has each example once. The examples that fill no block come last.

    Args:
      first: the first of the positions, int64 []; they follow each other, and may span several epochs.
      num_positions: how many there are.
      num_examples: in an epoch.
      block_size: how many neighbours stay together; 1 permutes the examples themselves.
      seed: the run's seed.
      stream: see `MemorySource`; it tells this stream from others of the same seed.

    Returns:
      int64 [num_positions], in [0, num_examples).
    """
    positions = first + tf.range(num_positions, dtype=tf.int64)
    block_size = min(block_size, num_examples)
    num_blocks = num_examples // block_size
    epochs, places = positions // num_examples, positions % num_examples
    # A block is computed once, not for each of its examples; number `num_blocks` is the rest, which stays the last.
    keys, of_position = tf.unique(epochs * (num_blocks + 1) + places // block_size)
    key_epochs, slots = keys // (num_blocks + 1), keys % (num_blocks + 1)
    words = [tf.fill(tf.shape(keys), tf.constant(word, tf.int64)) for word in (seed, -1 if stream is None else stream)]
    blocks = tf.raw_ops.RandomIndexShuffle(
        index=tf.minimum(slots, num_blocks - 1),
        seed=tf.stack([*words, key_epochs], 1),
        max_index=tf.constant(num_blocks - 1, tf.int64),
        rounds=ROUNDS,
    )
    blocks = tf.gather(tf.where(slots < num_blocks, blocks, slots), of_position)
    shifts = epochs * int(SHIFT * num_examples)
    return (blocks * block_size + places % block_size + shifts) % num_examples
