"""What unequal workers do to each other: one of two gets a quarter of its time, in three modes.

A worker is slowed down by stopping it (SIGSTOP) for three quarters of each moment, from its first step until it ends.
"""

import glob
import re
import signal
import statistics
import sys
import tempfile
import threading
import time
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from benchmarks import report
from benchmarks.testbed.processes import Cluster, Process

NUM_ROUNDS = 5
BATCH_SIZE = 100
FLAGS = ("--log_every_secs=0.1", "--save_checkpoint_secs=600")
MODES = {"asynchronous": (), "`--max_staleness=8`": ("--max_staleness=8",), "synchronous": ("--sync_replicas",)}
TRAIN_STEPS = 5000  # of one worker; a synchronous step has one of each
MOMENT_SECS, RUNNING_SHARE = 0.06, 1 / 4
MEASURED_SECS = 5
LOCAL_STEP = r"global step \d+/\d+, local step (\d+)"
ACCURACY = re.compile(r"test accuracy (\S+)")


class Run(NamedTuple):
    """What came of one cluster: of worker 0 and worker 1, and the test accuracy in the end."""

    rates: list[float]  # examples/s
    num_steps: list[int]
    staleness: list[float]  # the mean; none of synchronous workers
    test_accuracy: float


def slow_down(process: Process) -> None:
    """Stop a process for a share of each moment, until it has ended."""
    while process.is_running():
        process.send(signal.SIGSTOP)
        time.sleep(MOMENT_SECS * (1 - RUNNING_SHARE))
        process.send(signal.SIGCONT)
        time.sleep(MOMENT_SECS * RUNNING_SHARE)


def run(mode: str, train_steps: int, measured_secs: int) -> Run:
    """Train once."""
    steps = train_steps // (2 if mode == "synchronous" else 1)
    with tempfile.TemporaryDirectory() as folder:
        flags = [*FLAGS, *MODES[mode], f"--train_steps={steps}", f"--train_dir={folder}/train"]
        with Cluster(folder, 1, 2, *flags) as cluster:
            cluster.start()
            for worker in range(2):
                cluster[f"worker {worker}"].wait_for_output(LOCAL_STEP)
            slowdown = threading.Thread(target=slow_down, args=[cluster["worker 1"]], daemon=True)
            slowdown.start()
            rates = _measure(cluster, measured_secs)
            statuses = cluster.wait()
            slowdown.join()
            if set(statuses.values()) != {0}:
                sys.exit(f"error: not every task ended with 0: {statuses}")
            outputs = [cluster[f"worker {worker}"].output() for worker in range(2)]
            num_steps = [int(re.findall(LOCAL_STEP, output)[-1]) for output in outputs]
            staleness = [_read_staleness(f"{folder}/train{of_worker}") for of_worker in ("", "/worker-1")]
            means = [statistics.mean(of_worker) for of_worker in staleness if of_worker]
            return Run(rates, num_steps, means, float(ACCURACY.findall(outputs[0])[-1]))


def _read_staleness(folder: str) -> list[float]:
    """Return what a worker has written for TensorBoard."""
    events = [event for path in glob.glob(f"{folder}/events.out.*") for event in tf.train.summary_iterator(path)]
    return [value.simple_value for event in events for value in event.summary.value if value.tag == "worker/staleness"]


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
    """Return a table of medians."""
    runs: dict[str, list[Run]] = {mode: [] for mode in MODES}
    for _ in range(rounds):
        for mode in MODES:
            runs[mode].append(run(mode, train_steps, measured_secs))
            print(mode, runs[mode][-1], flush=True)
    rows = []
    for mode, of_mode in runs.items():
        rates, num_steps, staleness = (
            [statistics.median(of_worker) for of_worker in zip(*values, strict=True)]
            for values in ([r.rates for r in of_mode], [r.num_steps for r in of_mode], [r.staleness for r in of_mode])
        )
        accuracy = statistics.median(r.test_accuracy for r in of_mode)
        cells = [", ".join(f"{rate / 1000:.1f}" for rate in rates), ", ".join(f"{steps:.0f}" for steps in num_steps)]
        rows.append((mode, *cells, ", ".join(f"{steps:.1f}" for steps in staleness) or "none", f"{accuracy:.4f}"))
    head = ("mode", "1000 examples/s of each worker", "batches of each", "staleness of each", "test accuracy")
    return f"Medians of {rounds} rounds.\n\n{report.make_table(head, rows)}"
