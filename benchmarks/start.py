"""How long a cluster needs until its first step, and how much of that is not the import of TensorFlow.

    .venv/bin/python benchmarks/start.py

It needs `tests/requirements.txt`. Rounds of two, in turn: as many processes as a cluster of one ps and two workers has
import TensorFlow at the same time, and nothing else; then such a cluster starts.
"""

import datetime
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # the project is run from its checkout, not installed

import compare

from benchmarks.testbed.processes import Cluster

NUM_ROUNDS = 7
NUM_PS, NUM_WORKERS = 1, 2
# Without Keras, as distributed.py does it.
IMPORT = "import os; os.environ['TF_USE_LEGACY_KERAS'] = '1'; import time, tensorflow.compat.v1; print(time.time())"
# The first run takes longer than the period of these lines.
FIRST_LINE = r"I(\d{4} \S+) \d+ \S+ worker 0: global step \d+/\d+, local step"


def time_imports() -> float:
    """Return the seconds until each process has imported TensorFlow, on average."""
    start = time.time()
    command = [sys.executable, "-c", IMPORT]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for _ in range(NUM_PS + NUM_WORKERS)
    ]
    return statistics.mean(float(process.communicate()[0]) - start for process in processes)


def time_first_step() -> float:
    """Return the seconds until the chief has logged its first step."""
    flags = ["--train_steps=1000", "--log_every_secs=0.1"]
    with tempfile.TemporaryDirectory() as folder, Cluster(folder, NUM_PS, NUM_WORKERS, *flags) as tasks:
        start = datetime.datetime.now()
        tasks.start()
        tasks.wait()
        first = re.findall(FIRST_LINE, tasks["worker 0"].output())[0]
    return (datetime.datetime.strptime(f"{start.year}{first}", "%Y%m%d %H:%M:%S.%f") - start).total_seconds()


def main() -> None:
    """Print the median of each, and of the difference."""
    rounds = [(time_imports(), time_first_step()) for _ in range(NUM_ROUNDS)]
    for what, secs in (
        ("TensorFlow's import", [imports for imports, _ in rounds]),
        ("until the first step", [first_step for _, first_step in rounds]),
        ("all but the import", [first_step - imports for imports, first_step in rounds]),
    ):
        print(f"{what}: {statistics.median(secs):.2f} s ({min(secs):.2f} to {max(secs):.2f})")


if __name__ == "__main__":
    if "--no_isolation" not in sys.argv:
        compare.isolate()
    main()
