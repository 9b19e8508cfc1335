"""Merge the traces of a run, also of one that goes on or was killed: python -m runtime.trace TRAIN_DIR."""

import argparse
import sys

from runtime.process import environment  # noqa: F401  # first: it sets what TensorFlow reads when it is imported

# isort: split
from runtime import trace
from runtime.records.folder import RunFolder

parser = argparse.ArgumentParser(prog="python -m runtime.trace", description="Merge the traces of a run into one.")
parser.add_argument("train_dir", metavar="TRAIN_DIR")
path = trace.write(RunFolder(parser.parse_args().train_dir))
if not path:
    sys.exit(1)
print(path)
