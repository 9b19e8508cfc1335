"""The processes of the tasks: forked from one that has imported TensorFlow."""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

IGNORED = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)  # a terminal sends them to all: the launcher decides
DEFAULT = (signal.SIGTERM, signal.SIGCHLD)


def run_in_child(run: Callable[[], None]) -> int:
    """Run something in a process of its own, and return its number; the status is that of a program that runs it."""
    if pid := os.fork():
        return pid
    _run(run)


def _run(run: Callable[[], None]) -> NoReturn:
    status = 1
    try:
        run()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(status)


def start_task(arguments: Sequence[str], output: int, run: Callable[[], None]) -> int:
    """Start a task, and return the number of its process.

    Args:
      arguments: its command line, which begins with the script.
      output: a file descriptor for what it says, which this process does not keep.
      run: does what the script does.
    """

    def become_task() -> None:
        signal.set_wakeup_fd(-1)
        for number in (*IGNORED, *DEFAULT):
            signal.signal(number, signal.SIG_IGN if number in IGNORED else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, descriptor in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, descriptor)
        os.close(nothing)
        os.close(output)
        sys.argv = list(arguments)
        run()

    # A signal that comes too early would be taken for one of this process.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*IGNORED, *DEFAULT))
    pid = run_in_child(become_task)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.close(output)
    return pid
