"""The faults that hit a cluster in a soak: small ones, which most tasks survive, and great ones, which end many."""

import contextlib
import fcntl
import os
import pathlib
import random
import re
import signal
from collections.abc import Callable, Iterator

from benchmarks.testbed.processes import Cluster, poll_for
from runtime.records.folder import RunFolder
from tests.disturbed import DisturbedCluster, Recovery

RECOVERY_SECS = STARTUP_SECS = 30  # how long tasks wait
TOO_LONG_SECS = 40.0  # longer than that
SHORT_SECS = (1.0, 8.0)
LAST_STEPS = 4000  # after the last start
PIPE_BYTES = 4096  # the smallest that Linux has


class ExposedCluster(DisturbedCluster):
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

    def stop_reading(self) -> Recovery:
        """Start a task again, with an output that nobody reads: the cluster trains on, and the task stops in order."""
        name, before = self._victim(), self.look()
        folder = RunFolder(self._train_dir)
        events = pathlib.Path(folder.events_of(folder.run(max(folder.runs)), name))
        num_starts = events.read_text().count('"starting"')
        self.cluster[name].kill()
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        into_pipe = ["sh", "-c", f'exec "$0" "$@" >/dev/fd/{writer} 2>&1']
        self.cluster.start_with(
            name, *self.cluster.role(name), *self.cluster.flags, before=into_pipe, pass_fds=[writer]
        )

        def is_at_work() -> bool:
            _, *lives = events.read_text().split('"starting"')
            return len(lives) > num_starts and bool(re.search('"(serving|training)"', lives[-1]))

        poll_for(lambda: self.restart_failed() or is_at_work(), f"{name} at work, whose output nobody reads")
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, b"\n")
        os.set_blocking(writer, True)
        saved = self.last_checkpoint()
        poll_for(lambda: self.restart_failed() or self.last_checkpoint() > saved, "new checkpoint")
        self.cluster[name].send(signal.SIGTERM)
        status = self.cluster[name].wait()
        assert status == 128 + signal.SIGTERM, f"{name}, whose output nobody read, ended with {status}"
        os.close(reader)
        os.close(writer)
        self.cluster.start(name)
        return self.recover("nobody reads the output of", (name,), before)

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

    def finish(self, min_steps: int) -> None:
        """End all tasks, and start them for a last few steps, at the end of which the disk is full."""
        steps = max(min_steps, self.look().step + LAST_STEPS)
        self._end_and_start("last steps for all", lambda: self.cluster.flags.append(f"--train_steps={steps}"))
        with self._full_disk():
            self.cluster["worker 0"].wait_for_output("waiting for the result to be saved")
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
    "kill": ExposedCluster.kill_one,
    "kill_two": ExposedCluster.kill_two,
    "stop": ExposedCluster.stop_shortly,
    "cut": ExposedCluster.cut_shortly,
    "fill": ExposedCluster.fill_disk,
    "pipe": ExposedCluster.stop_reading,
}
GREAT_FAULTS = {
    "end_all": ExposedCluster.end_all,
    "move_all": ExposedCluster.move_all,
    "stop_too_long": ExposedCluster.stop_too_long,
    "cut_too_long": ExposedCluster.cut_too_long,
}
