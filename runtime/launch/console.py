"""What the launcher shows: plain lines or, on a terminal, lines above a picture of how far the run is."""

import os
import queue
import re
import threading
import time
from collections.abc import Sequence

from runtime.display.screen import Screen, do_people_look
from runtime.display.tail import Tail
from runtime.launch.options import PROGRAM
from runtime.launch.relay import Relay

CLOSING_SECS = 1.0  # how long the end waits for who reads what was written
MAX_PENDING = 10000  # texts that nobody has read yet; what comes after them is dropped
LAST_LINES = re.compile(rb"worker 0: finished at global step|^test accuracy ")


class Outlet:
    """Writes from a thread of its own: if nobody reads what is written, nothing else waits."""

    def __init__(self) -> None:
        self._pending: queue.Queue[tuple[int, bytes]] = queue.Queue(MAX_PENDING)
        threading.Thread(target=self._write, name="outlet", daemon=True).start()

    def write(self, descriptor: int, text: bytes) -> None:
        """Write a text to a file descriptor some time, unless too much is pending."""
        if text and not self._pending.full():
            self._pending.put((descriptor, text))

    def close(self) -> None:
        """Wait until everything is written, or for `CLOSING_SECS`."""
        deadline = time.monotonic() + CLOSING_SECS
        while self._pending.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.01)

    def _write(self) -> None:
        while True:
            descriptor, text = self._pending.get()
            try:
                while text:
                    text = text[os.write(descriptor, text) :]
            except OSError:  # who has read is gone, or the disk is full
                pass
            self._pending.task_done()


class Console:
    """Shows what the launcher says and the chief logs and, if people look, what each task does."""

    def __init__(self, train_dir: str, names: Sequence[str]):
        """Show tasks, such as "worker-0", from what they write into `train_dir` from now on."""
        self._outlet = Outlet()
        self.chief = Relay(os.path.join(train_dir, "logs", "worker-0.log"))
        self._board = Tail(os.path.join(train_dir, "logs", "tensorboard.log"))
        self._last_lines: list[bytes] = []  # they come below the picture
        self._screen = Screen(train_dir, names) if do_people_look() else None

    def say(self, line: str, is_last: bool = False) -> None:
        """Show a line of the launcher itself, below everything if it is the last one."""
        text = f"{PROGRAM}: {line}\n".encode(errors="surrogateescape")
        if is_last:
            self._last_lines.append(text)
        else:
            self._show([text])

    def note_end(self, name: str, status: int) -> None:
        """Show that a task has ended."""
        if self._screen:
            self._screen.note_end(name, status)

    def note_restart(self, name: str, note: str) -> None:
        """Show that a task is started again."""
        if self._screen:
            self._screen.note_restart(name, note)

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
        self._outlet.write(1, b"".join(self._last_lines))
        self._outlet.write(2, error.encode(errors="surrogateescape"))
        self._outlet.close()

    def _show(self, lines: Sequence[bytes]) -> None:
        if not self._screen or not os.isatty(1):
            self._outlet.write(1, b"".join(lines))
            lines = []
        for number, line in enumerate(lines):
            if self._last_lines or LAST_LINES.search(line):
                self._last_lines += lines[number:]
                lines = lines[:number]
                break
        self._draw(lines)

    def _draw(self, lines: Sequence[bytes], is_last: bool = False) -> None:
        if self._screen:
            try:
                text = self._screen.draw(lines, is_last)
            except Exception as error:  # whatever it is: the run goes on, with plain lines
                self._screen = None
                text = f"{PROGRAM}: the display has failed: {error!r}\n{b''.join(lines).decode(errors='replace')}"
            self._outlet.write(2, text.encode())
