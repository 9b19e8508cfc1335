"""This process: how many files it may open, and its end."""

import contextlib
import ctypes
import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from runtime.process import output
from runtime.records import events

_PR_SET_PDEATHSIG = 1  # as Linux numbers it
_libc = ctypes.CDLL(None)
STOP_SECS = 25.0  # how long a task may take to stop in order, by default; Kubernetes and Slurm kill after 30 s


def allow_many_files() -> None:
    """Let this process open as many files as the system allows; each connection counts as one."""
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # some systems name no limit, and have one
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


def end_with_parent() -> None:
    """Let SIGTERM end this process when its parent ends, in whatever way: strictly, the thread that forked it."""
    with contextlib.suppress(AttributeError):  # only Linux tells
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def end_process(
    status: int, message: str = "", tell: Callable[[str], None] | None = None, is_error: bool = True
) -> NoReturn:
    """End this process at once, with `message`, if given, as one line on standard error; `tell` passes it on.

    At once, since neither a server nor a session in use can be stopped. Neither a log without a reader nor a train
    directory that does not answer must keep the process alive. Only a result waits longer for its reader.
    """
    events.record("ended", status=status, message=message)
    if unwritten := events.wait_until_written():
        print(unwritten, file=sys.stderr)
    if message:
        print(f"{'error: ' * is_error}{message}", file=sys.stderr)
    if tell:
        tell(message)
    output.wait_until_written(has_result=status == 0)
    for child in multiprocessing.active_children():  # as at the end of any Python program
        child.terminate()
    os._exit(status)
