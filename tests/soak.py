"""Train for long while all kinds of faults hit the cluster, and check that it loses nothing and its memory stays flat.

    .venv/bin/python tests/soak.py [--seed 1 2] [--minutes 20] [--faults NAME ...] [--write]
                                   [any flag of distributed.py]

Each task runs on a host of its own. With each seed one cluster trains for the minutes, in rounds. In a round, small
faults come at random moments: tasks are killed or stopped, links are cut and healed, the disk is filled and freed. All
of them spare one ps and one worker, by turns, whose processes live as long as the round. A great fault ends it: SIGTERM
to all tasks, the same with other addresses for all, or a task that is stopped, or a link that is cut, for longer than
any task waits. What ends with an error is started again, as a cluster manager would do it. The last round has no
faults. After each fault every worker must train again, and no step may be lost that a checkpoint had. In the end all
tasks must end with status 0, with a good model, and none of their processes may have grown by more than 5 percent. The
script prints what it does and, at the end, tables. With --write it also puts them into tests/README.md.
"""

import argparse
import collections
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from benchmarks import report
from benchmarks.testbed.network import Network
from benchmarks.testbed.processes import PROJECT, Cluster
from tests.disturbed import Recovery
from tests.faults import GREAT_FAULTS, RECOVERY_SECS, SMALL_FAULTS, STARTUP_SECS, ExposedCluster
from tests.full_disk import full_disk
from tests.memory import Life, Sampler

NUM_PS, NUM_WORKERS = 2, 2
DISK_SIZE = "256m"
# The seeds take turns.
MODES = {"asynchronous": [], "synchronous": ["--sync_replicas"], "bounded staleness": ["--max_staleness=8"]}
PAUSE_SECS = (2.0, 10.0)  # between faults
MAX_GROWTH = 0.05


class Run(NamedTuple):
    """What came of one cluster."""

    name: str  # such as "seed 1, asynchronous"
    recoveries: list[Recovery]
    num_failed: int  # tasks that ended with an error, and were started again
    steps: int
    accuracy: float
    lives: list[Life]


def soak(options: argparse.Namespace, seed: int, mode: str, folder: pathlib.Path) -> Run:
    """Train with faults, and check that all ends well."""
    rng, train_dir = random.Random(seed), pathlib.Path(options.disk) / f"seed-{seed}"
    flags = [*MODES[mode], "--train_steps=1000000000", f"--train_dir={train_dir}", "--save_checkpoint_secs=2"]
    flags += ["--log_every_secs=0.5", f"--recovery_timeout_secs={RECOVERY_SECS}"]
    flags += [f"--startup_timeout_secs={STARTUP_SECS}", *options.flags]
    with (
        Network(NUM_PS + NUM_WORKERS + 1) as network,
        Cluster(folder, NUM_PS, NUM_WORKERS, *flags, network=network) as cluster,
        Sampler(cluster) as sampler,
    ):
        soaked = ExposedCluster(cluster, train_dir, rng)
        cluster.start()
        soaked.wait_until_all_train()
        sampler.watch_new()
        recoveries = disturb(soaked, sampler, options, rng)
        soaked.finish(options.min_steps)
        for name, task in cluster.tasks.items():
            _, traceback, rest = task.output().partition("Traceback")
            assert not traceback, f"{name} has printed a traceback{rest[:2000]}"
        lives = sampler.judged_lives()
    result = json.loads((train_dir / "result.json").read_text())
    return Run(
        f"seed {seed}, {mode}", recoveries, soaked.num_failed, result["global_step"], result["test_accuracy"], lives
    )


def disturb(
    soaked: ExposedCluster, sampler: Sampler, options: argparse.Namespace, rng: random.Random
) -> list[Recovery]:
    """Let faults hit a cluster, in rounds, the last of which has none."""
    small = [fault for name, fault in SMALL_FAULTS.items() if name in options.faults]
    great = [fault for name, fault in GREAT_FAULTS.items() if name in options.faults]
    rng.shuffle(great)
    start, num_rounds = time.monotonic(), len(great) + 1
    recoveries = []

    def hit(fault: Callable[[ExposedCluster], Recovery]) -> None:
        recoveries.append(recovery := fault(soaked))
        sampler.watch_new()
        tasks = " and ".join(recovery.tasks) or "all"
        print(f"{time.strftime('%X')}: {recovery.fault} ({tasks}), at global step {recovery.step}", flush=True)

    for number, great_fault in enumerate(great):
        soaked.spared = (f"ps {number % NUM_PS}", f"worker {(number + number // NUM_PS) % NUM_WORKERS}")
        end = start + 60 * options.minutes * (number + 1) / num_rounds
        while True:
            for small_fault in rng.sample(small, len(small)):
                soaked.supervise(rng.uniform(*PAUSE_SECS))
                hit(small_fault)
            if not small or time.monotonic() > end:
                break
        hit(great_fault)
    soaked.supervise(start + 60 * options.minutes - time.monotonic())
    return recoveries


