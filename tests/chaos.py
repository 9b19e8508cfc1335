"""Kill, stop and restart random tasks of real clusters, and check that nothing hangs and nothing is lost.

    .venv/bin/python tests/chaos.py --seed 1 2 3 --minutes 2 --ps 2 --workers 2 [--sync_replicas] [any other flag]

A cluster trains MNIST while faults hit it, one after the other: kill -9 and restart of a worker, of the chief, of a ps
or of two tasks at once, or SIGSTOP for some seconds. After each it must train again, and in the end all must be well.
With each seed, one cluster after the other is treated so until its minutes are over; the last may finish. It prints
each fault and, in the end, a table of all. Other flags are those of distributed.py.
"""

import argparse
import json
import pathlib
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from typing import NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from benchmarks.testbed.processes import Cluster, answers, poll_for

# Of all steps. A worker takes its share of the examples with it: what is measured in the end is the model after all are
# back for long enough, and not who was away last.
LAST_FAULT = 0.7
KINDS = ("worker", "chief", "ps", "pair", "stop")

PROGRESS = re.compile(r"global step (\d+)/\d+, local step")
FINISHED = re.compile(r"finished at global step (\d+)")
MODEL_FOUND = re.compile(r"(?:keeping it|restored \S+), at global step (\d+)")
MAX_FAILED = 3  # tasks of one cluster that a fault may end with an error: a chief, say, that evaluates when a ps dies


class Fault(NamedTuple):
    """What was done to a cluster, and how long it needed to train again."""

    kind: str
    tasks: tuple[str, ...]
    step: int  # the global step before
    serving_secs: float  # from the restart until the tasks serve again: TensorFlow's import, above all
    recovery_secs: float  # until every worker trains again
    others_secs: float  # until every worker does that nothing was done to

    def __str__(self) -> str:
        return (
            f"{self.kind} ({' and '.join(self.tasks)}) at global step {self.step}: it serves after"
            f" {self.serving_secs:.1f} s, all train after {self.recovery_secs:.1f} s"
        )


COLUMNS = {"serves again": "serving_secs", "all train again": "recovery_secs", "the others do": "others_secs"}


class Casualty:
    """A cluster that trains while faults hit it.

    What becomes of it is read off the workers' logs; an `AssertionError` says what must not.
    """

    def __init__(self, cluster: Cluster, train_dir: pathlib.Path):
        self._cluster, self._train_dir = cluster, train_dir
        self._workers = [name for name in cluster.names if name.startswith("worker")]
        self._num_failed = 0

    def kill(self, *names: str) -> Fault:
        """Kill tasks with -9, and start them again."""
        before, last_checkpoint = self._logs(), self._last_checkpoint()
        for name in names:
            self._cluster[name].kill()
        self._cluster.start(*names)
        fault = self.wait_until_it_trains("kill", names)
        self._check_model(names, before, last_checkpoint)
        return fault

    def stop(self, name: str, stop_secs: float) -> Fault:
        """Stop a task for some seconds, as a machine that swaps may."""
        before = self._logs()
        self._cluster[name].send(signal.SIGSTOP)
        time.sleep(stop_secs)
        self._cluster[name].send(signal.SIGCONT)
        fault = self.wait_until_it_trains("stop", (name,))
        self._check_model((), before, 0)
        return fault

    def wait_until_it_trains(self, how: str = "start", names: tuple[str, ...] = ()) -> Fault:
        """Wait until every worker has trained since now, when something was done to some tasks."""
        start, before = time.monotonic(), self._logs()
        serving: dict[str, float] = {}
        training: dict[str, float] = {}

        def all_train() -> bool:
            for name in set(names) - serving.keys():
                if answers(self._cluster.address[name]):
                    serving[name] = time.monotonic() - start
            for name in set(self._workers) - training.keys():
                # The first line of a process that was there before may still tell of a step from before.
                num_lines = 1 if how == "kill" and name in names else 2
                num_found = len(PROGRESS.findall(self._log(name), len(before[name])))
                if num_found >= num_lines or FINISHED.search(self._log(name)):
                    training[name] = time.monotonic() - start
            self.restart_failed()
            return len(training) == len(self._workers)

        poll_for(all_train, "training by every worker")
        return Fault(
            kind=f"{how} {' + '.join(sorted(map(_kind, names)))}",
            tasks=names,
            step=_last_step(before),
            serving_secs=max(serving.values(), default=0.0),
            recovery_secs=max(training.values()),
            others_secs=max((training[name] for name in self._workers if name not in names), default=0.0),
        )

    def restart_failed(self) -> bool:
        """Start again what ended with an error, as a supervisor would, a few times; return whether all ended well."""
        for name, task in self._cluster.tasks.items():
            if task.status:
                (*_, last_line) = task.output().splitlines()
                print(f"{name} ended with {task.status}, and is started again: {last_line}", flush=True)
                self._num_failed += 1
                assert self._num_failed <= MAX_FAILED, "too many tasks ended with an error"
                self._cluster.start(name)
        return all(task.status == 0 for task in self._cluster.tasks.values())

    def _check_model(self, killed: tuple[str, ...], before: dict[str, str], last_checkpoint: int) -> None:
        """Check that no step was lost or, if a ps was killed, none of those that the last checkpoint had."""
        news = {name: self._log(name)[len(log) :] for name, log in before.items()}
        lost_a_ps = any(name.startswith("ps") for name in killed)
        if lost_a_ps or "worker 0" in killed:
            found = int(MODEL_FOUND.findall(news["worker 0"])[-1])
            expected = last_checkpoint if lost_a_ps else _last_step(before)
            assert found >= expected, f"the chief went on with global step {found}, expected {expected} at least"
        if not lost_a_ps:
            for name in self._workers:
                steps = [_last_step({name: before[name]}), *map(int, PROGRESS.findall(news[name]))]
                assert steps == sorted(steps), f"the global step of {name} went back: {steps}"

    def step(self) -> int:
        """Return the global step that the workers have logged last."""
        return _last_step(self._logs())

    def _last_checkpoint(self) -> int:
        """Return the global step that the name of the last checkpoint has."""
        return int(re.search(r"model\.ckpt-(\d+)", (self._train_dir / "checkpoint").read_text())[1])

    def _logs(self) -> dict[str, str]:
        return {name: self._log(name) for name in self._workers}

    def _log(self, name: str) -> str:
        return self._cluster[name].output()


