"""What the chief says: it goes into its log, and to those who look."""

import contextlib
import os


class Relay:
    """Takes what the chief says from a pipe: a log on a full disk must not cost people the result."""

    def __init__(self, log: str):
        """Append what comes to the file at this path."""
        self._log, self._half_line = log, b""
        self.readers: list[int] = []  # what `select` waits for: of each process of the chief that may still write

    def open(self) -> int:
        """Return the file descriptor into which the next process of the chief shall write."""
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        self.readers.append(reader)
        return writer

    def read(self) -> list[bytes]:
        """Return the new lines, with their ends; a line that is not whole comes later."""
        chunks = []
        for reader in list(self.readers):
            with contextlib.suppress(BlockingIOError):
                while chunk := os.read(reader, 1 << 16):
                    chunks.append(chunk)
                os.close(reader)  # nobody writes any more
                self.readers.remove(reader)
        if not chunks:
            return []
        with contextlib.suppress(OSError), open(self._log, "ab", buffering=0) as file:  # the disk is full
            file.write(b"".join(chunks))
        lines, newline, self._half_line = (self._half_line + b"".join(chunks)).rpartition(b"\n")
        return (lines + newline).splitlines(keepends=True)
