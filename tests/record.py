"""Record what a terminal shows while the launcher runs, for the documents: .venv/bin/python tests/record.py.

It writes `docs/display-80.svg`, which moves: a run from its start to its end, in a terminal of 80 columns. It also
writes `docs/display-140.svg`, one moment of a run, in a terminal of 140 columns.
"""

import io
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from benchmarks.testbed.processes import PROJECT
from tests.terminal import Terminal

COMMAND = "./run_local_cluster.sh"
NUM_FRAMES, FRAME_SECS, END_FRAMES = 14, 0.8, 6  # the end stays for so many frames
FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  # rich would have the reader fetch one
SIZE = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')


def record(columns):
    """Run the launcher, and return what the terminal showed, with colors: a list of lines for each moment."""
    terminal = Terminal([COMMAND], columns, rows=40, cwd=PROJECT)
    assert terminal.wait(600) == 0, terminal.lines
    whole = [screen for screen in terminal.history if not screen[-1]]
    return [[f"$ {COMMAND}", *(line.replace(f"{PROJECT}/", "") for line in screen)] for screen in whole]


def is_half_way(screen):
    match = re.search(r"^global step (\d+)/(\d+) ", Text.from_ansi("\n".join(screen)).plain, re.MULTILINE)
    return bool(match) and 2 * int(match[1]) > int(match[2])


def wrap(screen, columns):
    """Return the rows that the lines of a screen take."""
    console = Console(width=columns)
    return [row for line in screen for row in Text.from_ansi(line).wrap(console, columns) or [Text()]]


def draw(rows, columns):
    """Return a picture, SVG, of what a terminal showed."""
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for row in rows:
        console.print(row)
    return FONT.sub("", console.export_svg(title="distributed-mnist", theme=MONOKAI))


def animate(pictures):
    """Return an SVG that shows pictures of one size one after the other, and the last one where nothing may move."""
    size = SIZE.search(pictures[0])
    num_frames = len(pictures) - 1 + END_FRAMES
    frames = "".join(
        f'<g class="frame" style="animation-delay: {number * FRAME_SECS:.1f}s">{picture}</g>'
        for number, picture in enumerate(pictures[:-1])
    )
    share = 100 / num_frames
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[1]} {size[2]}"><style>
.frame {{ visibility: hidden; animation: show {num_frames * FRAME_SECS:.1f}s step-end infinite; }}
@keyframes show {{ 0% {{ visibility: visible; }} {share:.3f}% {{ visibility: hidden; }} }}
@media (prefers-reduced-motion: reduce) {{ .frame {{ animation: none; }} }}
</style>{pictures[-1]}{frames}</svg>
"""


def main():
    history = record(80)
    moments = [wrap(history[i * (len(history) - 1) // (NUM_FRAMES - 1)], 80) for i in range(NUM_FRAMES)]
    num_rows = max(map(len, moments))
    pictures = [draw([*rows, *[Text()] * (num_rows - len(rows))], 80) for rows in moments]
    (PROJECT / "docs" / "display-80.svg").write_text(animate(pictures))
    half_way = next(filter(is_half_way, record(140)))
    (PROJECT / "docs" / "display-140.svg").write_text(draw(wrap(half_way, 140), 140))


if __name__ == "__main__":
    main()
