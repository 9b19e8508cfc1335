"""A cluster that trains while faults hit it, and the checks that it recovers and loses nothing."""

import pathlib
import re
import signal
import time
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.testbed.processes import Cluster, answers, poll_for

PROGRESS = re.compile(r"global step (\d+)/\d+, local step")
ENDED = re.compile(r"finished at global step|nothing is left to do")
MODEL_READY = re.compile(r"(?:keeping it|restored \S+), at global step (\d+)")


class Recovery(NamedTuple):
    """A fault, and how long the cluster needed to train again."""

    fault: str  # such as "kill chief + ps"
    tasks: tuple[str, ...]
    step: int  # the global step before
    serving_secs: float  # from the restart until the tasks serve again: TensorFlow's import, above all
    training_secs: float  # until every worker trains again

    def __str__(self) -> str:
        return (
            f"{self.fault} ({' and '.join(self.tasks)}) at global step {self.step}: it serves after"
            f" {self.serving_secs:.1f} s, all train after {self.training_secs:.1f} s"
        )


class State(NamedTuple):
    """What a cluster was like before a fault."""

    logs: dict[str, str]  # of the workers
    pids: dict[str, int]
    checkpoint: int  # the global step of the last one

    @property
    def step(self) -> int:
        """The global step that the workers have logged last."""
        return max(map(last_step, self.logs.values()))


class DisturbedCluster:
    """Disturbs a cluster that trains, and checks that it recovers.

    What the cluster does is read from the workers' logs. An `AssertionError` says what went wrong.
    """

    def __init__(self, cluster: Cluster, train_dir: pathlib.Path, max_failed: int = 3):
        """Disturb `cluster`, of which a fault may end some tasks with an error, such as a chief that evaluates."""
        self.cluster, self._train_dir, self._max_failed = cluster, train_dir, max_failed
        self._workers = [name for name in cluster.names if name.startswith("worker")]
        self.num_failed = 0

    def kill(self, *names: str) -> Recovery:
        """Kill tasks with -9, and start them again."""
        before = self.look()
        for name in names:
            self.cluster[name].kill()
        self.cluster.start(*names)
        return self.recover("kill", names, before)

    def stop(self, name: str, secs: float, action: str = "stop") -> Recovery:
        """Stop a task for some seconds, as a machine that swaps may."""
        before = self.look()
        self.cluster[name].send(signal.SIGSTOP)
        self.supervise(secs)
        self.cluster[name].send(signal.SIGCONT)
        return self.recover(action, (name,), before)

    def recover(self, action: str, names: Sequence[str], before: State) -> Recovery:
        """Wait until every worker has trained after a fault, and check what is left of the model."""
        recovery = self.wait_until_all_train(action, names)
        self._check_model(before)
        return recovery

    def wait_until_all_train(self, action: str = "start", names: Sequence[str] = ()) -> Recovery:
        """Wait until every worker has trained since now, which is when `action` hit the tasks of these names."""
        start, before = time.monotonic(), self._logs()
        to_serve = set() if self.cluster.network else set(names)  # nobody reaches a task on another host from here
        serving: dict[str, float] = {}
        training: dict[str, float] = {}

        def all_train() -> bool:
            for name in to_serve - serving.keys():
                if answers(self.cluster.address[name]):
                    serving[name] = time.monotonic() - start
            for name in set(self._workers) - training.keys():
                # The first line of a process that was there before may still tell of a step from before.
                num_expected = 1 if action == "kill" and name in names else 2
                num_lines = len(PROGRESS.findall(self._log(name), len(before[name])))
                if num_lines >= num_expected or ENDED.search(self._log(name)):
                    training[name] = time.monotonic() - start
            self.restart_failed()
            return len(training) == len(self._workers)

        poll_for(all_train, "training by every worker")
        return Recovery(
            fault=f"{action} {' + '.join(sorted(map(kind, names)))}".strip(),
            tasks=tuple(names),
            step=max(map(last_step, before.values())),
            serving_secs=max(serving.values(), default=0.0),
            training_secs=max(training.values()),
        )

    def supervise(self, secs: float) -> None:
        """Wait, and start again what ends with an error meanwhile."""
        deadline = time.monotonic() + secs
        while time.monotonic() < deadline:
            self.restart_failed()
            time.sleep(0.1)

    def restart_failed(self) -> bool:
        """Start again what ended with an error, as a supervisor would, a few times; return whether all ended well."""
        for name, task in self.cluster.tasks.items():
            if task.status:
                (*_, last_line) = task.output().splitlines()
                print(f"{name} ended with {task.status}, and is started again: {last_line}", flush=True)
                assert task.status == 1, f"no supervisor starts a task again that ended with {task.status}"
                assert last_line.startswith("error: "), f"{name} did not say what was wrong"
                self.num_failed += 1
                assert self.num_failed <= self._max_failed, "too many tasks ended with an error"
                self.cluster.start(name)
        return all(task.status == 0 for task in self.cluster.tasks.values())

    def look(self) -> State:
        """Return what the cluster is like now."""
        pids = {name: task.pid for name, task in self.cluster.tasks.items()}
        return State(self._logs(), pids, self.last_checkpoint())

    def last_checkpoint(self) -> int:
        """Return the global step that the name of the last checkpoint has."""
        return int(re.search(r"model\.ckpt-(\d+)", (self._train_dir / "checkpoint").read_text())[1])

    def _check_model(self, before: State) -> None:
        """Check that no step was lost or, if a ps was, none of those that the last checkpoint had."""
        logged_since = {name: self._log(name)[len(log) :] for name, log in before.logs.items()}
        restarted = [name for name, pid in before.pids.items() if self.cluster[name].pid != pid]
        lost_a_ps = any(name.startswith("ps") for name in restarted)
        if lost_a_ps or "worker 0" in restarted:
            found = [int(step) for step in MODEL_READY.findall(logged_since["worker 0"])]
            expected = before.checkpoint if lost_a_ps else before.step
            assert found, "the chief found no model"
            assert min(found) >= expected, f"the chief went on with global step {found}, expected {expected} at least"
        if not lost_a_ps:
            for name in self._workers:
                steps = [last_step(before.logs[name]), *map(int, PROGRESS.findall(logged_since[name]))]
                assert steps == sorted(steps), f"the global step of {name} went back: {steps}"

    def _logs(self) -> dict[str, str]:
        return {name: self._log(name) for name in self._workers}

    def _log(self, name: str) -> str:
        return self.cluster[name].output()


def last_step(log: str) -> int:
    """Return the global step that a worker has logged last, or 0."""
    return int(["0", *PROGRESS.findall(log)][-1])


def kind(name: str) -> str:
    """Return what a task is: a chief, a worker or a ps."""
    return "chief" if name == "worker 0" else name.split()[0]
