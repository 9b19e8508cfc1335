"""Atomic replacement of files, appending whole lines, and following a file that grows."""

import collections
import contextlib
import io
import json
import os
from typing import Any


def replace_file(path: str, content: bytes) -> None:
    """Write a file through a temporary one beside it; a reader sees the old content or the new one.

    Raises:
      OSError: it cannot be written. What was written of it is removed, since it may fill the disk.
    """
    temporary = path + ".tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise


def read_json(path: str) -> dict[str, Any]:
    """Return the JSON object in a file, or {} if there is none that can be read."""
    with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
        content = json.load(file)
        return content if isinstance(content, dict) else {}
    return {}


def append_lines(path: str, lines: collections.deque[bytes]) -> None:
    """Append lines to a file, and take those from `lines` that are written.

    Each is written with one call of the system, so that two tasks may append to the same file. Where a full disk or the
    end of its writer has cut a line, the next one begins below it.

    Raises:
      OSError: those that are still in `lines` could not be written.
    """
    with open(path, "ab+", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        is_whole = file.read(1) in (b"", b"\n")
        while lines:
            line = lines[0] if is_whole else b"\n" + lines[0]
            num_written = file.write(line)
            is_whole = num_written == len(line)
            if num_written >= len(line) - 1:  # who comes next adds the newline that is missing
                lines.popleft()


def is_at(path: str, descriptor: int) -> bool:
    """Return whether an open file is the one that is at a path now.

    Raises:
      OSError: none is there, or its file server fails.
    """
    return os.path.samestat(os.stat(path), os.fstat(descriptor))


class Tail:
    """The lines that come to a file after what it has now, and to what takes its place, unless that is not followed."""

    def __init__(self, path: str, follows: bool = True):
        """Begin at the end of the file, which need not be there yet."""
        self._path, self._follows = path, follows
        self._file = self._open()
        self.skip_half_line()

    def _open(self) -> io.FileIO | None:
        with contextlib.suppress(OSError):
            return open(self._path, "rb", buffering=0)
        return None

    def read(self) -> list[str]:
        """Return the lines that are new since the last call; a line that is not whole comes later."""
        lines = self._read_on()
        with contextlib.suppress(OSError):  # there is none yet, or none any more
            if not self._file or (self._follows and not is_at(self._path, self._file.fileno())):
                self._file = self._open()
                lines += self._read_on()
        return lines

    def _read_on(self) -> list[str]:
        if not self._file:
            return []
        *lines, half_line = self._file.readall().split(b"\n")
        self._file.seek(-len(half_line), os.SEEK_CUR)
        return [line.decode(errors="replace") for line in lines]

    def skip_half_line(self) -> None:
        """Leave out what is there, such as the start of a line that is not whole."""
        if self._file:
            self._file.seek(0, os.SEEK_END)
