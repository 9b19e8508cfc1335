"""How the display looks: a bar with the global step, the figures of the run, and a line for each task."""

import collections
import datetime

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from runtime.display.status import HAS_TRAINED, RunStatus, TaskStatus

# Of each state, in how it looks; it is also said in words.
GLYPHS = {
    "starting": ("○", "dim"),
    "restarting": ("↻", "yellow"),
    "waiting": ("◌", "yellow"),
    "serving": ("●", "cyan"),
    "training": ("●", "green"),
    "finishing": ("◉", "green"),
    "done": ("✓", "green"),
    "stopped": ("✗", "red"),
}
URGENT = ("restarting", "waiting", "stopped")  # states of which people must know


def make_picture(run: RunStatus, unix_secs: float, num_rows: int = 1000) -> RenderableType:
    """Return what to draw at that moment. Tasks for which there is no row are only counted."""
    right = Column(no_wrap=True, justify="right")
    progress = Table.grid(Column(no_wrap=True), Column(ratio=1), right, padding=(0, 1), expand=True)
    total = run.train_steps or 1
    bar = ProgressBar(total, min(run.global_step, total), complete_style="green", finished_style="green")
    of_steps = f"/{run.train_steps}" if run.train_steps else ""
    secs_left = run.secs_left(unix_secs)
    left = "" if secs_left is None else f"{datetime.timedelta(seconds=round(secs_left))} left".removeprefix("0:")
    progress.add_row(Text(f"global step {run.global_step}{of_steps}", style="bold"), bar, left)

    speed = run.examples_per_sec or None
    test = ("test accuracy {:.4f}", run.test_accuracy)
    figures = _tell_known(", ", ("{:.0f} examples/s", speed), ("loss {:.4f}", run.loss), test)

    ellipsis = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    tasks = Table.grid(Column(no_wrap=True), Column(no_wrap=True), ellipsis, padding=(0, 2, 0, 0), expand=True)
    head: list[RenderableType] = [
        "",
        progress,
        *([Text(figures, no_wrap=True, overflow="ellipsis")] if figures else []),
    ]
    shown = _choose(run.tasks, num_rows - len(head))
    for name, task in shown.items():
        glyph, style = GLYPHS[task.state]
        tasks.add_row(Text(f"{glyph} {name.replace('-', ' ')}", style), task.state, Text(_describe(task)))
    others = collections.Counter(task.state for name, task in run.tasks.items() if name not in shown)
    rest = ", ".join(f"{count} {state}" for state, count in others.items())
    return Group(*head, tasks, *([Text(f"and {rest}", no_wrap=True, overflow="ellipsis")] if rest else []))


def _choose(tasks: dict[str, TaskStatus], num_rows: int) -> dict[str, TaskStatus]:
    """Return the tasks to show in so many rows, in their order: what is urgent first, then the workers, then the ps."""
    if len(tasks) <= num_rows:
        return tasks
    by_need = sorted(tasks, key=lambda name: (tasks[name].state not in URGENT, name.startswith("ps")))
    return {name: tasks[name] for name in tasks if name in by_need[: max(num_rows - 1, 0)]}


def _describe(task: TaskStatus) -> str:
    if task.state not in HAS_TRAINED or task.local_step is None:
        return task.note
    speed = task.examples_per_sec or None
    step = ("local step {:>7}", task.local_step)
    return _tell_known("  ", step, ("{:>7.0f} examples/s", speed), ("loss {:.4f}", task.loss))


def _tell_known(separator: str, *figures: tuple[str, float | None]) -> str:
    return separator.join(text.format(value) for text, value in figures if value is not None)
