"""Read lists of words into examples, each a word and its language.

Debian and Ubuntu have the lists in /usr/share/dict. Shapes: n examples, 24 letters of a word.
"""

import os
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow.compat.v1 as tf

LISTS = {  # the languages, the names of their lists, and the encodings of these
    "Catalan": ("catalan", "utf-8"),
    "Danish": ("danish", "utf-8"),
    "Dutch": ("dutch", "utf-8"),
    "English": ("american-english", "utf-8"),
    "Esperanto": ("esperanto", "utf-8"),
    "Faroese": ("faroese", "utf-8"),
    "French": ("french", "utf-8"),
    "Galician": ("galician-minimos", "utf-8"),
    "German": ("ngerman", "utf-8"),
    "Italian": ("italian", "utf-8"),
    "Norwegian": ("bokmaal", "latin-1"),
    "Polish": ("polish", "utf-8"),
    "Portuguese": ("portuguese", "utf-8"),
    "Spanish": ("spanish", "utf-8"),
    "Swedish": ("swedish", "latin-1"),
}
LANGUAGES = tuple(LISTS)
MAX_LETTERS = 24
NUM_WORDS = 80_000  # of each language, or all that it has
TEST_PERIOD = 10  # every tenth word is for testing
PACKAGES = (
    "wcatalan wdanish wdutch wamerican wesperanto wfaroese wfrench wgalician-minimos wngerman witalian wnorwegian"
)
PACKAGES += " wpolish wportuguese wspanish wswedish"
INPUT = tf.TensorSpec([MAX_LETTERS], tf.int32, "words")  # what an exported model takes of an example
PREDICTS = "predict.py WORD..."  # the launcher tells how to use the model


class DataError(Exception):
    """A list, a word or a model is missing, or is not what it should be."""


class Examples(NamedTuple):
    """Words and their languages, in memory."""

    words: npt.NDArray[np.int32]  # int32 [n, 24], code points in Unicode; 0 after the last letter
    labels: npt.NDArray[np.uint8]  # uint8 [n], indices in LANGUAGES

    def show(self, index: int) -> str:
        """Return an example as the report shows it."""
        return "".join(map(chr, self.words[index][self.words[index] > 0]))


def find_classes(data_dir: str) -> tuple[str, ...]:
    """Return the names of the classes by label; they do not depend on the folder."""
    return LANGUAGES


def load(data_dir: str, split: str) -> Examples:
    """Read one split, `train` or `t10k`: the test examples.

    Raises:
      DataError: a list cannot be read.
    """
    words, labels = [], []
    for label, (name, encoding) in enumerate(LISTS.values()):
        chosen = encode(read_words(os.path.join(data_dir, name), encoding))
        is_test = np.arange(len(chosen)) % TEST_PERIOD == 0
        words.append(chosen[is_test if split == "t10k" else ~is_test])
        labels.append(np.full(len(words[-1]), label, np.uint8))
    return Examples(np.concatenate(words), np.concatenate(labels))


def read_words(path: str, encoding: str) -> list[str]:
    """Read a list, and return at most `NUM_WORDS` of its words, always in the same order."""
    try:
        with open(path, encoding=encoding) as file:
            lines = file.read().split()
    except (OSError, UnicodeError) as error:
        raise DataError(f"{path} cannot be read ({error}): apt-get install {PACKAGES}") from error
    lines = lines[:: max(1, len(lines) // (NUM_WORDS + NUM_WORDS // 4))]  # one list has four million words
    words = sorted({word.lower() for word in lines if word.isalpha() and len(word) <= MAX_LETTERS})
    order = np.random.default_rng(seed=0).permutation(len(words))[:NUM_WORDS]
    return [words[number] for number in order]


def encode(words: list[str]) -> npt.NDArray[np.int32]:
    """Return words in the form that `Examples` have."""
    return np.array(words, f"<U{MAX_LETTERS}").view(np.int32).reshape(-1, MAX_LETTERS)


def decode(words: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Build the inputs of the model, words, int32 [b, 24], and the labels, int32 [b], of a batch."""
    return to_inputs(words), tf.cast(labels, tf.int32)


def to_inputs(words: tf.Tensor) -> tf.Tensor:
    """Return words, int32 [b, 24], as they are."""
    return words
