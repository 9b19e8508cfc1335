"""A terminal without a window: it runs a command, and keeps what a person would see."""

import codecs
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading

from rich.text import Text

# The control sequences that this terminal knows: colors, moving up, erasing a line, showing and hiding the cursor.
SEQUENCE = re.compile(r"\x1b\[(\??\d*(?:;\d+)*)([A-Za-z])")
# What tells programs that there is no terminal, or how wide it is.
OTHERS = ("CI", "NO_COLOR", "COLUMNS", "LINES")


class Terminal:
    """A command with a terminal of its own.

    `screen` is what its window shows and what has left it above, lines with their colors, and `history` what `screen`
    was after each output. What asks for more than its window has, such as moving above it, fails.
    """

    def __init__(self, command, columns=80, rows=24, env=None, **options):
        self.screen, self.row = [""], 0
        self._num_rows, self._top = rows, 0  # of the window: the cursor does not reach what is above it
        self.is_at_start = True  # of the line, whatever stands there
        self.is_cursor_shown = True
        self.history = []
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name not in OTHERS}
        environment |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", **(env or {})}
        # The first process of a session may take the terminal as its own, and so gets its Ctrl-C.
        own = (
            "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
        )
        streams = {"stdin": slave, "stdout": slave, "stderr": slave, **options}
        command = [sys.executable, "-c", own, *command]
        self._popen = subprocess.Popen(command, env=environment, start_new_session=True, **streams)
        os.close(slave)
        self._thread = threading.Thread(target=self._keep_reading, daemon=True)
        self._thread.start()

    @property
    def lines(self):
        """What the screen shows now, without colors."""
        return self._plain(self.screen)

    @staticmethod
    def _plain(screen):
        return [Text.from_ansi(line).plain.rstrip() for line in screen]

    def shown(self):
        """Return what the screen has shown: each picture as one text, without colors."""
        return ["\n".join(self._plain(screen)) for screen in list(self.history)]

    def press(self, key):
        os.write(self._master, key)

    def wait(self, timeout_secs):
        """Return the exit status of the command, once all that it has written is on the screen."""
        status = self._popen.wait(timeout_secs)
        self._thread.join(timeout_secs)
        return status

    def end(self):
        """End the command, if it still runs, and close the terminal."""
        if self._popen.poll() is None:
            self._popen.terminate()
            self._popen.wait()
        self._thread.join()
        os.close(self._master)

    def _keep_reading(self):
        decoder, rest = codecs.getincrementaldecoder("utf-8")(), ""
        while True:
            try:
                chunk = os.read(self._master, 1 << 16)
            except OSError:  # nobody has the terminal open any more
                return
            text = rest + decoder.decode(chunk)
            text, rest = re.fullmatch(r"(.*?)(\x1b[^A-Za-z]*)?", text, re.DOTALL).groups(default="")
            self._show(text)
            self.history.append(list(self.screen))

    def _show(self, text):
        position = 0
        while position < len(text):
            if match := SEQUENCE.match(text, position):
                self._obey(match[0], match[1], match[2])
                position = match.end()
            else:
                self._put(text[position])
                position += 1
        while len(self.screen) > self.row + 1 and not self.screen[-1]:
            self.screen.pop()  # nothing is below the cursor

    def _obey(self, sequence, number, letter):
        if letter == "m":
            self._write(sequence)
        elif letter == "A":
            self.row -= int(number or 1)
            assert self.row >= self._top, "the window ends there"
        elif (number, letter) == ("2", "K"):
            self.screen[self.row] = ""
        elif number == "?25":
            self.is_cursor_shown = letter == "h"
        else:
            raise ValueError(f"unknown control sequence {sequence!r}")

    def _put(self, character):
        assert character != "\x1b", "unknown control sequence"
        if character == "\n":
            self.row += 1
            self.screen += [""] * (self.row + 1 - len(self.screen))
            self._top = max(self._top, self.row + 1 - self._num_rows)
        elif character == "\r":
            self.is_at_start = True
        else:
            self._write(character)

    def _write(self, text):
        self.screen[self.row] = text if self.is_at_start else self.screen[self.row] + text
        self.is_at_start = False
