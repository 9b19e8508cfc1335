"""How long a cluster takes until its first step, without the import of TensorFlow, and how long to end after the last.

In each round, three processes first import TensorFlow at the same time
and do nothing else; then a cluster of as many tasks, one ps and two workers, starts.
"""

import datetime
import re
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks import report
from benchmarks.testbed.processes import Cluster

NUM_ROUNDS = 7
NUM_PS, NUM_WORKERS = 1, 2
IMPORT = (
    "import time; from runtime.process import environment; print(time.time())"  # as distributed.py imports TensorFlow
)
# The first of these lines is that of the first step, which takes longer than their period.
FIRST_LINE = r"I(\d{4} \S+) \d+ \S+ worker 0: global step \d+/\d+, local step"


def time_imports() -> float:
    """Return the seconds until each process has imported TensorFlow, on average."""
    start = time.time()
    command = [sys.executable, "-c", IMPORT]
    processes = [
        subprocess.Popen(command, cwd=report.PROJECT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for _ in range(NUM_PS + NUM_WORKERS)
    ]
    return statistics.mean(float(process.communicate()[0]) - start for process in processes)


def time_cluster() -> tuple[float, float]:
    """Return the seconds until the chief has logged its first step, and from its last line to the end of all."""
    flags = ["--train_steps=1000", "--log_every_secs=0.1"]
    with tempfile.TemporaryDirectory() as folder, Cluster(folder, NUM_PS, NUM_WORKERS, *flags) as tasks:
        start = datetime.datetime.now()
        tasks.start()
        tasks["worker 0"].wait_for_output("test accuracy .*\n")
        finished_at = time.monotonic()
        tasks.wait()
        end_secs = time.monotonic() - finished_at
        first = re.findall(FIRST_LINE, tasks["worker 0"].output())[0]
    first_at = datetime.datetime.strptime(f"{start.year}{first}", "%Y%m%d %H:%M:%S.%f")
    return (first_at - start).total_seconds(), end_secs


def measure_start(rounds: int = NUM_ROUNDS) -> str:
    """Return a table of medians and spreads."""
    measured = [(time_imports(), *time_cluster()) for _ in range(rounds)]
    imports, first_steps, ends = zip(*measured, strict=True)
    rest = [first_step - secs for secs, first_step in zip(imports, first_steps, strict=True)]
    rows = [
        [name, *report.median_and_spread(secs)]
        for name, secs in (
            ("import of TensorFlow", imports),
            ("until the first step", first_steps),
            ("all but the import", rest),
            ("from the last line to the end of every process", ends),
        )
    ]
    table = report.make_table(("", "seconds", "spread"), rows)
    return f"Medians of {rounds} rounds, one ps and two workers.\n\n{table}"
