"""Kill, stop and restart random tasks of real clusters, and check that nothing hangs and nothing is lost.

    .venv/bin/python tests/chaos.py --seed 1 2 3 --minutes 2 --ps 2 --workers 2 [--sync_replicas]

A cluster trains MNIST while faults hit it, one after the other: kill -9 and restart of a worker, of the chief, of a ps
or of two tasks at once, or SIGSTOP for some seconds. After each it must train again, and in the end all must be well.
With each seed, one cluster after the other is treated so until its minutes are over; the last may finish. It prints
each fault and, in the end, a table of all.
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
from collections.abc import Iterator
from typing import NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from tests.processes import Cluster, poll_for

KINDS = ("worker", "chief", "ps", "pair", "stop")
TOLERANCE = 0.005  # of the accuracy, compared with that of an undisturbed run

PROGRESS = re.compile(r"global step (\d+)/\d+, local step")
FINISHED = re.compile(r"finished at global step (\d+)")
MODEL_FOUND = re.compile(r"(?:keeping it|restored \S+), at global step (\d+)")
EVALUATED = re.compile("test accuracy")


class Fault(NamedTuple):
    """What was done to a cluster, and how long it needed to train again."""

    kind: str
    tasks: tuple[str, ...]
    step: int  # the global step before
    recovery_secs: float  # from the restart until every worker trains again
    others_secs: float  # until every worker does that nothing was done to


class Casualty:
    """A cluster that trains while faults hit it.

    What becomes of it is read off the workers' logs; an `AssertionError` says what must not.
    """

    def __init__(self, cluster: Cluster, train_dir: pathlib.Path):
        self._cluster, self._train_dir = cluster, train_dir
        self._workers = [name for name in cluster.names if name.startswith("worker")]

    def unfinished(self) -> list[str]:
        """Return the tasks that have not done their part; a ps, and the chief, have when the chief has evaluated."""
        if EVALUATED.search(self._log("worker 0")):
            return []
        return [name for name in self._cluster.names if not FINISHED.search(self._log(name)) or name == "worker 0"]

    def kill(self, *names: str) -> Fault | None:
        """Kill tasks with -9 and start them again; or do nothing if one has just finished."""
        for name in names:
            self._cluster[name].send(signal.SIGSTOP)  # it must not finish between the look and the kill
        if not set(names) <= set(self.unfinished()):
            for name in names:
                self._cluster[name].send(signal.SIGCONT)
            return None
        before, last_checkpoint = self._logs(), self._last_checkpoint()
        for name in names:
            self._cluster[name].kill()
        self._cluster.start(*names)
        fault = self._wait_until_it_trains("kill", names, before)
        self._check_model(names, before, last_checkpoint)
        return fault

    def stop(self, name: str, stop_secs: float) -> Fault:
        """Stop a task for some seconds, as a machine that swaps may."""
        before = self._logs()
        self._cluster[name].send(signal.SIGSTOP)
        time.sleep(stop_secs)
        self._cluster[name].send(signal.SIGCONT)
        fault = self._wait_until_it_trains("stop", (name,), before)
        self._check_model((), before, 0)
        return fault

    def wait_until_it_trains(self) -> dict[str, float]:
        """Wait until each worker has trained since now; return how many seconds each took."""
        start, before = time.monotonic(), self._logs()
        secs: dict[str, float] = {}

        def all_train() -> bool:
            for name in self._workers:
                news = self._log(name)[len(before[name]) :]
                # The first line may still tell of a step from before.
                if len(PROGRESS.findall(news)) > 1 or FINISHED.search(self._log(name)):
                    secs.setdefault(name, time.monotonic() - start)
            failed = {name: task.status for name, task in self._cluster.tasks.items() if task.status}
            assert not failed, f"ended by themselves: {failed}"
            return len(secs) == len(self._workers)

        poll_for(all_train, "training by every worker")
        return secs

    def _wait_until_it_trains(self, how: str, names: tuple[str, ...], before: dict[str, str]) -> Fault:
        secs = self.wait_until_it_trains()
        jobs = sorted("chief" if name == "worker 0" else name.split()[0] for name in names)
        others_secs = max((secs[name] for name in self._workers if name not in names), default=0.0)
        return Fault(f"{how} {' + '.join(jobs)}", names, _last_step(before), max(secs.values()), others_secs)

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

    def _last_checkpoint(self) -> int:
        """Return the global step that the name of the last checkpoint has."""
        return int(re.search(r"model\.ckpt-(\d+)", (self._train_dir / "checkpoint").read_text())[1])

    def _logs(self) -> dict[str, str]:
        return {name: self._log(name) for name in self._workers}

    def _log(self, name: str) -> str:
        return self._cluster[name].output()


def _last_step(logs: dict[str, str]) -> int:
    return max(int(step) for log in logs.values() for step in ["0", *PROGRESS.findall(log)][-1:])


def train(
    folder: pathlib.Path, num_ps: int, num_workers: int, flags: list[str], rng: random.Random | None
) -> tuple[float, list[Fault]]:
    """Train on a new cluster, disturbed unless `rng` is None; return the test accuracy and the faults."""
    train_dir = folder / "train"
    flags = [*flags, f"--train_dir={train_dir}", "--save_checkpoint_secs=1", "--log_every_secs=0.1"]
    faults = []
    with Cluster(folder, num_ps, num_workers, *flags) as cluster:
        cluster.start()
        casualty = Casualty(cluster, train_dir)
        if rng:
            casualty.wait_until_it_trains()
            for fault in _disturb(casualty, rng):
                where = f"{' and '.join(fault.tasks)} at global step {fault.step}"
                print(f"{fault.kind}: {where}, recovered after {fault.recovery_secs:.1f} s", flush=True)
                faults.append(fault)
        statuses = cluster.wait()
        assert set(statuses.values()) == {0}, f"statuses: {statuses}"
    return json.loads((train_dir / "result.json").read_text())["test_accuracy"], faults


def _disturb(casualty: Casualty, rng: random.Random) -> Iterator[Fault]:
    """Let one random fault after the other happen, until nothing is left to train."""
    while names := casualty.unfinished():
        kind = rng.choice(KINDS)
        if kind == "stop":
            yield casualty.stop(rng.choice(names), rng.uniform(0.5, 4))
        else:
            able = [name for name in names if kind in ("pair", "chief" if name == "worker 0" else name.split()[0])]
            if fault := casualty.kill(*rng.sample(able, min(len(able), 2 if kind == "pair" else 1))):
                yield fault
        time.sleep(rng.uniform(0, 2))  # a random moment


def print_table(faults: list[Fault]) -> None:
    """Print how long recovery took, by kind of fault, as a table of Markdown."""
    print("| fault | times | median recovery | worst recovery | the others, median | worst |")
    print("| --- | --- | --- | --- | --- | --- |")
    for kind in [*sorted({fault.kind for fault in faults}), "all"]:
        chosen = [fault for fault in faults if kind in (fault.kind, "all")]
        columns = [[fault.recovery_secs for fault in chosen], [fault.others_secs for fault in chosen]]
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
    options = parser.parse_args()
    flags = [f"--train_steps={options.train_steps}", *(["--sync_replicas"] if options.sync_replicas else [])]

    def train_somewhere(rng: random.Random | None) -> tuple[float, list[Fault]]:
        with tempfile.TemporaryDirectory() as folder:
            return train(pathlib.Path(folder), options.ps, options.workers, flags, rng)

    undisturbed, _ = train_somewhere(None)
    print(f"undisturbed: test accuracy {undisturbed:.4f}")
    faults: list[Fault] = []
    for seed in options.seed:
        rng, start = random.Random(seed), time.monotonic()
        while time.monotonic() < start + 60 * options.minutes or not faults:
            accuracy, found = train_somewhere(rng)
            print(f"seed {seed}: all ended with 0, test accuracy {accuracy:.4f} after {len(found)} faults", flush=True)
            assert accuracy > undisturbed - TOLERANCE, "the model is not as good as an undisturbed one"
            faults += found
    print_table(faults)


if __name__ == "__main__":
    main()
