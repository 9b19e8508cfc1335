"""Classify pictures with a model that distributed.py has exported.

python examples/pictures/predict.py --model DIR picture ...
"""

import argparse
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))  # where runtime/ is

from runtime.process import environment  # noqa: F401  # first: it sets what TensorFlow reads when it is imported

# isort: split
import tensorflow as tf

from runtime.data.pictures import read_picture


def main() -> None:
    """Print the most likely class of each picture, read as in training."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", metavar="DIR", required=True, help="the --export_dir of distributed.py")
    parser.add_argument("pictures", metavar="picture", nargs="+", help="of any format and size")
    arguments = parser.parse_args()
    try:
        newest = max((name for name in os.listdir(arguments.model) if name.isdigit()), key=int, default="1")
        model = tf.saved_model.load(os.path.join(arguments.model, newest)).signatures["serving_default"]
    except (OSError, ValueError) as error:
        parser.error(
            f"--model {arguments.model} has no exported model ({error}): give the --export_dir of the training"
        )
    ((name, spec),) = model.structured_input_signature[1].items()
    status = 0
    for path in arguments.pictures:
        try:
            picture = read_picture(path, spec.shape[1:].as_list())
        except Exception as error:  # each format's reader has errors of its own
            print(f"error: {path} cannot be read as a picture: {error}", file=sys.stderr)
            status = 2
            continue
        outputs = model(**{name: tf.constant(picture[None])})
        (of_class,), probability = outputs["names"].numpy(), outputs["probabilities"].numpy().max()
        print(f"{path}: {os.fsdecode(of_class)} ({probability:.1%})", flush=True)
    sys.exit(status)


if __name__ == "__main__":
    main()
