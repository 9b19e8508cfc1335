"""How much of their speed unequal workers keep: one of two is slowed down to a third, asynchronous, 16 local steps.

A worker is slowed down by stopping it (SIGSTOP) for two thirds of each moment. In each round, the same cluster is
measured without that, and with it until it ends.
"""

import re
import signal
import statistics
import sys
import tempfile
import threading
import time
from typing import NamedTuple

from benchmarks import report
from benchmarks.testbed.processes import Cluster, Process

NUM_ROUNDS = 5
BATCH_SIZE = 100
FLAGS = ("--local_steps=16", "--log_every_secs=0.1")
TRAIN_STEPS = 60000
MOMENT_SECS, RUNNING_SHARE = 0.06, 1 / 3
MEASURED_SECS = 5
LOCAL_STEP = r"global step \d+/\d+, local step (\d+)"
ACCURACY = re.compile(r"test accuracy (\S+)")


class Round(NamedTuple):
    """What a round measured: examples/s of worker 0 and worker 1, and the test accuracy in the end."""

    equal: list[float]
    unequal: list[float]
    test_accuracy: float

    @property
    def kept(self) -> float:
        """The rate with a slowed worker, as a share of that of a healthy worker and a third of another one."""
        return sum(self.unequal) / (self.equal[0] + RUNNING_SHARE * self.equal[1])


def slow_down(process: Process) -> None:
    """Stop a process for a share of each moment, until it has ended."""
    while process.is_running():
        process.send(signal.SIGSTOP)
        time.sleep(MOMENT_SECS * (1 - RUNNING_SHARE))
        process.send(signal.SIGCONT)
        time.sleep(MOMENT_SECS * RUNNING_SHARE)


def run_round(train_steps: int, measured_secs: int) -> Round:
    """Train once."""
    flags = [*FLAGS, f"--train_steps={train_steps}"]
    with tempfile.TemporaryDirectory() as folder, Cluster(folder, 1, 2, *flags) as cluster:
        cluster.start()
        for worker in range(2):
            cluster[f"worker {worker}"].wait_for_output(LOCAL_STEP)
        equal = _measure(cluster, measured_secs)
        slowdown = threading.Thread(target=slow_down, args=[cluster["worker 1"]], daemon=True)
        slowdown.start()
        unequal = _measure(cluster, measured_secs)
        statuses = cluster.wait()
        slowdown.join()
        if set(statuses.values()) != {0}:
            sys.exit(f"error: not every task ended with 0: {statuses}")
        return Round(equal, unequal, float(ACCURACY.findall(cluster["worker 0"].output())[-1]))


def _measure(cluster: Cluster, measured_secs: int) -> list[float]:
    """Return the examples/s of each worker."""
    before = [_read(cluster, worker) for worker in range(2)]
    time.sleep(measured_secs)
    after = [_read(cluster, worker) for worker in range(2)]
    pairs = zip(before, after, strict=True)
    return [BATCH_SIZE * (step - first) / (at - first_at) for (first_at, first), (at, step) in pairs]


def _read(cluster: Cluster, worker: int) -> tuple[float, int]:
    """Return the time and the local step of a worker, as soon as it has logged its next line."""
    step = int(cluster[f"worker {worker}"].wait_for_new_output(LOCAL_STEP))
    return time.monotonic(), step


def measure_unequal(
    rounds: int = NUM_ROUNDS, train_steps: int = TRAIN_STEPS, measured_secs: int = MEASURED_SECS
) -> str:
    """Return a table of medians, and what the unequal workers keep."""
    results = []
    for _ in range(rounds):
        results.append(run_round(train_steps, measured_secs))
        print(results[-1], f"{results[-1].kept:.2f}", flush=True)
    rows = []
    for name, rates in (("equal", [r.equal for r in results]), ("one slowed down", [r.unequal for r in results])):
        rows.append([name, *(f"{statistics.median(of_one) / 1000:.0f}" for of_one in zip(*rates, strict=True))])
    table = report.make_table(("workers", "1000 examples/s of worker 0", "of worker 1"), rows)
    kept = [of_one.kept for of_one in results]
    accuracies = [of_one.test_accuracy for of_one in results]
    return (
        f"Medians of {rounds} rounds.\n\n{table}\n\nTogether the unequal workers have"
        f" {statistics.median(kept):.2f} ({min(kept):.2f} to {max(kept):.2f}) of what a healthy worker and a third of"
        f" another one have. The test accuracy in the end is {statistics.mean(accuracies):.4f}"
        f" ({min(accuracies):.4f} to {max(accuracies):.4f})."
    )
