"""Files that appear whole, or not at all, and files whose lines do."""

import collections
import contextlib
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
