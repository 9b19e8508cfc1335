"""What is appended to a file that others write."""

import contextlib
import os


class Tail:
    """The lines that come to a file after what it has now."""

    def __init__(self, path: str):
        """Begin at the end of the file, which need not be there yet."""
        self.path = path
        self.start = self._position = os.path.getsize(path) if os.path.exists(path) else 0  # in bytes

    def read(self) -> list[bytes]:
        """Return the lines that are new since the last call, with their ends; a line that is not whole comes later."""
        with contextlib.suppress(OSError), open(self.path, "rb") as file:
            file.seek(self._position)
            lines, newline, _ = file.read().rpartition(b"\n")
            self._position += len(lines + newline)
            return (lines + newline).splitlines(keepends=True)
        return []
