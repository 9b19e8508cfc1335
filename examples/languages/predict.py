"""Guess the languages of words with a model that distributed.py has exported.

python examples/languages/predict.py --model DIR word ...
"""

import argparse
import os
import sys
import unicodedata
from collections.abc import Callable

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"  # TensorFlow reads it when it is imported: no log but of errors

import tensorflow as tf

from mnist_input import LANGUAGES, MAX_LETTERS, DataError, encode


def normalize(argument: str) -> str:
    """Return a word in the form of the lists, in lower case, with one code point for each letter.

    Raises:
      DataError: this is not a word, or it is too long for the model.
    """
    word = unicodedata.normalize("NFC", argument.lower())
    if not word.isalpha():
        raise DataError(f"{argument!r} is not a word of letters only: give each word as an argument of its own")
    if len(word) > MAX_LETTERS:
        raise DataError(f"{argument} has {len(word)} letters, expected at most {MAX_LETTERS}: the model takes no more")
    return word


def load_model(folder: str) -> Callable[..., dict[str, tf.Tensor]]:
    """Load the newest version in a folder of exported models.

    Raises:
      DataError: there is none, or it does not take words.
    """
    try:
        newest = max((name for name in os.listdir(folder) if name.isdigit()), key=int)
        model = tf.saved_model.load(os.path.join(folder, newest)).signatures["serving_default"]
        model(words=tf.zeros([1, MAX_LETTERS], tf.int32))
    except (OSError, ValueError, KeyError, TypeError, tf.errors.OpError) as error:
        raise DataError(
            f"--model {folder} has no exported model of words ({error}): give the --export_dir of distributed.py"
        ) from error
    return model


def main() -> None:
    """Print the most likely languages of each word."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", metavar="DIR", required=True, help="the --export_dir of distributed.py")
    parser.add_argument("words", metavar="word", nargs="+", help=f"at most {MAX_LETTERS} letters")
    arguments = parser.parse_args()
    words, mistakes = [], []
    for argument in arguments.words:
        try:
            words.append(normalize(argument))
        except DataError as error:
            mistakes.append(error)
    try:
        predict = load_model(arguments.model)
        probabilities = predict(words=tf.constant(encode(words)))["probabilities"].numpy() if words else []
        for word, of_word in zip(words, probabilities, strict=True):
            best = of_word.argsort()[::-1][:3]
            print(f"{word}: " + ", ".join(f"{LANGUAGES[label]} ({of_word[label]:.1%})" for label in best), flush=True)
    except DataError as error:
        mistakes.append(error)
    for mistake in mistakes:
        print(f"error: {mistake}", file=sys.stderr)
    sys.exit(2 if mistakes else 0)


if __name__ == "__main__":
    main()
