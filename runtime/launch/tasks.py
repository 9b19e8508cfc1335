"""The tasks of a cluster: each is a process that is forked from one which has imported TensorFlow."""

import contextlib
import multiprocessing
import os
import pathlib
import re
import signal
import sys
from collections.abc import Callable, Sequence

from runtime.process.end import end_with_parent
from runtime.records.files import Tail

IGNORED = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)  # a terminal sends them to all: the launcher decides
DEFAULT = (signal.SIGTERM, signal.SIGCHLD)
NUM_LAST_LINES, NUM_REASONS = 15, 3  # of a log, that tell why a task could not go on
OF_CPP = re.compile(r"[EF]0000 00:00:(?!.*cuInit)")  # an error that TensorFlow, or gRPC, tells of itself
KERNEL_COUNTS = pathlib.Path("/proc/vmstat")  # of the whole machine, with what it has done in its cgroups

fork = multiprocessing.get_context("fork")


class TaskProcess:
    """A task, and its process."""

    def __init__(self, name: str, log: str):
        """Make the task of a name such as "worker-0", which logs into the file at the path `log`."""
        self.name, self.log = name, log
        self.status: int | None = 1  # None while it runs; before that, as if it had failed
        self.num_restarts = 0
        self._tail = Tail(log, follows=False)
        self.process: multiprocessing.context.ForkProcess  # once it is started

    def start(self, arguments: Sequence[str], run: Callable[[], None]) -> None:
        """Start a process: `arguments` are its command line, and `run` does what the script does.

        Raises:
          OSError: its log cannot be written, or the system allows no further process.
        """
        self._num_oom_kills = count_oom_kills()
        try:
            log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError:
            if not self.num_restarts:
                raise
            log = os.open(os.devnull, os.O_WRONLY)  # its steps are worth more than its log
        self._tail = Tail(self.log, follows=False)  # without what earlier processes have left

        def become_task() -> None:
            for number in (*IGNORED, *DEFAULT):
                signal.signal(number, signal.SIG_IGN if number in IGNORED else signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            end_with_parent()
            with contextlib.suppress(OSError):  # for want of memory the kernel ends a task, which comes back, first
                pathlib.Path("/proc/self/oom_score_adj").write_text("500")
            multiprocessing.current_process().daemon = False  # it may have children of its own
            for source, descriptor in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
                os.dup2(source, descriptor)
            sys.argv = list(arguments)
            run()

        self.process = fork.Process(target=become_task, daemon=True)  # it is ended when a defect ends the launcher
        # A signal that comes too early would be taken for one of this process.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*IGNORED, *DEFAULT))
        try:
            self.process.start()
            self.status = None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(log)

    def has_just_ended(self) -> bool:
        """Return whether it has ended since this was asked last, and keep its status."""
        if self.status is not None or (code := self.process.exitcode) is None:
            return False
        self.status = code if code >= 0 else 128 - code
        return True

    def describe_end(self) -> str:
        """Return how it has ended: with which status, and what helps if the memory was probably too small."""
        if not self.status or not 128 < self.status <= 128 + signal.SIGRTMAX:
            return f"ended with status {self.status}"
        reason = f"signal {self.status - 128}"
        if self.status == 128 + signal.SIGKILL and count_oom_kills() > self._num_oom_kills:
            reason += (
                ", likely out of memory: the kernel has killed a process for that; lower --batch_size or --workers, or"
                " add ps tasks on other machines"
            )
        return f"ended with status {self.status} ({reason})"

    def read_last_lines(self) -> list[str]:
        """Return the last lines of what its last process has said."""
        lines = self._tail.read()
        # The reason for which C++ code has ended a process stands above a stack, or a list of flags.
        reasons = [line for line in lines[:-NUM_LAST_LINES] if OF_CPP.match(line)]
        return [*reasons[-NUM_REASONS:], *lines[-NUM_LAST_LINES:]]


def count_oom_kills() -> int:
    """Return how many processes the kernel has killed for want of memory; 0 where it does not say so."""
    with contextlib.suppress(OSError):
        if match := re.search(r"^oom_kill (\d+)$", KERNEL_COUNTS.read_text(), re.MULTILINE):
            return int(match[1])
    return 0
