"""Kill, stop and restart random tasks of real clusters, and check that nothing hangs and nothing is lost.

    .venv/bin/python tests/chaos.py [--mode asynchronous synchronous backup_workers local_steps] [--seed 1 2 3]
                                    [--minutes 2] [--ps 2] [--workers 2] [--write] [any flag of distributed.py]

A cluster trains MNIST while faults hit it, one after the other: kill -9 and restart of a worker, of the chief, of a ps
or of two tasks at once, or SIGSTOP for some seconds. After each fault every worker must train again. In the end all
tasks must have ended with status 0, and the model must be as good as that of an undisturbed cluster. For each mode and
seed, one cluster after the other is disturbed until the minutes are over; the last one may finish. The script prints
each recovery and, at the end, a table of all. With --write it also puts the table into tests/README.md.
"""

import argparse
import json
import pathlib
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from benchmarks import report
from benchmarks.testbed.processes import PROJECT, Cluster, poll_for
from tests.disturbed import DisturbedCluster, Recovery, kind

# No fault comes after this share of the steps. A worker that is away does not train on its share of the examples, and
# the accuracy should not depend on who was away last.
LAST_FAULT = 0.7
TARGETS = ("worker", "chief", "ps", "pair", "stop")


class Mode(NamedTuple):
    """One way of training, long enough for a few faults."""

    flags: tuple[str, ...]
    train_steps: int


MODES = {
    "asynchronous": Mode((), 10000),
    "synchronous": Mode(("--sync_replicas",), 5000),
    "bounded_staleness": Mode(("--max_staleness=8",), 10000),
    "backup_workers": Mode(("--sync_replicas", "--replicas_to_aggregate=1"), 10000),
    "local_steps": Mode(("--local_steps=16",), 200000),  # so that a fault of some seconds is a small part of them
}


def draw_targets(rng: random.Random) -> Iterator[str]:
    """Return targets without end: all in a random order, then all again, so that few faults have each kind, too."""
    while True:
        yield from rng.sample(TARGETS, len(TARGETS))


def train(
    options: argparse.Namespace, mode: Mode, rng: random.Random | None, targets: Iterator[str]
) -> tuple[float, list[Recovery]]:
    """Train on a new cluster, undisturbed if `rng` is None; return the test accuracy and the recoveries."""
    train_steps = options.train_steps or mode.train_steps
    recoveries = []
    with tempfile.TemporaryDirectory() as folder:
        train_dir = pathlib.Path(folder) / "train"
        flags = [*mode.flags, *options.flags, f"--train_steps={train_steps}", f"--train_dir={train_dir}"]
        flags += ["--save_checkpoint_secs=1", "--log_every_secs=0.1"]
        with Cluster(folder, options.ps, options.workers, *flags) as cluster:
            cluster.start()
            disturbed = DisturbedCluster(cluster, train_dir)
            if rng:
                disturbed.wait_until_all_train()
                while True:
                    time.sleep(rng.uniform(0, 2))  # a random moment
                    if disturbed.look().step > LAST_FAULT * train_steps:
                        break
                    recoveries.append(_disturb(disturbed, cluster.names, rng, next(targets)))
                    print(recoveries[-1], flush=True)
            poll_for(disturbed.restart_failed, "end of every task with status 0")
        return json.loads((train_dir / "result.json").read_text())["test_accuracy"], recoveries


def _disturb(cluster: DisturbedCluster, names: list[str], rng: random.Random, target: str) -> Recovery:
    """Let a fault hit a random task of a cluster."""
    if target == "stop":
        return cluster.stop(rng.choice(names), rng.uniform(0.5, 4))
    if target == "pair":
        return cluster.kill(*rng.sample(names, 2))
    return cluster.kill(rng.choice([name for name in names if kind(name) == target]))


def disturb_clusters(options: argparse.Namespace, name: str) -> list[Recovery]:
    """Disturb clusters of one mode with each seed, and check each model; return all recoveries."""
    undisturbed, _ = train(options, MODES[name], None, iter(()))
    print(f"{name}, undisturbed: test accuracy {undisturbed:.4f}", flush=True)
    all_recoveries: list[Recovery] = []
    for seed in options.seed:
        rng, start = random.Random(seed), time.monotonic()
        targets = draw_targets(rng)
        while time.monotonic() < start + 60 * options.minutes or not all_recoveries:
            accuracy, recoveries = train(options, MODES[name], rng, targets)
            print(f"{name}, seed {seed}: test accuracy {accuracy:.4f} after {len(recoveries)} faults", flush=True)
            assert accuracy > undisturbed - options.tolerance, "the model is not as good as an undisturbed one"
            all_recoveries += recoveries
    return all_recoveries


def make_table(recoveries: dict[str, list[Recovery]]) -> str:
    """Return how long it took until every worker trained again, by fault and mode, as a table of Markdown."""
    headings = ["fault", *(name.replace("_", " ") for name in recoveries)]
    faults = {recovery.fault for of_mode in recoveries.values() for recovery in of_mode}
    rows = []
    for fault in [*sorted(faults), "all"]:
        secs_of_modes = [
            [recovery.training_secs for recovery in of_mode if fault in (recovery.fault, "all")]
            for of_mode in recoveries.values()
        ]
        rows.append((fault, *(_describe(secs) for secs in secs_of_modes)))
    lines = [report.make_table(headings, rows)]
    serving_secs = [r.serving_secs for of_mode in recoveries.values() for r in of_mode if r.fault.startswith("kill")]
    if serving_secs:
        lines += ["", f"A restarted task serves again after {statistics.median(serving_secs):.1f} s (median)."]
    return "\n".join(lines)


def _describe(secs: list[float]) -> str:
    """Return a cell of the table; no fault of a kind has no figures."""
    return f"{statistics.median(secs):.1f} s, {max(secs):.1f} s, {len(secs)}" if secs else "-"


def main(arguments: Sequence[str]) -> None:
    """Disturb clusters as the arguments say; end with a traceback at the first thing that must not happen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", nargs="+", choices=MODES, default=["asynchronous"], help="how clusters train")
    parser.add_argument("--seed", type=int, nargs="+", default=[0], help="of the faults; several may follow")
    parser.add_argument("--minutes", type=float, default=1, help="how long clusters are disturbed, by mode and seed")
    parser.add_argument("--ps", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--train_steps", type=int, help="global steps of each cluster; by default the mode's own number"
    )
    parser.add_argument("--tolerance", type=float, default=0.01, help="of the accuracy, against an undisturbed run's")
    parser.add_argument("--write", action="store_true", help="put the table into tests/README.md")
    options, options.flags = parser.parse_known_args(arguments)

    table = make_table({name: disturb_clusters(options, name) for name in options.mode})
    print(table)
    if options.write:
        report.write_section(PROJECT / "tests" / "README.md", "chaos", f"{report.run_header()}\n\n{table}")


if __name__ == "__main__":
    main(sys.argv[1:])
