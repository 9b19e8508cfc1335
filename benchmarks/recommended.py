"""What the recommended settings reach in the end, and how long that takes.

    .venv/bin/python benchmarks/recommended.py

It writes the table into `docs/benchmarks.md`: means over all seeds, and the spread of the accuracy.
"""

import pathlib
import statistics
import sys

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # the project is run from its checkout, not installed

from benchmarks import report
from benchmarks.isolation import isolate
from benchmarks.testbed.training import train

SEEDS = (0, 1, 2)
NUM_WORKERS = 2
COMMON = ("--sync_replicas", "--local_steps=64", "--lr_schedule=one_cycle", "--optimizer=nesterov")
FLAGS = {
    "mlp": (*COMMON, "--learning_rate=0.3", "--train_steps=1024"),
    "cnn": ("--model=cnn", *COMMON, "--learning_rate=0.1", "--train_steps=2048"),
}


def main() -> None:
    """Measure, and write the means into the document."""
    header = report.run_header()
    rows = []
    for model, flags in FLAGS.items():
        results = [train(NUM_WORKERS, *flags, f"--seed={seed}") for seed in SEEDS]
        accuracies = [100 * result["test_accuracy"] for result in results]
        secs = statistics.mean(result["train_secs"] for result in results)
        spread = f"{min(accuracies):.2f} to {max(accuracies):.2f}"
        rows.append([f"`{model}`", f"{secs:.1f}", f"{statistics.mean(accuracies):.2f} %", spread])
    table = report.make_table(("model", "s of training", "test accuracy", "spread"), rows)
    print(table)
    report.write_section(report.BENCHMARKS, "recommended", f"{header}\n\n{table}")


if __name__ == "__main__":
    if "--no_isolation" not in sys.argv:
        isolate()
    main()
