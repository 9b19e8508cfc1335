"""Which language is this word? The mean of the vectors of its n-grams, from a table, and a layer of logits.

This is the classifier of fastText (Joulin et al. 2016, arXiv:1607.01759). Shapes: b words in a batch, of 24 letters at
most, k n-grams in all of them, 16 numbers for each n-gram, 15 languages.
"""

from collections.abc import Mapping

import tensorflow.compat.v1 as tf

from mnist_input import LANGUAGES, MAX_LETTERS
from runtime.tables import Table

MODELS = ("ngrams",)
LENGTHS = (2, 3, 4, 5)  # of the n-grams, with the marks of the beginning and the end of a word among their letters
BUCKETS, DIM = 2_000_000, 16  # n-grams share the rows of the table, where their hashes meet
MARK = ord("_")
PRIME = 0x100000001B3  # of the hash FNV-1a, http://www.isthe.com/chongo/tech/comp/fnv/


def build_parameters(model: str, hidden_units: int) -> dict[str, object]:
    """Make the parameters, float32: a table of the n-grams, and the layer of logits."""
    return {
        "ngrams": Table(BUCKETS, DIM),
        "logits/weights": tf.get_variable("logits/weights", [DIM, len(LANGUAGES)], initializer=tf.zeros_initializer()),
        "logits/biases": tf.get_variable("logits/biases", [len(LANGUAGES)], initializer=tf.zeros_initializer()),
    }


def build_ids(words: tf.Tensor) -> dict[str, tf.Tensor]:
    """Build which rows of the table words need: int64 [k], those of the first word, of the second, and so on."""
    letters = mark_ends(words)
    hashes = []
    for length in LENGTHS:
        hash_ = tf.fill([1, 1], tf.constant(length, tf.int64))
        for place in range(length):  # all n-grams of this length at once
            hash_ = tf.bitwise.bitwise_xor(hash_, letters[:, place : letters.shape[1] - length + 1 + place]) * PRIME
        hashes.append(hash_ % BUCKETS)
    return {"ngrams": tf.boolean_mask(tf.concat(hashes, axis=1), find_ngrams(letters))}


def build_logits(parameters: Mapping[str, tf.Tensor], words: tf.Tensor) -> tf.Tensor:
    """Build the logits, float32 [b, 15]; the parameter of the table is float32 [k, 16]: the rows of its ids."""
    word_of_ngram = tf.where(find_ngrams(mark_ends(words)))[:, 0]
    means = tf.math.segment_mean(parameters["ngrams"], word_of_ngram)
    return tf.matmul(means, parameters["logits/weights"]) + parameters["logits/biases"]


def mark_ends(words: tf.Tensor) -> tf.Tensor:
    """Build the letters of words, int32 [b, 24], with a mark before the first and after the last: int64 [b, 26]."""
    ends = tf.math.count_nonzero(words, axis=1) + 1
    letters = tf.pad(tf.cast(words, tf.int64), [[0, 0], [1, 1]])
    return letters + MARK * sum(tf.one_hot(place, MAX_LETTERS + 2, dtype=tf.int64) for place in (0, ends))


def find_ngrams(letters: tf.Tensor) -> tf.Tensor:
    """Build at which places an n-gram is within its word, for all lengths, one after the other: bool [b, 94]."""
    return tf.concat([letters[:, length - 1 :] > 0 for length in LENGTHS], axis=1)


def build_loss(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Build the cross-entropy, averaged over the batch: float32 [], from float32 [b, 15] and int32 [b]."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=labels))


def build_accuracy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Build the fraction of words whose largest logit is that of their language: float32 [], in [0, 1]."""
    return tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), labels), tf.float32))
