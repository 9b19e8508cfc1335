"""The supervisor: starts the tasks of a cluster, starts again what dies, and ends all of them when one cannot go on."""

import contextlib
import fcntl
import os
import queue
import re
import signal
import time
from collections.abc import Callable
from typing import Any

from runtime.launch.console import Console
from runtime.launch.epilogue import describe_how_to_go_on, describe_what_is_next, has_saved
from runtime.launch.options import UNUSABLE_STATUS, Options
from runtime.launch.ports import choose_ports
from runtime.launch.tasks import TaskProcess
from runtime.process import output
from runtime.records.events import join_run
from runtime.records.folder import RunFolder

POLL_SECS = 0.2
LEAVE_SECS = 60.0  # how long tasks, even one that has only started, may take to end after the chief has
SILENT_SECS = 3.0  # of these, before anything is said
MARGIN_SECS = 7.0  # after a signal, a ps leaves 2 s after the chief at the latest
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
REPEATED = re.compile(r"error: (ps|worker) (\d+) has ended: ")  # says a task that ends because of another one


class GivenUpError(Exception):
    """The run cannot go on: because of which task, why, and the status of the launcher."""


class Supervisor:
    """Runs a cluster, in which every task does `run`."""

    def __init__(self, options: Options, run: Callable[[], None], predicts: str):
        """Prepare to run it; `predicts` is `PREDICTS` of the user's `mnist_input.py`, or empty."""
        self._options, self._run_script, self._predicts = options, run, predicts
        names = [f"ps-{index}" for index in range(options.ps)]
        names += [f"worker-{index}" for index in range(options.workers)]
        self._tasks = {name: TaskProcess(name, options.folder.log_of(name)) for name in names}
        self._chief = self._tasks["worker-0"]
        _lock(options.folder)
        events = ""
        with contextlib.suppress(OSError):  # then the tasks cannot record anything either
            events = join_run(options.folder)
        self._console = Console(options.folder, names, events)
        self._leave_by: float | None = None  # once the chief has ended
        self._told_of = ""  # whom the chief has left behind, or nobody
        self._received: signal.Signals | None = None
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._handle_signals(lambda number, _: self._signals.put(number))

    def _handle_signals(self, handler: Any) -> None:
        for number in (*STOP_SIGNALS, signal.SIGQUIT, signal.SIGCHLD):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)

    def run(self) -> int:
        """Run the cluster until every task has ended with 0, or one cannot go on, or a signal stops it.

        Returns:
          The exit status of the launcher. From then on, a signal ends it at once.
        """
        try:
            return self._run()
        finally:
            self._handle_signals(signal.SIG_DFL)

    def _run(self) -> int:
        try:
            addresses = [f"localhost:{port}" for port in choose_ports(len(self._tasks))]
        except OSError as error:
            self._console.close([], f"error: {error}")
            return UNUSABLE_STATUS
        ps_hosts, worker_hosts = ",".join(addresses[: self._options.ps]), ",".join(addresses[self._options.ps :])
        self._hosts = [f"--ps_hosts={ps_hosts}", f"--worker_hosts={worker_hosts}"]
        self._console.say(f"ps at {ps_hosts}, workers at {worker_hosts}, logs in {self._options.folder.logs}")
        try:
            for task in self._tasks.values():
                self._start(task)
            while self._running() and not self._received:
                self._wait()
                if not self._received:  # else what has died stays dead
                    self._supervise()
        except GivenUpError as error:
            self._end_all()
            task, why, status = error.args
            last_lines = self._read_last_lines(task)
            if repeated := REPEATED.match("".join(last_lines[-1:])):
                task = self._tasks["-".join(repeated.groups())]
                last_lines = self._read_last_lines(task)
            where = f". Last lines of {task.log}:" if last_lines else ""
            if status == UNUSABLE_STATUS and os.path.isfile(task.log) and not os.path.getsize(task.log):
                where = f"; {task.log} is empty: check its disk for free space"
            lines = [f"error: {task.name} {why}; stopped all tasks{where}", *last_lines]
            if self._chief.status == 0:
                lines.append("the chief had ended with status 0: the result is saved")
            elif has_saved(self._options.folder):
                lines.append(f"once that is fixed, {describe_how_to_go_on(self._options.folder)}")
            self._console.close([], "\n".join(lines))
            return int(status)
        self._console.close(self._stop() if self._received else describe_what_is_next(self._options, self._predicts))
        number = signal.SIGTERM if self._received == signal.SIGHUP else self._received
        return 128 + number if number else 0

    def _start(self, task: TaskProcess) -> None:
        def run() -> None:
            if task == self._chief:
                output.reader_of_lost = self._console.lost_lines_of_chief
            self._run_script()

        if task == self._chief:
            self._console.refresh()
            self._console.follow_chief()
        job_name, _, index = task.name.partition("-")
        role = [f"--job_name={job_name}", f"--task_index={index}"]
        try:
            task.start(["distributed.py", *role, *self._hosts, *self._options.task_flags], run)
        except OSError as error:
            why = f"cannot be started: {error.filename or 'a new process'}: {error.strerror}"
            raise GivenUpError(task, why, UNUSABLE_STATUS if error.filename else 1) from error

    def _running(self) -> list[TaskProcess]:
        return [task for task in self._tasks.values() if task.status is None]

    def _wait(self) -> None:
        """Wait for a signal, such as that of the end of a task, or a little; then look at everything."""
        with contextlib.suppress(queue.Empty):
            number = signal.Signals(self._signals.get(timeout=POLL_SECS))
            if number in STOP_SIGNALS and self._received:
                self._console.say("still stopping all tasks; Ctrl-\\ ends them at once")
            elif number in STOP_SIGNALS:
                self._received = number
            elif number == signal.SIGQUIT:
                self._console.say("ending every task at once")
                self._kill_all()
                self._received = number
        for name, task in self._tasks.items():
            if task.has_just_ended():
                self._console.note(name, "ended", status=task.status)

    def _supervise(self) -> None:
        """Start again what has died, and show what the tasks have written.

        Raises:
          GivenUpError: a task cannot go on, or stays when the chief has ended.
        """
        if self._chief.status == 0 and not self._leave_by:
            self._leave_by = time.monotonic() + LEAVE_SECS
        left = ", ".join(task.name for task in self._running())
        if (
            self._leave_by
            and time.monotonic() > self._leave_by - LEAVE_SECS + SILENT_SECS
            and left not in self._told_of
        ):
            self._told_of = left
            self._console.say(f"the chief has ended: waiting for {left} to end, up to {LEAVE_SECS:g} s")
        # What the chief tells of other tasks, such as that one is lost, comes after what is said of them here; its own
        # last words come before.
        for task in sorted(self._tasks.values(), key=lambda task: task == self._chief):
            if task == self._chief:
                self._console.refresh()
            if task.status:
                self._restart(task)
            elif task.status is None and self._leave_by and time.monotonic() > self._leave_by:
                raise GivenUpError(task, f"did not end within {LEAVE_SECS:g} s of the chief", 1)

    def _restart(self, task: TaskProcess) -> None:
        if task.status == UNUSABLE_STATUS:
            raise GivenUpError(task, "cannot use its input, or save its output", UNUSABLE_STATUS)
        if self._leave_by and task.name.startswith("ps-"):
            self._console.say(f"{task.name} {task.describe_end()}: nothing is lost, since the chief has ended")
            task.status = 0
            return
        if self._leave_by or task.num_restarts == self._options.max_restarts:
            raise GivenUpError(task, task.describe_end(), task.status or 1)
        task.num_restarts += 1
        count = f"({task.num_restarts} of {self._options.max_restarts})"
        self._console.say(f"{task.name} {task.describe_end()}: starting it again {count}")
        self._console.note(task.name, "restarted", note=count)
        self._start(task)

    def _stop(self) -> list[str]:
        """Stop the run in order, and return how to go on."""
        if self._received != signal.SIGQUIT:
            limit = f"within {self._options.stop_timeout_secs:g} s"
            self._console.say(f"stopping all tasks {limit}, and the chief saves first; Ctrl-\\ ends them at once")
        self._end_all()
        if all(task.status == 0 for task in self._tasks.values()):
            self._received = None  # it came when the run had ended
            return describe_what_is_next(self._options, self._predicts)
        if self._chief.status == 128 + signal.SIGKILL:
            self._console.say("the chief was killed before it could save: the steps since the last checkpoint are lost")
        return [describe_how_to_go_on(self._options.folder)]

    def _read_last_lines(self, task: TaskProcess) -> list[str]:
        """Return the last lines of a task, from its log and, of the chief, from what a full disk did not take."""
        return [*task.read_last_lines(), *(self._console.lost_lines if task == self._chief else [])]

    def _end_all(self) -> None:
        """Stop the tasks that still run, which they do in their order, and kill what is left after that."""
        for task in self._running():
            task.process.terminate()
        kill_at = time.monotonic() + self._options.stop_timeout_secs + MARGIN_SECS
        while self._running():
            self._wait()
            self._console.refresh()
            if time.monotonic() > kill_at:
                self._kill_all()

    def _kill_all(self) -> None:
        for task in self._running():
            task.process.kill()


def _lock(folder: RunFolder) -> None:
    """Keep other launchers out, as long as this process or one of its tasks lives: logs and events would be mixed.

    Raises:
      BlockingIOError: another one keeps this one out.
    """
    try:
        fcntl.flock(os.open(folder.logs, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # some network file systems know no locks
        pass
