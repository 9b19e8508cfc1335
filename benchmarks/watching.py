"""What it costs to watch a run: examples/s with the display, summaries and evaluations, beside those without.

In each round all variants run once, one after the other, and each is
compared with the first of its round. It needs `script` (Debian: bsdutils), which gives the launcher a terminal.
"""

import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks import report
from benchmarks.testbed import network
from benchmarks.testbed.processes import Cluster

NUM_ROUNDS = 5
TRAIN_STEPS = 50_000
LOCAL_STEPS = "--local_steps=16"
RATE = re.compile(r"test accuracy .* (\d+) examples/s")
NOTHING = "nothing: tasks started by hand, without `--train_dir`"
SAVED = "checkpoints, summaries and the report"
DISPLAY = "the same, with the display"
ALL = "the same, with an evaluation every 5 s"


def run_tasks(*flags: str) -> float:
    """Return the examples/s of tasks that were started by hand."""
    with tempfile.TemporaryDirectory() as folder, Cluster(folder, 1, 2, *flags) as tasks:
        tasks.start()
        tasks.wait()
        return _rate(tasks["worker 0"].output())


def run_launcher(folder: str, *flags: str, is_terminal: bool) -> float:
    """Return the examples/s of what the launcher starts, with its train directory in `folder`."""
    command = ["./run_local_cluster.sh", f"--train_dir={folder}", *flags]
    if is_terminal:
        command = ["script", "--quiet", "--return", "--command", shlex.join(command), os.devnull]
    env = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR")} | {"TERM": "xterm"}
    process = subprocess.run(command, cwd=report.PROJECT, env=env, capture_output=True, text=True)
    if process.returncode:
        sys.exit(f"error: {command} ended with {process.returncode}:\n{(process.stdout + process.stderr)[-2000:]}")
    return _rate(process.stdout)


def run_round(folder: str, train_steps: int) -> dict[str, float]:
    """Return the examples/s of each variant; the train directories lie in `folder` then."""
    flags = (LOCAL_STEPS, f"--train_steps={train_steps}")
    return {
        NOTHING: run_tasks(*flags),
        SAVED: run_launcher(f"{folder}/saved", *flags, is_terminal=False),
        DISPLAY: run_launcher(f"{folder}/shown", *flags, is_terminal=True),
        ALL: run_launcher(f"{folder}/evaluated", *flags, "--eval_every_secs=5", is_terminal=True),
    }


def time_report(folder: str) -> float:
    """Return the seconds of a process that makes the report of a run again."""
    started_at = time.monotonic()
    command = [sys.executable, "-m", "runtime.report", folder]
    subprocess.run(command, cwd=report.PROJECT, check=True, capture_output=True)
    return time.monotonic() - started_at


def _rate(output: str) -> float:
    (rate,) = RATE.findall(output)
    return float(rate)


def measure_watching(rounds: int = NUM_ROUNDS, train_steps: int = TRAIN_STEPS) -> str:
    """Return a table of the ratios, and how long a report takes."""
    if not network.find_program("script"):
        sys.exit("error: watching needs script, which gives the launcher a terminal: apt-get install bsdutils")
    rates: dict[str, list[float]] = {}
    report_secs = []
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            for name, rate in run_round(folder, train_steps).items():
                rates.setdefault(name, []).append(rate)
                print(f"round {number}: {name}: {rate:.0f} examples/s", flush=True)
            report_secs.append(time_report(f"{folder}/evaluated"))
    rows = []
    for name, of_one in rates.items():
        ratios = [rate / base for rate, base in zip(of_one, rates[NOTHING], strict=True)]
        rows.append([name, *report.median_and_spread(ratios)])
    table = report.make_table(("watched by", "examples/s relative to the first", "spread"), rows)
    again = f"A process that makes the report again takes {statistics.median(report_secs):.1f} s."
    return f"Medians of {rounds} rounds.\n\n{table}\n\n{again}"
