"""What it costs to watch a run: examples/s with the display, summaries and evaluations, beside those without.

    .venv/bin/python benchmarks/watching.py

It writes the table into `docs/overhead.md`. In each round all variants run once, one after the other, and each is
compared with the first of its round. It needs `script` (Debian: bsdutils), which gives the launcher a terminal.
"""

import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # the project is run from its checkout, not installed

from benchmarks import report
from benchmarks.isolation import isolate
from benchmarks.testbed.processes import Cluster

NUM_ROUNDS = 5
TRAIN_STEPS = 50_000
FLAGS = (f"--train_steps={TRAIN_STEPS}", "--local_steps=16")
RATE = re.compile(r"test accuracy .* (\d+) examples/s")
NOTHING = "nothing: tasks started by hand, without `--train_dir`"
SAVED = "checkpoints, summaries and the report"
DISPLAY = "the same, with the display"
ALL = "the same, with an evaluation every 5 s"


def run_tasks() -> float:
    """Return the examples/s of tasks that were started by hand."""
    with tempfile.TemporaryDirectory() as folder, Cluster(folder, 1, 2, *FLAGS) as tasks:
        tasks.start()
        tasks.wait()
        return _rate(tasks["worker 0"].output())


def run_launcher(folder: str, *flags: str, is_terminal: bool) -> float:
    """Return the examples/s of what the launcher starts, with its train directory in `folder`."""
    command = ["./run_local_cluster.sh", *FLAGS, f"--train_dir={folder}", *flags]
    if is_terminal:
        command = ["script", "--quiet", "--return", "--command", shlex.join(command), os.devnull]
    env = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR")} | {"TERM": "xterm"}
    process = subprocess.run(command, cwd=report.PROJECT, env=env, capture_output=True, text=True)
    if process.returncode:
        sys.exit(f"error: {command} ended with {process.returncode}:\n{(process.stdout + process.stderr)[-2000:]}")
    return _rate(process.stdout)


def run_round(folder: str) -> dict[str, float]:
    """Return the examples/s of each variant; the train directories lie in `folder` then."""
    return {
        NOTHING: run_tasks(),
        SAVED: run_launcher(f"{folder}/saved", is_terminal=False),
        DISPLAY: run_launcher(f"{folder}/shown", is_terminal=True),
        ALL: run_launcher(f"{folder}/evaluated", "--eval_every_secs=5", is_terminal=True),
    }


def time_report(folder: str) -> float:
    """Return the seconds of a process that makes the report of a run again."""
    started_at = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "runtime.report", folder], cwd=report.PROJECT, check=True, capture_output=True
    )
    return time.monotonic() - started_at


def _rate(output: str) -> float:
    (rate,) = RATE.findall(output)
    return float(rate)


def main() -> None:
    """Measure, and write the ratios into the document."""
    header = report.run_header()
    rates: dict[str, list[float]] = {}
    report_secs = []
    for number in range(NUM_ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            for name, rate in run_round(folder).items():
                rates.setdefault(name, []).append(rate)
                print(f"round {number}: {name}: {rate:.0f} examples/s", flush=True)
            report_secs.append(time_report(f"{folder}/evaluated"))
    rows = []
    for name, of_one in rates.items():
        ratios = [rate / base for rate, base in zip(of_one, rates[NOTHING], strict=True)]
        rows.append([name, *report.median_and_spread(ratios)])
    table = report.make_table(("watched by", "of the examples/s of the first", "spread"), rows)
    text = f"{header}\nMedians of {NUM_ROUNDS} rounds.\n\n{table}\n\n"
    text += f"A process that makes the report again takes {statistics.median(report_secs):.1f} s."
    print(text)
    report.write_section(report.OVERHEAD, "watching", text)


if __name__ == "__main__":
    if "--no_isolation" not in sys.argv:
        isolate()
    main()