def _last_step(logs: dict[str, str]) -> int:
    return max(int(step) for log in logs.values() for step in ["0", *PROGRESS.findall(log)][-1:])


def train(options: argparse.Namespace, folder: pathlib.Path, rng: random.Random | None) -> tuple[float, list[Fault]]:
    """Train on a new cluster, disturbed unless `rng` is None; return the test accuracy and the faults."""
    train_dir = folder / "train"
    flags = [*options.flags, f"--train_steps={options.train_steps}", f"--sync_replicas={options.sync_replicas}"]
    flags += [f"--train_dir={train_dir}", "--save_checkpoint_secs=1", "--log_every_secs=0.1"]
    faults = []
    with Cluster(folder, options.ps, options.workers, *flags) as cluster:
        cluster.start()
        casualty = Casualty(cluster, train_dir)
        if rng:
            casualty.wait_until_it_trains()
            while True:
                time.sleep(rng.uniform(0, 2))  # a random moment
                if casualty.step() > LAST_FAULT * options.train_steps:
                    break
                faults.append(_random_fault(casualty, cluster.names, rng))
                print(faults[-1], flush=True)
        poll_for(casualty.restart_failed, "end of every task with status 0")
    return json.loads((train_dir / "result.json").read_text())["test_accuracy"], faults


def _random_fault(casualty: Casualty, names: list[str], rng: random.Random) -> Fault:
    kind = rng.choice(KINDS)
    if kind == "stop":
        return casualty.stop(rng.choice(names), rng.uniform(0.5, 4))
    if kind == "pair":
        return casualty.kill(*rng.sample(names, 2))
    return casualty.kill(rng.choice([name for name in names if _kind(name) == kind]))


def _kind(name: str) -> str:
    return "chief" if name == "worker 0" else name.split()[0]


def print_table(faults: list[Fault]) -> None:
    """Print how long recovery took, by kind of fault, as a table of Markdown."""
    headings = [f"{heading}: {figure}" for heading in COLUMNS for figure in ("median", "worst")]
    print(f"| fault | times | {' | '.join(headings)} |")
    print("| --- | --- |" + len(headings) * " --- |")
    for kind in [*sorted({fault.kind for fault in faults}), "all"]:
        chosen = [fault for fault in faults if kind in (fault.kind, "all")]
        columns = [[getattr(fault, field) for fault in chosen] for field in COLUMNS.values()]
        cells = [f"{figure(column):.1f} s" for column in columns for figure in (statistics.median, max)]
        print(f"| {kind} | {len(chosen)} | {' | '.join(cells)} |")


def main() -> None:
    """Disturb clusters as the command line says; end with a traceback at the first thing that must not happen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, nargs="+", default=[0], help="of the faults; several may follow")
    parser.add_argument("--minutes", type=float, default=1, help="how long clusters are disturbed, for each seed")
    parser.add_argument("--ps", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--train_steps", type=int, default=10000, help="global steps that each cluster takes")
    parser.add_argument("--sync_replicas", action="store_true")
    parser.add_argument("--tolerance", type=float, default=0.005, help="of the accuracy, against an undisturbed run's")
    options, options.flags = parser.parse_known_args()

    def train_somewhere(rng: random.Random | None) -> tuple[float, list[Fault]]:
        with tempfile.TemporaryDirectory() as folder:
            return train(options, pathlib.Path(folder), rng)

    undisturbed, _ = train_somewhere(None)
    print(f"undisturbed: test accuracy {undisturbed:.4f}")
    faults: list[Fault] = []
    for seed in options.seed:
        rng, start = random.Random(seed), time.monotonic()
        while time.monotonic() < start + 60 * options.minutes or not faults:
            accuracy, found = train_somewhere(rng)
            print(f"seed {seed}: all ended with 0, test accuracy {accuracy:.4f} after {len(found)} faults", flush=True)
            assert accuracy > undisturbed - options.tolerance, "the model is not as good as an undisturbed one"
            faults += found
    print_table(faults)


if __name__ == "__main__":
    main()
