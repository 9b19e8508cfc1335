"""Train for long while all kinds of faults hit the cluster, and check that it loses nothing and its memory stays flat.

    .venv/bin/python tests/soak.py [--seed 1 2] [--minutes 30] [--faults NAME ...] [--write]

Each task runs on a host of its own. With each seed one cluster trains for the minutes, in rounds. In a round, small
faults come at random moments: tasks are killed or stopped, links are cut and healed, the disk is filled and freed. All
of them spare one ps and one worker, by turns, whose processes live as long as the round. A great fault ends it: SIGTERM
to all tasks, the same with other addresses for all, or a task that is stopped, or a link that is cut, for longer than
any task waits. What ends with an error is started again, as a cluster manager would do it. The last round has no
faults. After each fault every worker must train again, and no step may be lost that a checkpoint had. In the end all
tasks must end with status 0, with a good model, and none of their processes may have grown by more than 5 percent. The
script prints what it does and, at the end, tables. With --write it also puts them into docs/recovery.md.
"""

import argparse
import collections
import contextlib
import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from benchmarks import report
from benchmarks.testbed.network import Network
from benchmarks.testbed.processes import PROJECT, Cluster, poll_for
from tests.disturbed import DisturbedCluster, Recovery
from tests.full_disk import full_disk
from tests.memory import Life, Sampler

NUM_PS, NUM_WORKERS = 2, 2
DISK_SIZE = "256m"
MODES = {"asynchronous": [], "synchronous": ["--sync_replicas"]}  # the seeds take turns
RECOVERY_SECS, STARTUP_SECS = 15, 20  # how long tasks wait
TOO_LONG_SECS = 25.0  # longer than any of them
SHORT_SECS = (1.0, 8.0)
PAUSE_SECS = (2.0, 10.0)  # between faults
MIN_STEPS, LAST_STEPS = 10000, 1000  # the run has this many steps at least, and this many after the last start
MAX_GROWTH = 0.05


class SoakedCluster(DisturbedCluster):
    """A cluster on hosts of its own, with a disk of its own, and the faults that can hit it."""

    def __init__(self, cluster: Cluster, train_dir: pathlib.Path, rng: random.Random):
        super().__init__(cluster, train_dir, max_failed=1000)
        self._disk, self._rng = train_dir.parent, rng
        self.spared: tuple[str, ...] = ()  # whom the small faults must not end

    def kill_one(self) -> Recovery:
        return self.kill(self._victim())

    def kill_two(self) -> Recovery:
        return self.kill(*(name for name in self.cluster.names if name not in self.spared))

    def stop_shortly(self) -> Recovery:
        return self.stop(self._rng.choice(self.cluster.names), self._rng.uniform(*SHORT_SECS))

    def cut_shortly(self) -> Recovery:
        return self._cut(*self._rng.sample(self.cluster.names, 2), self._rng.uniform(*SHORT_SECS))

    def fill_disk(self) -> Recovery:
        """Fill the disk for some seconds, in which a task may die; then the next checkpoint must be written."""
        before = self.look()
        victims = [self._victim()] if self._rng.random() < 0.5 else []
        with self._full_disk():
            self.supervise(self._rng.uniform(*SHORT_SECS))
            for name in victims:
                self.cluster[name].kill()
                self.cluster.start(name)
            self.supervise(self._rng.uniform(*SHORT_SECS))
        recovery = self.recover("fill the disk, kill" if victims else "fill the disk", victims, before)
        saved = self.last_checkpoint()
        poll_for(lambda: self.restart_failed() or self.last_checkpoint() != saved, "new checkpoint")
        return recovery

    def stop_too_long(self) -> Recovery:
        return self.stop(self._rng.choice(self.cluster.names), TOO_LONG_SECS, "stop too long")

    def cut_too_long(self) -> Recovery:
        return self._cut(*self._rng.sample(self.cluster.names, 2), TOO_LONG_SECS)

    def end_all(self) -> Recovery:
        return self._end_and_start("SIGTERM to all")

    def move_all(self) -> Recovery:
        """End all tasks, and start them at other addresses."""
        hosts = [(host + 1) % (len(self.cluster.names) + 1) for host in self.cluster.host.values()]
        return self._end_and_start("other addresses for all", lambda: self.cluster.place(hosts))

    def finish(self) -> None:
        """End all tasks, and start them for a last few steps."""
        steps = max(MIN_STEPS, self.look().step + LAST_STEPS)
        self._end_and_start("last steps for all", lambda: self.cluster.flags.append(f"--train_steps={steps}"))
        poll_for(self.restart_failed, "end of every task with status 0")

    def _end_and_start(self, action: str, change: Callable[[], None] = lambda: None) -> Recovery:
        before = self.look()
        for task in self.cluster.tasks.values():
            task.send(signal.SIGTERM)
        statuses = self.cluster.wait()
        assert set(statuses.values()) == {128 + signal.SIGTERM}, f"the tasks ended with {statuses}"
        saved = self.last_checkpoint()
        assert saved >= before.step, f"step {saved} was saved, expected {before.step} at least"
        change()
        self.cluster.start()
        return self.recover(action, (), before)

    def _cut(self, name: str, other: str, secs: float) -> Recovery:
        network, hosts = self.cluster.network, [self.cluster.host[name], self.cluster.host[other]]
        before = self.look()
        network.cut(*hosts)
        self.supervise(secs)
        network.heal(*hosts)
        return self.recover("cut too long" if secs >= TOO_LONG_SECS else "cut", (name, other), before)

    @contextlib.contextmanager
    def _full_disk(self) -> Iterator[None]:
        path = self._disk / "filler"
        with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        yield
        path.unlink()

    def _victim(self) -> str:
        return self._rng.choice([name for name in self.cluster.names if name not in self.spared])


