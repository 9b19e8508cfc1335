"""Classic ways to replicate a model, on the same examples: how fast each is, and what the model is worth after it.

    .venv/bin/python benchmarks/replication.py

It writes the table into `docs/replication.md`: means over all seeds.
"""

import pathlib
import statistics
import sys
from typing import NamedTuple

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # the project is run from its checkout, not installed

from benchmarks import report
from benchmarks.isolation import isolate
from benchmarks.testbed.training import train

SEEDS = (0, 1, 2)
NUM_EXAMPLES = 1_200_000  # of a run: 20 epochs
BATCH_SIZE = 100  # of each replica


class Way(NamedTuple):
    """A way to compute with two replicas of the model."""

    name: str
    num_workers: int
    batches_per_step: int  # of a global step
    flags: tuple[str, ...] = ()
    script: str = "distributed.py"  # what runs it


WAYS = (
    Way("between-graph, asynchronous", 2, 1),
    Way("between-graph, `--sync_replicas`", 2, 2, ("--sync_replicas",)),
    Way("`--replication=in_graph`", 2, 2, ("--replication=in_graph",)),
    Way("towers on two devices", 1, 2, (f"--batch_size={2 * BATCH_SIZE}",), "benchmarks/peers/virtual_devices.py"),
)


def main() -> None:
    """Measure, and write the means into the document."""
    header = report.run_header()
    rows = []
    for way in WAYS:
        num_steps = NUM_EXAMPLES // BATCH_SIZE // way.batches_per_step
        flags = [f"--train_steps={num_steps}", f"--batch_size={BATCH_SIZE}", *way.flags]
        results = [train(way.num_workers, *flags, f"--seed={seed}", script=way.script) for seed in SEEDS]
        rate, accuracy = (
            statistics.mean(result[field] for result in results) for field in ("examples_per_sec", "test_accuracy")
        )
        rows.append([way.name, str(way.num_workers), f"{rate / 1000:.1f}", f"{100 * accuracy:.2f} %"])
    table = report.make_table(("replicas", "workers", "thousand examples/s", "test accuracy"), rows)
    print(table)
    report.write_section(report.REPLICATION, "replication", f"{header}\n\n{table}")


if __name__ == "__main__":
    if "--no_isolation" not in sys.argv:
        isolate()
    main()
