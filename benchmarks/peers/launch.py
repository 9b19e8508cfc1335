"""Runs the processes of a peer on this machine, and ends those that do not end by themselves."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

DEADLINE_SECS = 900.0  # for the whole run
GRACE_SECS = 10.0  # for processes that end by themselves, after the result is printed


class Child(NamedTuple):
    """A process of the running module with the same flags, and with flags or variables that tell it its role."""

    name: str
    flags: Sequence[str] = ()
    env: Mapping[str, str] = {}
    ends_itself: bool = True


def run(children: Sequence[Child]) -> list[str]:
    """Run `children` until the first, which measures, has ended; end the others, and return the last line of each.

    If one of them fails, the end of everyone's output is shown.

    Raises:
      SystemExit: one of them failed, or the deadline has passed.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # runs the `finally` below
    module = f"benchmarks.peers.{pathlib.Path(sys.argv[0]).stem}"
    with tempfile.TemporaryDirectory() as folder:
        outputs = [pathlib.Path(folder, f"{child.name} stdout") for child in children]
        errors = [pathlib.Path(folder, f"{child.name} stderr") for child in children]
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for child, output, error in zip(children, outputs, errors, strict=True):
                with open(output, "wb") as stdout, open(error, "wb") as stderr:
                    command = [sys.executable, "-m", module, *sys.argv[1:], *child.flags]
                    env = {**os.environ, **child.env}
                    processes.append(subprocess.Popen(command, stdout=stdout, stderr=stderr, env=env))
            problem = _wait(children, processes)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if problem:
            for log in [*outputs, *errors]:
                print(f"--- {log.name}, at its end:", *_lines(log)[-20:], sep="\n", file=sys.stderr)
            sys.exit(f"error: {problem}")
        return [(_lines(output) or [""])[-1] for output in outputs]


def _wait(children: Sequence[Child], processes: Sequence[subprocess.Popen[bytes]]) -> str:
    """Wait for the first process, and briefly for the others; return what went wrong, or an empty text."""
    deadline = time.monotonic() + DEADLINE_SECS
    has_result = False
    while any(process.poll() is None for child, process in zip(children, processes, strict=True) if child.ends_itself):
        if not has_result and processes[0].poll() == 0:
            has_result, deadline = True, time.monotonic() + GRACE_SECS
        if time.monotonic() > deadline:
            break
        for child, process in zip(children, processes, strict=True):
            if process.poll() and not has_result:
                return f"{child.name} ended with status {process.poll()}"
        time.sleep(0.05)
    if processes[0].poll() is None:
        return f"{children[0].name} has not ended after {DEADLINE_SECS:.0f} s"
    return f"{children[0].name} ended with status {processes[0].poll()}" if processes[0].poll() else ""


def _lines(log: pathlib.Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()