def make_tables(runs: list[Run]) -> str:
    """Return what happened, and the memory of each task over the longest life of one of its processes."""
    names = [run.name for run in runs]
    counts = [collections.Counter(recovery.fault for recovery in run.recoveries) for run in runs]
    rows = [[fault, *(str(count[fault]) for count in counts)] for fault in sorted(set().union(*counts))]
    rows += [
        ["**all faults**", *(str(count.total()) for count in counts)],
        ["tasks that ended with an error, and were started again", *(str(run.num_failed) for run in runs)],
        ["steps that a checkpoint had and that were lost", *("0" for _ in runs)],  # or there would be no table
        ["global steps at the end", *(str(run.steps) for run in runs)],
        ["test accuracy", *(f"{run.accuracy:.4f}" for run in runs)],
    ]
    return f"{report.make_table(['', *names], rows)}\n\n{make_memory_table(runs)}"


def make_memory_table(runs: list[Run]) -> str:
    """Return the memory of each task, minute by minute."""
    rows, num_minutes = [], 0
    for run in runs:
        for name in sorted({life.task for life in run.lives}):
            lives = [life for life in run.lives if life.task == name]
            curve = max(lives, key=lambda life: life.secs).curve()
            growth = max(life.growth for life in lives)
            rows.append([f"{run.name}: {name}", str(len(lives)), f"{growth:+.1%}", *(f"{mib:.0f}" for mib in curve)])
            num_minutes = max(num_minutes, len(curve))
    headings = ["task", "lives", "growth", *(f"minute {minute + 1}" for minute in range(num_minutes))]
    return report.make_table(headings, [row + [""] * (len(headings) - len(row)) for row in rows])


def check(run: Run, min_accuracy: float) -> None:
    """Check what must hold in the end."""
    assert run.accuracy >= min_accuracy, f"the accuracy is {run.accuracy}, expected {min_accuracy} at least"
    for life in run.lives:
        assert life.growth <= MAX_GROWTH, f"{life.task} has grown by {life.growth:.1%} in {life.secs:.0f} s"


def main() -> None:
    """Soak clusters as the command line says; end with a traceback at the first thing that must not happen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, nargs="+", default=[1, 2], help="of the faults, each with a new cluster")
    parser.add_argument("--minutes", type=float, default=20, help="how long each cluster trains")
    parser.add_argument("--faults", nargs="+", choices=[*SMALL_FAULTS, *GREAT_FAULTS], help="only these")
    parser.add_argument("--min_steps", type=int, default=5000, help="global steps of each cluster")
    parser.add_argument("--min_accuracy", type=float, default=0.967, help="of each model on the test images")
    parser.add_argument("--disk", help="an empty disk of its own; by default this script mounts one")
    parser.add_argument("--write", action="store_true", help="put the tables into tests/README.md")
    options, options.flags = parser.parse_known_args()
    options.faults = options.faults or [*SMALL_FAULTS, *GREAT_FAULTS]
    if not options.disk:
        with tempfile.TemporaryDirectory() as folder:
            command = [*full_disk(folder, DISK_SIZE), sys.executable, *sys.argv, f"--disk={folder}"]
            sys.exit(subprocess.run(command).returncode)

    runs = []
    for index, seed in enumerate(options.seed):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(soak(options, seed, list(MODES)[index % len(MODES)], pathlib.Path(folder)))
        print(make_tables(runs[-1:]), flush=True)
    tables = make_tables(runs)
    if options.write:
        report.write_section(PROJECT / "tests" / "README.md", "soak", f"{report.run_header()}\n\n{tables}")
    for run in runs:
        check(run, options.min_accuracy)


if __name__ == "__main__":
    main()
