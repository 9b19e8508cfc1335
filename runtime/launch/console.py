"""What the launcher shows: plain lines or, on a terminal, lines above a picture of how far the run is."""

import contextlib
import os
import re
import sys
from collections.abc import Sequence
from typing import TextIO

from runtime import output
from runtime.display.screen import Screen, do_people_look, shorten
from runtime.display.tail import Tail
from runtime.folder import RunFolder
from runtime.launch.options import PROGRAM

RESULT = re.compile(rb"(test accuracy .*)")


class Chief:
    """What the chief says, from a pipe: a log on a full disk must not cost people the result."""

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
        content = b""
        for reader in list(self.readers):
            with contextlib.suppress(BlockingIOError):
                while chunk := os.read(reader, 1 << 16):
                    content += chunk
                os.close(reader)  # nobody writes any more
                self.readers.remove(reader)
        if not content:
            return []
        with contextlib.suppress(OSError), open(self._log, "ab", buffering=0) as file:  # the disk is full
            file.write(content)
        lines, newline, self._half_line = (self._half_line + content).rpartition(b"\n")
        return (lines + newline).splitlines(keepends=True)


class Console:
    """Shows what the launcher says and the chief logs and, if people look, what each task does."""

    def __init__(self, folder: RunFolder, names: Sequence[str]):
        """Show tasks, such as "worker-0", from what they write into `folder` from now on."""
        output.write_in_background()
        self.chief = Chief(folder.log_of("worker 0"))
        self._board = Tail(folder.log_of("tensorboard"))
        self._last_lines: list[bytes] = []  # they come below the picture, the result first
        self._screen = Screen(folder, names) if do_people_look() else None

    def say(self, line: str, is_last: bool = False) -> None:
        """Show a line of the launcher itself, or one of the last lines, below everything."""
        if is_last:
            self._last_lines.append(f"{line}\n".encode(errors="surrogateescape"))
        else:
            self._show([f"{PROGRAM}: {line}\n".encode(errors="surrogateescape")])

    def note(self, name: str, event: str, **values: object) -> None:
        """Show an event of a task that it cannot tell itself: see `Screen.note()`."""
        if self._screen:
            self._screen.note(name, event, **values)

    def refresh(self) -> None:
        """Show what the tasks have written since the last time."""
        if self._screen and not self._screen.is_ours():  # the run was sent into the background
            self._screen = None
        of_board = [line for line in self._board.read() if line.startswith(b"TensorBoard ")]
        self._show([*of_board, *self.chief.read()])

    def close(self, error: str = "") -> None:
        """Show the last lines below the last picture, and an error on standard error."""
        self.refresh()
        self._draw([], is_last=True)
        self._screen = None
        _write(sys.stdout, b"".join(self._last_lines))
        lines = error.encode(errors="surrogateescape").splitlines(keepends=True)
        _write(sys.stderr, b"".join(map(shorten, lines) if os.isatty(2) else lines))
        output.wait_until_written()

    def _show(self, lines: Sequence[bytes]) -> None:
        if not self._screen or not os.isatty(1):
            _write(sys.stdout, b"".join(map(shorten, lines) if os.isatty(1) else lines))
            lines = []
        above: list[bytes] = []
        for line in lines:
            if self._last_lines or RESULT.match(line):
                self._last_lines.append(RESULT.sub(b"\x1b[1;32m\\1\x1b[0m", shorten(line)))
            else:
                above.append(line)
        self._draw(above)

    def _draw(self, lines: Sequence[bytes], is_last: bool = False) -> None:
        if self._screen:
            try:
                text = self._screen.draw(lines, is_last)
            except Exception as error:  # whatever it is: the run goes on, with plain lines
                self._screen = None
                text = f"{PROGRAM}: the display has failed: {error!r}\n{b''.join(lines).decode(errors='replace')}"
            _write(sys.stderr, text.encode())


def _write(stream: TextIO | None, text: bytes) -> None:
    if text and stream:
        stream.buffer.write(text)