SMALL_FAULTS = {
    "kill": SoakedCluster.kill_one,
    "kill_two": SoakedCluster.kill_two,
    "stop": SoakedCluster.stop_shortly,
    "cut": SoakedCluster.cut_shortly,
    "fill": SoakedCluster.fill_disk,
}
GREAT_FAULTS = {
    "end_all": SoakedCluster.end_all,
    "move_all": SoakedCluster.move_all,
    "stop_too_long": SoakedCluster.stop_too_long,
    "cut_too_long": SoakedCluster.cut_too_long,
}


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
    flags += [f"--startup_timeout_secs={STARTUP_SECS}"]
    with (
        Network(NUM_PS + NUM_WORKERS + 1) as network,
        Cluster(folder, NUM_PS, NUM_WORKERS, *flags, network=network) as cluster,
        Sampler(cluster) as sampler,
    ):
        soaked = SoakedCluster(cluster, train_dir, rng)
        cluster.start()
        soaked.wait_until_all_train()
        recoveries = disturb(soaked, options, rng)
        soaked.finish()
        outputs = [task.output() for task in cluster.tasks.values()]
        assert not any("Traceback" in output for output in outputs), "a task ended with a traceback"
        lives = sampler.judged_lives()
    result = json.loads((train_dir / "result.json").read_text())
    return Run(
        f"seed {seed}, {mode}", recoveries, soaked.num_failed, result["global_step"], result["test_accuracy"], lives
    )


def disturb(soaked: SoakedCluster, options: argparse.Namespace, rng: random.Random) -> list[Recovery]:
    """Let faults hit a cluster, in rounds, the last of which has none."""
    small = [fault for name, fault in SMALL_FAULTS.items() if name in options.faults]
    great = [fault for name, fault in GREAT_FAULTS.items() if name in options.faults]
    rng.shuffle(great)
    round_secs = 60 * options.minutes / (1 + len(great))
    recoveries = []

    def hit(fault: Callable[[SoakedCluster], Recovery]) -> None:
        recoveries.append(recovery := fault(soaked))
        tasks = " and ".join(recovery.tasks) or "all"
        print(
            f"{time.strftime('%X')}: {recovery.fault} ({tasks}) at global step {recovery.step}: all train", flush=True
        )

    for number, great_fault in enumerate(great):
        soaked.spared = (f"ps {number % NUM_PS}", f"worker {(number + number // NUM_PS) % NUM_WORKERS}")
        end = time.monotonic() + round_secs
        faults: list[Callable[[SoakedCluster], Recovery]] = []
        while small and (not faults or time.monotonic() < end):
            soaked.supervise(rng.uniform(*PAUSE_SECS))
            faults = faults[1:] or rng.sample(small, len(small))  # each comes as often as the others
            hit(faults[0])
        hit(great_fault)
    soaked.supervise(round_secs)
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
        ["global steps in the end", *(str(run.steps) for run in runs)],
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
    parser.add_argument("--minutes", type=float, default=30, help="how long each cluster trains")
    parser.add_argument("--faults", nargs="+", choices=[*SMALL_FAULTS, *GREAT_FAULTS], help="only these")
    parser.add_argument("--min_accuracy", type=float, default=0.967, help="of each model on the test images")
    parser.add_argument("--disk", help="an empty disk of its own; by default this script mounts one")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/recovery.md")
    options = parser.parse_args()
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
        report.write_section(PROJECT / "docs" / "recovery.md", "soak", f"{report.run_header()}\n\n{tables}")
    for run in runs:
        check(run, options.min_accuracy)


if __name__ == "__main__":
    main()
