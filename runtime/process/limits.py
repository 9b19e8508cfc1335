"""What the system lets a process have, and whether that is enough for TensorFlow."""

import contextlib
import os
import pathlib
import resource
import tempfile
from collections.abc import Iterator

import psutil

# Below it TensorFlow cannot start its threads, and some tasks would wait for ever. It uses far less memory.
MIN_ADDRESS_SPACE = 4 << 30  # bytes
THREADS_OF_TASK = 130  # on few processors
MIN_FILES = 128  # with fewer, TensorFlow or gRPC crashes; a reader of files has many open


def cgroups(root: pathlib.Path = pathlib.Path("/")) -> Iterator[pathlib.Path]:
    """Yield the folders of the cgroups that this process is in, its own and those around it, of both versions."""
    with contextlib.suppress(OSError):  # macOS has neither
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)  # version 2 names no controllers
            top = root / "sys/fs/cgroup" / controllers
            own = top / path.strip("/")  # in a container, it may be a path of the host: only the top is there
            yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(top))


def why_too_low(num_tasks: int = 1, num_others: int = 0, root: pathlib.Path = pathlib.Path("/")) -> str:
    """Return which limit of this process is too low, and what to do; "" if none is.

    TensorFlow needs a folder for temporary files, too, and a relative path one to start from.

    Args:
      num_tasks: that start now.
      num_others: that start beside them, or have started.
      root: of the files of the system.
    """
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if 0 <= address_space < MIN_ADDRESS_SPACE:  # -1: there is none
        needed = f"TensorFlow reserves at least {MIN_ADDRESS_SPACE >> 10}, though not as memory"
        return f"the address space limit, ulimit -v, is {address_space >> 10}: {needed}; raise it"
    max_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if 0 <= max_files < MIN_FILES:
        return f"the limit of open files, ulimit -Hn, is {max_files}: each task needs at least {MIN_FILES}; raise it"
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        return f"{error.strerror}: mount a tmpfs on /tmp, or set TMPDIR to a folder that can be written"
    try:
        os.getcwd()
    except FileNotFoundError:
        return "the current folder has been deleted: change to one that exists"
    for name, limit, num_used in _thread_limits(root):
        if limit - num_used < num_tasks * THREADS_OF_TASK or limit < (num_tasks + num_others) * THREADS_OF_TASK:
            needed = f"each task needs at least {THREADS_OF_TASK} threads"
            return f"{name}, is {limit}, of which {num_used} are used: {needed}; raise it, or run fewer tasks here"
    return ""


def _thread_limits(root: pathlib.Path) -> Iterator[tuple[str, int, int]]:
    """Yield what limits the threads of this process: what it is called, the limit, and how much of it is used."""
    limit, user = resource.getrlimit(resource.RLIMIT_NPROC)[0], os.geteuid()
    if limit >= 0 and user:  # root may start any number
        found = [process.info for process in psutil.process_iter(["uids", "num_threads"])]
        num_used = sum(of["num_threads"] or 0 for of in found if of["uids"] and of["uids"].real == user)
        yield "the thread limit of this user, ulimit -u", limit, num_used
    for folder in cgroups(root):
        with contextlib.suppress(OSError, ValueError):  # it has no limit, or that is "max"
            limit, num_used = (int((folder / f"pids.{name}").read_text()) for name in ("max", "current"))
            yield f"the thread limit of this cgroup, {folder}/pids.max", limit, num_used
