"""What this task does, as JSON lines in a file of its own, such as `events/worker-0.jsonl` in the train directory."""

import collections
import contextlib
import json
import os
import platform
import sys
import threading
import time

import psutil

EVENTS_FOLDER = "events"
MAX_PENDING = 1000  # events that wait for a folder, or for room on its disk

_path = ""  # of this task's file; empty: nothing is recorded
_pending: collections.deque[bytes] = collections.deque(maxlen=MAX_PENDING)
_writing = threading.Lock()


def start_recording(task: object, train_dir: str) -> None:
    """Let `record()` write from now on, unless `train_dir` is empty; the first event is the start of this process.

    Each task writes what it knows itself. The chief makes `train_dir`; a task that does not see it writes nothing. Nor
    does a full disk cost anything but events.
    """
    global _path
    if not train_dir:
        return
    _path = os.path.join(train_dir, EVENTS_FOLDER, f"{str(task).replace(' ', '-')}.jsonl")
    versions: dict[str, str] = {
        name: sys.modules[name].__version__ for name in ("tensorflow", "numpy") if name in sys.modules
    }
    versions |= {"Python": platform.python_version(), "system": platform.platform()}
    started_at = psutil.Process().create_time()
    record("starting", started_at, command=[sys.executable, *sys.argv], host=platform.node(), versions=versions)


def record(event: str, unix_secs: float | None = None, **values: object) -> None:
    """Append an event with its time, now by default, and its values, which JSON can express."""
    if not _path:
        return
    entry = {"unix_secs": round(unix_secs or time.time(), 3), "event": event, **values}
    folder = os.path.dirname(_path)
    with _writing, contextlib.suppress(OSError):
        _pending.append(f"{json.dumps(entry)}\n".encode())
        if os.path.isdir(os.path.dirname(folder)):
            os.makedirs(folder, exist_ok=True)
            with open(_path, "ab", buffering=0) as file:
                file.write(b"".join(_pending))
            _pending.clear()
