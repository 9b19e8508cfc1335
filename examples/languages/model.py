"""Classify words by language: a layer of logits on the mean of the vectors of a word's n-grams, from a table.

This is the classifier of fastText (Joulin et al. 2016, arXiv:1607.01759). Shapes: b words in a batch, of at most 24
letters, k n-grams in all of them, 16 numbers for each n-gram, 15 languages.
"""

import tensorflow.compat.v1 as tf

from mnist_input import LANGUAGES, MAX_LETTERS

LENGTHS = (2, 3, 4, 5)  # of the n-grams, with the marks of the beginning and the end of a word among their letters
BUCKETS, DIM = 2_000_000, 16  # n-grams share the rows of the table, where their hashes meet
MARK = ord("_")
PRIME = 0x100000001B3  # of the hash FNV-1a, http://www.isthe.com/chongo/tech/comp/fnv/


def build_logits(words: tf.Tensor, is_training: bool) -> tf.Tensor:
    """Build the logits, float32 [b, 15], of words, int32 [b, 24]: code points, and 0 after the last letter."""
    table = tf.get_variable("ngrams", [BUCKETS, DIM], initializer=tf.random_uniform_initializer(-1 / DIM, 1 / DIM))
    ngrams, word_of_ngram = _build_ngrams(words)
    means = tf.math.segment_mean(tf.nn.embedding_lookup(table, ngrams), word_of_ngram)
    with tf.variable_scope("logits", initializer=tf.zeros_initializer()):
        weights = tf.get_variable("weights", [DIM, len(LANGUAGES)])
        return tf.matmul(means, weights) + tf.get_variable("biases", [len(LANGUAGES)])


def _build_ngrams(words: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Build the hashes of all n-grams, in [0, BUCKETS), and the word of each: int64 [k]."""
    ends = tf.math.count_nonzero(words, axis=1) + 1
    letters = tf.pad(tf.cast(words, tf.int64), [[0, 0], [1, 1]])
    letters += MARK * sum(tf.one_hot(place, MAX_LETTERS + 2, dtype=tf.int64) for place in (0, ends))  # int64 [b, 26]
    hashes = []
    for length in LENGTHS:
        hash_ = tf.fill([1, 1], tf.constant(length, tf.int64))
        for place in range(length):  # all n-grams of this length at once
            hash_ = tf.bitwise.bitwise_xor(hash_, letters[:, place : letters.shape[1] - length + 1 + place]) * PRIME
        hashes.append(hash_ % BUCKETS)
    is_ngram = tf.concat([letters[:, length - 1 :] > 0 for length in LENGTHS], axis=1)  # and not beyond its word
    return tf.boolean_mask(tf.concat(hashes, axis=1), is_ngram), tf.where(is_ngram)[:, 0]


def build_loss(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Build the cross-entropy, averaged over the batch: float32 [], from float32 [b, 15] and int32 [b]."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=labels))


def build_metrics(logits: tf.Tensor, labels: tf.Tensor) -> dict[str, tf.Tensor]:
    """Build the fraction of words whose largest logit is that of their language: float32 [], in [0, 1]."""
    return {"accuracy": tf.reduce_mean(tf.cast(tf.nn.in_top_k(logits, labels, 1), tf.float32))}
