"""What the launcher shows: plain lines or, on a terminal, lines above a picture of how far the run is."""

import collections
import contextlib
import multiprocessing
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from runtime.display.screen import OF_LIBRARIES, STDERR, STDOUT, Screen, do_people_look, shorten
from runtime.launch.options import PROGRAM, say
from runtime.launch.tasks import NUM_LAST_LINES
from runtime.process import output
from runtime.records.files import Tail
from runtime.records.folder import RunFolder

RESULT = re.compile(r"test [A-Za-z][\w ]* -?\d")  # begins the last line of the chief, whatever the first metric
ASKING_SECS = 10.0  # from one look at whether the file server of the logs answers to the next
BOARD = re.compile(r"TensorBoard \S+ at (\S+) ")


class Console:
    """Shows what the launcher says and the chief logs and, if people look, what each task does."""

    def __init__(self, folder: RunFolder, names: Sequence[str], run: str):
        """Show tasks, such as "worker-0", from what they write into `folder` from now on; `run` has their events."""
        output.write_in_background()
        threading.Thread(target=_watch, args=[folder.logs], daemon=True).start()
        self._log_of_chief, self._board = folder.log_of("worker 0"), Tail(folder.log_of("tensorboard"))
        self.follow_chief()
        # The result is shown though the disk of its log is full: the chief sends the lines that it cannot write.
        self._lost_lines, self.lost_lines_of_chief = multiprocessing.Pipe(duplex=False)
        self.lost_lines: collections.deque[str] = collections.deque(maxlen=NUM_LAST_LINES)
        self._result: list[str] = []  # this stands below the last picture
        self._screen = Screen(folder, names, run) if do_people_look() else None

    def follow_chief(self) -> None:
        """Show what the chief that starts now will log: the log of another run may take the place of the file."""
        self._chief = Tail(self._log_of_chief, follows=False)

    def say(self, line: str) -> None:
        """Show a line of the launcher itself."""
        self._show([f"{PROGRAM}: {line}"])

    def note(self, name: str, event: str, **values: object) -> None:
        """Show an event of a task that it cannot tell itself: see `Screen.note()`."""
        with self._outliving_display():
            if self._screen:
                self._screen.note(name, event, **values)

    def refresh(self, is_last: bool = False) -> None:
        """Show what the tasks have written since the last time."""
        if self._screen and not do_people_look():  # the run was sent into the background
            self._screen = None
        for address in filter(None, map(BOARD.match, self._board.read())):
            self.say(f"TensorBoard at {address[1]} until this run ends")
        # Where a line was cut, an empty one ends it.
        lines = [line for line in self._chief.read() if line and not OF_LIBRARIES.match(line)]
        while self._lost_lines.poll():
            self.lost_lines.append(self._lost_lines.recv_bytes().decode(errors="replace").rstrip("\n"))
            lines.append(self.lost_lines[-1])
            self._chief.skip_half_line()  # the disk may have had room for the start of this one
        self._show(lines, is_last)

    def close(self, last_lines: Sequence[str], error: str = "") -> None:
        """Show lines below the last picture and the result, and an error on standard error."""
        self.refresh(is_last=True)
        self._screen = None
        self._show([*self._result, *last_lines])
        if error:
            print("\n".join(map(shorten, error.split("\n"))) if os.isatty(STDERR) else error, file=sys.stderr)

    def _show(self, lines: Sequence[str], is_last: bool = False) -> None:
        if not self._screen:
            if lines:  # in one piece: the writer keeps a limited number
                print("\n".join([*(map(shorten, lines) if os.isatty(STDOUT) else lines), ""]), end="")
            return
        above: list[str] = []
        for line in lines:
            if RESULT.match(line):
                self._result.append(f"\x1b[1;32m{line}\x1b[0m")
            else:
                above.append(line)
        with self._outliving_display(above):
            print(self._screen.draw(above, is_last), end="")

    @contextlib.contextmanager
    def _outliving_display(self, lines: Sequence[str] = ()) -> Iterator[None]:
        """Let the run go on with plain lines, from `lines` on, whatever error the display has."""
        try:
            yield
        except Exception as error:
            self._screen = None
            print("\n".join([f"{PROGRAM}: the display has failed: {error!r}", *lines, ""]), end="")


def _watch(logs: str) -> None:
    """Say so, again and again, while the file server of the logs is away: what the tasks say cannot be shown then."""
    has_answered = threading.Event()

    def ask() -> None:
        while True:
            with contextlib.suppress(OSError):
                os.utime(logs)
            has_answered.set()
            time.sleep(ASKING_SECS)

    threading.Thread(target=ask, daemon=True).start()
    while True:
        if not has_answered.wait(2 * ASKING_SECS):
            say(f"still waiting for the logs of the tasks: check that {logs} responds")
        has_answered.clear()
