"""The lower end of a terminal, where a picture of the run is replaced by the next, with lines above it."""

import contextlib
import json
import math
import os
import re
import time
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from runtime.display.picture import make_bar, make_picture
from runtime.display.status import Event, RunStatus
from runtime.records.files import Tail
from runtime.records.folder import EVALUATOR, RunFolder

STDOUT, STDERR = 1, 2  # their file numbers
REDRAW_SECS = 1.0  # without news, for the clock

# Of a log line: level, time, thread, source file.
PREFIX = re.compile(r"^([IWEF])(\d{4}) ([\d:]+)[\d.]* +\d+ \S+\] ")
# What C++ code says below a fatal error, without a date, and gRPC's own lines about a call that has failed.
OF_LIBRARIES = re.compile(
    r"[IWE]0000 00:00:|WARNING: All log messages before absl::|Additional GRPC error information from remote target "
    r"|:UNKNOWN:Error received from peer "
)
STYLES = {"W": "yellow", "E": "red", "F": "red"}


def do_people_look() -> bool:
    """Return whether a picture has a terminal, which nothing else, such as a shell, uses, and people who want it."""
    is_wanted = not (os.environ.get("CI") or os.environ.get("NO_COLOR")) and os.environ.get("TERM", "dumb") != "dumb"
    if not (is_wanted and os.isatty(STDOUT) and os.isatty(STDERR)):
        return False
    try:
        return os.tcgetpgrp(STDOUT) == os.getpgrp()
    except OSError:  # it is not the terminal of this session
        return True


def shorten(line: str) -> str:
    """Return a log line with nothing but the time before what it says."""
    return PREFIX.sub(lambda match: "" if match[2] == "0000" else f"{match[3]} ", line)  # 0000: seconds since 1970


def make_line(line: str) -> Text | None:
    """Return a line as it is shown; None for what the picture tells."""
    match = PREFIX.match(line)
    text = line[match.end() :] if match else line
    if re.match(r"worker 0: global step \d+/\d+, ", text):
        return None
    return Text.assemble((shorten(line).removesuffix(text), "dim"), (text, STYLES.get(match[1], "") if match else ""))


class Screen:
    """Tells what to write to a terminal, so that it shows how far the tasks are.

    The cursor stays below the picture, at the start of a line. So the terminal is clean whenever the launcher ends.
    """

    def __init__(self, folder: RunFolder, names: Sequence[str], run: str):
        """Show tasks, such as "worker-0", from what they write into `folder` from now on; `run` has their events."""
        self._run, self._bar = RunStatus(names), make_bar()
        self._console = Console(highlight=False)
        self._widths: list[int] = []  # of the rows of the last picture
        self._drawn_at = 0.0
        self._tails = {Tail(folder.events_of(run, name)): name for name in (*names, EVALUATOR)}

    def note(self, name: str, event: str, **values: object) -> None:
        """Take in that a task has "ended", or was "restarted": one that is killed cannot say so itself."""
        self._read_news()  # its last words came before
        self._run.tell(name, {"event": event, **values})

    def draw(self, lines: Sequence[str], is_last: bool = False) -> str:
        """Return what writes `lines` where the last picture is, and a new picture below, or "" if there is no news."""
        is_old = time.monotonic() > self._drawn_at + REDRAW_SECS
        if not (self._read_news() or lines or is_last or is_old):
            return ""
        self._drawn_at = time.monotonic()
        with self._console.capture() as above:
            for line in lines:
                if text := make_line(line):
                    self._console.print(text, soft_wrap=True)  # commands are copied from it
        width, most = self._console.width, self._console.height - 1
        with self._console.capture() as picture:
            self._console.print(make_picture(self._run, self._bar, most))
        rows = picture.get().splitlines(keepends=True)[:most]
        # Where people have made the window narrower, the terminal has wrapped the rows.
        height = min(sum(max(1, math.ceil(old_width / width)) for old_width in self._widths), most)
        up = f"\x1b[{height}A" if height else ""
        # Erased row by row: a terminal whose first row is the picture's would keep what is erased in one go.
        erase = f"\r{up}" + "\x1b[2K\n" * height + up
        self._widths = [Text.from_ansi(row).cell_len for row in rows]
        return f"{erase}{above.get()}{''.join(rows)}"

    def _read_news(self) -> bool:
        news: list[tuple[str, Event]] = []
        for tail, name in self._tails.items():
            for line in tail.read():
                with contextlib.suppress(ValueError):  # a task that was killed may have left half a line
                    news.append((name, json.loads(line)))
        for name, event in sorted(news, key=lambda item: item[1]["unix_secs"]):
            self._run.tell(name, event)
        return bool(news)
