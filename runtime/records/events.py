"""What this task does, as JSON lines in a file of its own: `events/RUN/worker-0.jsonl` in the train directory."""

import collections
import contextlib
import fcntl
import glob
import json
import os
import platform
import queue
import sys
import threading
import time
from typing import IO, Any

import psutil

from runtime.records.files import append_lines
from runtime.records.folder import RunFolder

MAX_MEMORY_SECS = 60.0  # of an NFS client, by default, for a name that was not there
WRITING_SECS = 1.0  # how long to wait at most until an event is written, where that matters
MAX_PENDING = 1000  # events that wait for a folder, or for room on its disk

# What turns the clock of all processes of a host that is never set into seconds since 1970.
EPOCH_SECS = time.time() - time.monotonic()

_recorder: "_Recorder | None" = None  # of this task; None: nothing is recorded
_locks: list[IO[str]] = []  # never closed


def start_recording(task: object, folder: RunFolder) -> None:
    """Let `record()` write from now on, if `folder` is given; the first event is the start of this process.

    Each task writes what it knows itself. The chief makes the folder; a task that does not see it writes nothing. On a
    full disk, up to `MAX_PENDING` events wait for room.
    """
    global _recorder
    if not folder.is_given:
        return
    _recorder = _Recorder(task, folder)
    versions: dict[str, str] = {
        name: sys.modules[name].__version__ for name in ("tensorflow", "numpy") if name in sys.modules
    }
    versions |= {"Python": platform.python_version(), "system": platform.platform()}
    started_at = psutil.Process().create_time()
    record("starting", started_at, command=[sys.executable, *sys.argv], host=platform.node(), versions=versions)


def record(event: str, unix_secs: float | None = None, **values: object) -> threading.Event:
    """Append an event with its time, now by default, and its values, which JSON can express.

    Returns:
      What is set once it was written, as far as it can be.
    """
    entry = {"unix_secs": round(unix_secs or EPOCH_SECS + time.monotonic(), 3), "event": event, **values}
    was_tried = threading.Event()
    if _recorder:
        _recorder.entries.put((f"{json.dumps(entry)}\n".encode(), was_tried))
    else:
        was_tried.set()
    return was_tried


def join_run(folder: RunFolder) -> str:
    """Return the folder for the events of the run that goes on here, which this process is a part of from now on.

    All its tasks, and its launcher, share a lock. A process that finds it free begins the next run. On a file system
    without locks, all runs of a train directory share one folder.

    Raises:
      OSError: the folder cannot be made.
    """
    os.makedirs(folder.events, exist_ok=True)
    lock = open(os.path.join(folder.events, "lock"), "a+")  # an NFS client shares only what may be read
    is_first = True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        is_first = not folder.runs
    if is_first:
        os.makedirs(folder.run(max(folder.runs, default=0) + 1), exist_ok=True)
    with contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_SH)  # waits until another one has made that folder
    _locks.append(lock)
    return folder.run(max(folder.runs))


class _Recorder:
    """Writes the events in a thread of its own: a file server that does not answer must not keep a task waiting."""

    def __init__(self, task: object, folder: RunFolder):
        self.entries: queue.SimpleQueue[tuple[bytes, threading.Event]] = queue.SimpleQueue()
        self._task, self._folder, self._started_at = task, folder, time.monotonic()
        threading.Thread(target=self._write, name="write_events", daemon=True).start()

    def _write(self) -> None:
        run = ""  # the folder of the run, once this task has seen the train directory
        pending: collections.deque[bytes] = collections.deque(maxlen=MAX_PENDING)
        while True:
            line, was_tried = self.entries.get()
            pending.append(line)
            with contextlib.suppress(OSError):
                if not run and self._is_folder_there():
                    run = join_run(self._folder)
                if run and os.path.isdir(self._folder.path):  # it may have been removed
                    os.makedirs(run, exist_ok=True)
                    append_lines(self._folder.events_of(run, self._task), pending)
            was_tried.set()

    def _is_folder_there(self) -> bool:
        """Return whether the train directory is there, by a look at the folder around it.

        A client of NFS remembers for up to a minute that a name was not there. A ps that had looked for the folder
        before the chief made it would then see no checkpoint in it. Where that look does not show it, as some that are
        mounted when they are used, it is found after that minute.
        """
        path = self._folder.path
        around, name = os.path.split(path)
        is_late = time.monotonic() > self._started_at + MAX_MEMORY_SECS
        with contextlib.suppress(OSError):
            return (is_late or name in os.listdir(around)) and os.path.isdir(path)
        return False


def read_run(folder: RunFolder, having: str = "training") -> list[dict[str, Any]]:
    """Return the events of the last run `having` one of that kind, or of the last; sorted by time, each `by` a task."""
    last: list[dict[str, Any]] = []
    for number in sorted(folder.runs, reverse=True):
        run = []
        for path in glob.glob(f"{glob.escape(folder.run(number))}/*.jsonl"):
            task = os.path.basename(path).removesuffix(".jsonl").replace("-", " ")
            shift_secs = last_secs = 0.0  # where the clock was set back before a task was started again, it goes on
            for event in read_lines(path):
                shift_secs = max(shift_secs, last_secs - event["unix_secs"])
                last_secs = event["unix_secs"] + shift_secs
                run.append({**event, "unix_secs": last_secs, "by": task})
        run.sort(key=lambda event: event["unix_secs"])
        if any(event["event"] == having for event in run):
            return run
        last = last or run
    return last


def read_lines(path: str) -> list[dict[str, Any]]:
    """Return a log's JSON objects; skip malformed lines, such as a truncated one."""
    entries, lines = [], list[str]()
    with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8", errors="replace") as file:
        lines = file.readlines()
    for line in lines:
        with contextlib.suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict) and isinstance(entry.get("unix_secs"), float | int):
                entries.append(entry)
    return entries
