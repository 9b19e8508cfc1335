"""What this process says on standard output and error: a thread writes it, since there may be no reader."""

import collections
import contextlib
import io
import logging as python_logging
import os
import stat
import sys
import threading
from collections.abc import Set
from multiprocessing.connection import Connection
from typing import Any

from absl import logging

MAX_LINES = 1000  # that wait until they can be written
WRITING_SECS = 1.0  # how long the end of the process waits for them
READER_SECS = 600.0  # how long it waits for a reader of the result: Ctrl-S may have stopped the terminal
STDOUT, STDERR = 1, 2  # their file numbers

_writer: "_Writer | None" = None  # None: who says something writes it, as in a child that this process forks
reader_of_lost: Connection | None = None  # is sent the lines that cannot be written, since a disk is full


def write_in_background() -> None:
    """From now on, never let a caller that prints or logs wait for a reader: a thread writes the lines, in their order.

    A pipe without a reader becomes full, and so may a disk. Then lines are lost, the oldest first, and once there is
    room a line says how many. What TensorFlow's C++ code says is written at once, or lost.
    """
    global _writer
    _writer = _Writer()
    for name in ("stdout", "stderr"):
        if stream := getattr(sys, name):  # there is none if its file is closed
            with contextlib.suppress(OSError):
                stream.flush()  # what a user's file has printed while it was imported
            lines = _Lines(stream.fileno())
            setattr(sys, name, io.TextIOWrapper(lines, stream.encoding, "backslashreplace", line_buffering=True))
    handler = logging.get_absl_handler().python_handler
    handler.setStream(sys.stderr)
    do_people_look = bool(sys.stderr and sys.stderr.isatty())  # then they want no date, thread and source file
    brief = python_logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S")
    handler.setFormatter(brief if do_people_look else logging.PythonFormatter())  # a fork may change it


def _write_directly() -> None:
    """Let a child that was forked write by itself what it says: it has no thread that does."""
    global _writer
    _writer = None


os.register_at_fork(after_in_child=_write_directly)


def wait_until_written(has_result: bool = False) -> None:
    """Wait until everything is written: for `WRITING_SECS`, or `READER_SECS` for a result on standard output."""
    if _writer:
        _writer.wait({STDOUT, STDERR}, WRITING_SECS)
        if has_result:
            _writer.wait({STDOUT}, READER_SECS)


def _keep_from_waiting(file: int) -> int:
    """Never let a direct write to a file, by its number, wait; return another number, to which a write may wait.

    Only a pipe or a terminal makes a writer wait. A new way to it, which is this process's own, need not.
    """
    waiting = os.dup(file)
    with contextlib.suppress(OSError):  # there is no reader, or the system has no such path
        if stat.S_ISFIFO(os.fstat(file).st_mode) or os.isatty(file):
            own = os.open(f"/proc/self/fd/{file}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
            os.dup2(own, file)
            os.close(own)
    return waiting


class _Writer:
    """Writes lines to files, by their numbers, in a thread of its own."""

    def __init__(self) -> None:
        self._ways: dict[int, int] = {}  # to the standard files: others that may wait
        for file in (STDOUT, STDERR):
            with contextlib.suppress(OSError):  # it is closed
                self._ways[file] = _keep_from_waiting(file)
        self._lines: collections.deque[tuple[int, bytes]] = collections.deque(maxlen=MAX_LINES)
        self._num_lost = 0
        self._writes_to = 0  # the file number of the line that is being written
        self._is_cut = False  # the last line has no end
        self._changed = threading.Condition()
        threading.Thread(target=self._keep_writing, name="write_output", daemon=True).start()

    def add(self, file: int, line: bytes) -> None:
        with self._changed:
            self._num_lost += len(self._lines) == MAX_LINES
            self._lines.append((file, line))
            self._changed.notify_all()

    def wait(self, files: Set[int], secs: float) -> None:
        """Wait until the lines for some files are written."""
        with self._changed:
            self._changed.wait_for(lambda: files.isdisjoint([self._writes_to, *(f for f, _ in self._lines)]), secs)

    def _keep_writing(self) -> None:
        while True:
            with self._changed:
                self._writes_to = 0
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines)
                num_lost, self._num_lost = self._num_lost, 0
                file, line = self._lines.popleft()
                self._writes_to = file
            lost = f"lines lost here: {num_lost} (no reader, or no space)\n"
            if num_lost and not self._write(STDERR, lost.encode()):
                num_lost = 0
            error = self._write(file, line)
            if error and reader_of_lost:
                with contextlib.suppress(OSError):  # it has ended
                    reader_of_lost.send_bytes(line)
            elif error and file != STDERR:
                self.add(STDERR, f"standard output cannot be written ({error.strerror}): ".encode() + line)
            with self._changed:
                self._num_lost += num_lost + bool(error and (file == STDERR or reader_of_lost))

    def _write(self, file: int, line: bytes) -> OSError | None:
        """Write a line, below one that was cut, and return what prevents that."""
        rest = b"\n" * self._is_cut + line
        try:
            while rest:
                rest = rest[os.write(self._ways.get(file, file), rest) :]
                self._is_cut = bool(rest)
        except OSError as error:
            return error
        return None


class _Lines(io.FileIO):
    """A standard stream that leaves each line to the writer, if there is one."""

    def __init__(self, file: int):
        super().__init__(file, "w", closefd=False)

    def write(self, data: Any) -> int:
        if _writer:
            _writer.add(self.fileno(), bytes(data))
        else:
            super().write(data)
        return len(data)


def in_words(value: float) -> str:
    """Return a figure with four decimals or, if it is small, three significant digits."""
    return f"{value:.3g}" if 0 < abs(value) < 0.001 else f"{value:.4f}"
