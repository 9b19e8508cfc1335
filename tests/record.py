"""Renew the pictures in the documents, each of a real run: .venv/bin/python tests/record.py.

`docs/display-80.svg` moves: it is what a terminal of 80 columns shows of the launcher, from start to end; half-way the
ps is killed.
`docs/display-140.svg` is one moment of a run, in a terminal of 140 columns. `docs/report-*.png` are the report of a run
in which a ps was killed, as Chromium shows it on several screens.
"""

import io
import pathlib
import re
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import psutil
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from benchmarks.testbed.processes import PROJECT, Cluster, poll_for
from tests import browser
from tests.terminal import Terminal

DOCS = PROJECT / "docs"
COMMAND = ["./run_local_cluster.sh", "--save_checkpoint_secs=2"]
NUM_FRAMES, FRAME_SECS, END_FRAMES = 14, 0.8, 6  # the end stays for so many frames
FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  # rich would have the reader fetch one
SIZE = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')


def record(columns):
    """Run the launcher, and kill the ps half-way; return what the terminal showed: colored lines for each moment."""
    terminal = Terminal(COMMAND, columns, rows=40, cwd=PROJECT)
    poll_for(lambda: is_half_way(terminal.screen), "half of the steps")
    for process in psutil.Process().children(recursive=True):
        if process.name() == "ps-0":
            process.kill()
    assert terminal.wait(600) == 0, terminal.lines
    whole = [screen for screen in terminal.history if not screen[-1]]
    return [[f"$ {' '.join(COMMAND)}", *(line.replace(f"{PROJECT}/", "") for line in screen)] for screen in whole]


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


def record_report(folder):
    """Train on two ps tasks, of which one is killed, and return the path of the report."""
    train_dir = pathlib.Path(folder, "run1")
    flags = [
        "--train_steps=20000",
        "--local_steps=4",
        "--save_checkpoint_secs=2",
        "--eval_every_secs=1",
        "--log_every_secs=0.5",
    ]
    with Cluster(folder, 2, 2, *flags, f"--train_dir={train_dir}") as tasks:
        tasks.start()
        tasks["worker 0"].wait_for_output(r"global step ([6-9]|1\d)\d\d\d/")
        tasks["ps 1"].kill()
        tasks.start("ps 1")
        assert not any(tasks.wait().values()), tasks["worker 0"].output()
    return train_dir / "report.html"


def main():
    history = record(80)
    moments = [wrap(history[i * (len(history) - 1) // (NUM_FRAMES - 1)], 80) for i in range(NUM_FRAMES)]
    num_rows = max(map(len, moments))
    pictures = [draw([*rows, *[Text()] * (num_rows - len(rows))], 80) for rows in moments]
    (DOCS / "display-80.svg").write_text(animate(pictures))
    half_way = next(filter(is_half_way, record(140)))
    (DOCS / "display-140.svg").write_text(draw(wrap(half_way, 140), 140))
    with tempfile.TemporaryDirectory() as folder:
        page = record_report(folder)
        for name, screen in browser.SCREENS.items():
            browser.take_picture(page, screen, DOCS / f"report-{name}.png")


if __name__ == "__main__":
    main()
