"""This process: the priority of its session, how many files it may open, and its end."""

import contextlib
import os
import resource
import sys
from typing import NoReturn

from runtime import events, output

AUTOGROUP = "/proc/self/autogroup"  # of the scheduler; a session, such as a terminal's, is one group


def set_session_niceness(niceness: int) -> None:
    """Set how much the session of this process yields to other sessions, if a terminal started this process.

    Linux shares the processors among sessions before it looks at the niceness of threads. Elsewhere, and in a session
    that no terminal shows, this does nothing.
    """
    with contextlib.suppress(OSError, ValueError):
        if os.isatty(sys.stdin.fileno()):
            with open(AUTOGROUP, "w") as file:
                file.write(str(niceness))


def allow_many_files() -> None:
    """Let this process open as many files as the system allows; each connection counts as one."""
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # some systems name no limit, and have one
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


def end_process(status: int, message: str = "") -> NoReturn:
    """End this process at once, with `message`, if given, as one line on standard error.

    At once, since neither a server nor a session in use can be stopped. Neither a log that nobody reads nor a train
    directory that does not answer must keep the process alive.
    """
    was_recorded = events.record("ended", status=status, message=message)
    if message:
        print(f"error: {message}", file=sys.stderr)
    was_recorded.wait(events.WRITING_SECS)
    output.wait_until_written()
    set_session_niceness(0)  # the terminal is the user's again
    os._exit(status)
