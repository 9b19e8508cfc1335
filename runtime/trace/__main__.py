"""Merge the traces of a run, also of one that goes on or was killed: python -m runtime.trace TRAIN_DIR."""

import argparse
import sys

from runtime import environment  # noqa: F401  # first: it sets what TensorFlow reads when it is imported

# isort: split
from runtime import trace
from runtime.folder import RunFolder

parser = argparse.ArgumentParser(prog="python -m runtime.trace", description="Merge the traces of a run into one.")
parser.add_argument("train_dir", metavar="TRAIN_DIR")
train_dir = parser.parse_args().train_dir
try:
    path = trace.write(RunFolder(train_dir))
except (OSError, ValueError) as error:
    sys.exit(f"error: the trace could not be made: {error}")
if not path:
    sys.exit(f"error: there is no trace in {train_dir}: --profile_steps makes the workers write one there")
print(path)
