"""Make the report of a run, also of one that goes on or was killed: python -m runtime.report TRAIN_DIR."""

import argparse
import sys

from runtime import report
from runtime.records.folder import RunFolder

parser = argparse.ArgumentParser(prog="python -m runtime.report", description="Make the report of a run.")
parser.add_argument("train_dir", metavar="TRAIN_DIR")
path = report.write(RunFolder(parser.parse_args().train_dir))
if not path:
    sys.exit(1)
print(path)
