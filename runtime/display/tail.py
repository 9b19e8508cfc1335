"""What is appended to a file that others write."""

import contextlib
import os


class Tail:
    """The lines that come to a file after what it has now."""

    def __init__(self, path: str):
        """Begin at the end of the file, which need not be there yet."""
        self._path = path
        self._position = os.path.getsize(path) if os.path.exists(path) else 0

    def read(self) -> list[str]:
        """Return the lines that are new since the last call; a line that is not whole comes later."""
        with contextlib.suppress(OSError), open(self._path, "rb") as file:
            file.seek(self._position)
            content = file.read()
            *lines, half_line = content.split(b"\n")
            self._position += len(content) - len(half_line)
            return [line.decode(errors="replace") for line in lines]
        return []

    def skip_half_line(self) -> None:
        """Leave out what is there of a line that is not whole."""
        with contextlib.suppress(OSError):
            self._position = os.path.getsize(self._path)
