"""The recorder, which writes what a run leaves for people, such as its events: `events/RUN/worker-0.jsonl`."""

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
from collections.abc import Callable
from typing import IO, Any

import psutil
from absl import logging

from runtime.records.files import append_lines, is_at
from runtime.records.folder import EVALUATOR, RunFolder

MAX_MEMORY_SECS = 60.0  # of an NFS client, by default, for a name that was not there
WRITING_SECS = 2.0  # how long the end of a process waits until all is written
MAX_PENDING = 1000  # that wait for a file server; or, of lines, for a folder, or for room on its disk

Work = bytes | Callable[[RunFolder, object], None]  # a line for the events, or what writes something else

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


def record(event: str, unix_secs: float | None = None, **values: object) -> None:
    """Append an event with its time, now by default, and its values, which JSON can express."""
    entry = {"unix_secs": round(unix_secs or EPOCH_SECS + time.monotonic(), 3), "event": event, **values}
    write_later(f"{json.dumps(entry)}\n".encode())


def write_later(work: Work) -> None:
    """Let the recorder, if there is one, append a line, or call something with the train directory and this task.

    A line waits until the train directory is there, with room in it. A call is lost without.
    """
    if _recorder:
        try:
            _recorder.work.put_nowait(work)
        except queue.Full:
            _recorder.num_lost += 1


def wait_until_written(secs: float = WRITING_SECS) -> str:
    """Wait until all that was recorded is written, `secs` at most; return a line for people if some of it is not."""
    if not _recorder:
        return ""
    work = _recorder.work
    with work.all_tasks_done:
        work.all_tasks_done.wait_for(lambda: not work.unfinished_tasks, secs)
    num_lines = len(_recorder.lines) if _recorder.path or _recorder.failure else 0
    if not num_lines and any(b'"event": "finished"' in line for line in _recorder.lines):  # the chief has made it
        return (
            f"this task never saw --train_dir {_recorder.folder.path}, so it recorded nothing there: share the folder"
        )
    num_missing = _recorder.num_lost + work.unfinished_tasks + num_lines
    what = f"of the records of this task are missing{f' ({_recorder.failure})' if _recorder.failure else ''}"
    remedy = f"check that {_recorder.folder.path} responds, has space, and lets this user write"
    return f"{num_missing} {what}: {remedy}" if num_missing else ""


def has_recorded(event: str, **values: object) -> bool:
    """Return whether this task has recorded such an event in this run before."""
    path = _recorder.path if _recorder else ""
    return any(entry | {"event": event, **values} == entry for entry in read_lines(path))


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


def _is_of_others(folder: RunFolder) -> bool:
    """Return whether the folder is one in which this process has joined no run, though others have."""
    with contextlib.suppress(OSError):  # none has
        return bool(_locks) and not is_at(os.path.join(folder.events, "lock"), _locks[-1].fileno())
    return False


class _Recorder:
    """Writes in a thread of its own: a file server that does not answer must not keep a task waiting."""

    def __init__(self, task: object, folder: RunFolder):
        self.folder = folder
        self.path = ""  # of the file for the events, once this task has seen the train directory
        self.work: queue.Queue[Work] = queue.Queue(MAX_PENDING)
        self.num_lost = 0  # for which there was no room in it, or on the disk
        self.failure = ""  # why something could not be written
        self._told = set[str]()  # such reasons, each once
        self.lines: collections.deque[bytes] = collections.deque(maxlen=MAX_PENDING)  # not written yet
        self._task, self._started_at = task, time.monotonic()
        threading.Thread(target=self._keep_writing, name="record", daemon=True).start()

    def _keep_writing(self) -> None:
        while True:
            work = self.work.get()
            if isinstance(work, bytes):
                self.lines.append(work)
            try:
                if not isinstance(work, bytes):
                    if self._is_folder_there():
                        work(self.folder, self._task)
                elif self._has_found_run():
                    append_lines(self.path, self.lines)
            except OSError as error:
                self.num_lost += not isinstance(work, bytes)  # a line stays in `lines`
                failure = f"{error.filename}: {error.strerror}" if error.filename else str(error)
                if failure not in self._told:
                    logging.warning("%s cannot record its events: %s", self._task, failure)
                self._told.add(failure)
                self.failure = failure
            self.work.task_done()

    def _has_found_run(self) -> bool:
        folder, is_evaluator = self.folder, str(self._task) == EVALUATOR
        if not self.path and not self._is_folder_there():
            return False
        if not self.path or is_evaluator:  # which may see several runs, and is part of none
            run = folder.run(max(folder.runs, default=1)) if is_evaluator else join_run(folder)
            self.path = folder.events_of(run, self._task)
        # It may have been removed, or be that of another run now.
        if is_there := os.path.isdir(folder.path) and not _is_of_others(folder):
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
        return is_there

    def _is_folder_there(self) -> bool:
        """Return whether the train directory is there, by a look at the folder around it.

        A client of NFS remembers for up to a minute that a name was not there. A ps that had looked for the folder
        before the chief made it would then see no checkpoint in it. Where that look does not show it, as some that are
        mounted when they are used, it is found after that minute.
        """
        path = self.folder.path
        around, name = os.path.split(path)
        is_late = time.monotonic() > self._started_at + MAX_MEMORY_SECS
        with contextlib.suppress(OSError):
            is_there = (is_late or name in os.listdir(around)) and os.path.isdir(path)
            return is_there and not _is_of_others(self.folder)
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
    """Return the JSON objects in a file that have a time; skip malformed lines, such as a truncated one."""
    entries, lines = [], list[str]()
    with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8", errors="replace") as file:
        lines = file.readlines()
    for line in lines:
        with contextlib.suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict) and isinstance(entry.get("unix_secs"), float | int):
                entries.append(entry)
    return entries
