"""Tell which language words are of, with a model that distributed.py has exported.

python predict.py --model DIR word ...
"""

import argparse
import os
import sys

import tensorflow as tf

from mnist_input import LANGUAGES, MAX_LETTERS, encode


def main() -> None:
    """Print the most likely languages of each word."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", metavar="DIR", required=True, help="the --export_dir of distributed.py")
    parser.add_argument("words", metavar="word", nargs="+")
    arguments = parser.parse_args()
    try:
        newest = max((name for name in os.listdir(arguments.model) if name.isdigit()), key=int)
        predict = tf.saved_model.load(os.path.join(arguments.model, newest)).signatures["serving_default"]
    except (OSError, ValueError) as error:
        sys.exit(f"error: --model {arguments.model} has no exported model ({error}): give the --export_dir of the run")
    words = [word.lower()[:MAX_LETTERS] for word in arguments.words]
    for word, of_word in zip(words, predict(words=tf.constant(encode(words)))["probabilities"].numpy(), strict=True):
        best = of_word.argsort()[::-1][:3]
        print(f"{word}: " + ", ".join(f"{LANGUAGES[label]} ({of_word[label]:.1%})" for label in best))


if __name__ == "__main__":
    main()
