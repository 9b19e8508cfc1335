"""Classic ways to replicate a model, on the same examples: how fast each is, and what the model is worth after it.

    .venv/bin/python benchmarks/replication.py

It writes the table into `docs/replication.md`: means over all seeds.
"""

import json
import pathlib
import statistics
import sys
import tempfile
from typing import Any, NamedTuple

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # the project is run from its checkout, not installed

from benchmarks import report
from benchmarks.isolation import isolate
from benchmarks.testbed.processes import Cluster

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


def train(way: Way, seed: int) -> dict[str, Any]:
    """Train once with one ps, and return what is in `result.json`."""
    num_steps = NUM_EXAMPLES // BATCH_SIZE // way.batches_per_step
    with tempfile.TemporaryDirectory() as folder:
        flags = [f"--train_dir={folder}", f"--train_steps={num_steps}", f"--seed={seed}"]
        flags += [f"--batch_size={BATCH_SIZE}", *way.flags]
        with Cluster(folder, 1, way.num_workers, *flags, script=way.script) as tasks:
            tasks.start()
            if any(tasks.wait().values()):
                raise RuntimeError(f"{way.name}: a task has failed: {tasks['worker 0'].output()[-2000:]}")
        result: dict[str, Any] = json.loads(pathlib.Path(folder, "result.json").read_text())
    print(f"{way.name}, seed {seed}: {result}", flush=True)
    return result


def main() -> None:
    """Measure, and write the means into the document."""
    header = report.run_header()
    rows = []
    for way in WAYS:
        results = [train(way, seed) for seed in SEEDS]
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
