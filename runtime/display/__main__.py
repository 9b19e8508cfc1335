"""Draw how far a run is on the terminal: python -m runtime.display TRAIN_DIR ps-0 worker-0 worker-1 <SAID.

It follows what the tasks write into TRAIN_DIR, and shows the lines of SAID above. Of these it leaves the last, which
tell the result, unread: the launcher shows what is unread when the display has ended.
"""

import contextlib
import json
import os
import re
import select
import signal
import sys
import time
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from runtime.display.picture import make_picture
from runtime.display.status import Event, RunStatus
from runtime.events import EVENTS_FOLDER

POLL_SECS = 0.25
REDRAW_SECS = 1.0  # without news, for the clock

PREFIX = re.compile(r"^([IWEF])(\d{4}) [\d:.]+ +\d+ \S+\] ")  # of a log line: level, date, time, thread, source file
LAST_LINES = re.compile(rb"worker 0: finished at global step|^test accuracy ")
STYLES = {"W": "yellow", "E": "red", "F": "red"}


class Tail:
    """What is appended to a file."""

    def __init__(self, path: str):
        """Begin at the end that the file has now; it need not be there yet."""
        self._path = path
        self._position = os.path.getsize(path) if os.path.exists(path) else 0

    def read(self) -> Iterator[Event]:
        """Yield the new lines, as JSON; a task that was killed may have left half a line."""
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
            file.seek(self._position)
            lines, newline, _ = file.read().rpartition(b"\n")
            self._position += len(lines + newline)
            for line in lines.splitlines():
                with contextlib.suppress(ValueError):
                    yield json.loads(line)


def read_said() -> list[str]:
    """Return the new lines on standard input, but leave the last lines of the run, and half a line, unread.

    The launcher reads on from the same position in that file.
    """
    chunk = os.read(sys.stdin.fileno(), 1 << 20)
    taken = []
    for line in chunk.splitlines(keepends=True):
        if LAST_LINES.search(line) or not line.endswith(b"\n"):
            break
        taken.append(line)
    os.lseek(sys.stdin.fileno(), len(b"".join(taken)) - len(chunk), os.SEEK_CUR)
    return [line.decode(errors="replace").rstrip() for line in taken]


def make_line(line: str) -> Text | None:
    """Return a line as it is shown; None for what the picture tells, and what TensorFlow's C++ code says of itself."""
    match = PREFIX.match(line)
    text = line[match.end() :] if match else line
    is_of_tensorflow = (match and match[2] == "0000") or text.startswith("WARNING: All log messages before absl::")
    if is_of_tensorflow or re.match(r"worker 0: global step \d+/\d+, ", text):
        return None
    return Text(text, STYLES.get(match[1], "") if match else "")


class Screen:
    """The lower end of a terminal, where the last picture is replaced by the next.

    The cursor stays below it, at the start of a line. So the terminal is clean whenever this process ends.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._height = 0  # of the last picture

    def draw(self, lines: list[Text], run: RunStatus) -> None:
        """Write lines where the last picture is, and a new picture below them."""
        with self._console.capture() as above:
            for line in lines:
                self._console.print(line)
        with self._console.capture() as picture:
            self._console.print(make_picture(run, time.time()))
        rows = picture.get().splitlines(keepends=True)
        most = self._console.height - 1
        if len(rows) > most:
            rows[most - 1 :] = [f"and {len(rows) - most + 1} more tasks\n"]
        up = f"\x1b[{self._height}A" if self._height else ""
        sys.stderr.write(f"\r{up}\x1b[J{above.get()}{''.join(rows)}")
        sys.stderr.flush()
        self._height = len(rows)


def is_in_foreground() -> bool:
    """Whether nothing else, such as a shell, uses the terminal."""
    try:
        return os.tcgetpgrp(sys.stderr.fileno()) == os.getpgrp()
    except OSError:  # it is not the terminal of this session
        return True


def main() -> None:
    """Draw until SIGTERM comes, the launcher is gone, or the terminal is not ours any more."""
    train_dir, *names = sys.argv[1:]
    wake, alarm = os.pipe()
    os.set_blocking(alarm, False)
    signal.set_wakeup_fd(alarm)
    signal.signal(signal.SIGTERM, lambda *_: None)
    launcher, run, screen = os.getppid(), RunStatus(names), Screen()
    tails = {name: Tail(os.path.join(train_dir, EVENTS_FOLDER, f"{name}.jsonl")) for name in names}
    evaluations = Tail(os.path.join(train_dir, "eval.jsonl"))
    is_over, drawn_at = False, 0.0
    while not is_over and os.getppid() == launcher and is_in_foreground():
        is_over = bool(select.select([wake], [], [], POLL_SECS)[0])
        said = read_said()
        news = [(event["unix_secs"], name, event) for name, tail in tails.items() for event in tail.read()]
        for _, name, event in sorted(news, key=lambda item: item[0]):
            run.tell(name, event)
        for line in said:
            run.hear(line)
        for entry in evaluations.read():
            run.evaluate(entry)
            news.append((entry["unix_secs"], "", entry))
        if said or news or is_over or time.monotonic() > drawn_at + REDRAW_SECS:
            screen.draw([text for line in said if (text := make_line(line))], run)
            drawn_at = time.monotonic()


if __name__ == "__main__":
    with contextlib.suppress(OSError):  # the terminal is closed
        main()
