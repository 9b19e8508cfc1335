"""How the display looks: a bar with the global step, the figures of the run, and a line for each task."""

import collections
import time
from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from runtime.display.status import HAS_TRAINED, RunStatus, TaskStatus
from runtime.process.output import in_words

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
SPEED_SECS = 10.0
URGENT = ("restarting", "waiting", "stopped")  # states of which people must know


def make_bar(get_time: Callable[[], float] = time.monotonic) -> Progress:
    """Return the bar of a run, which tells the time that is left from the speed of the last `SPEED_SECS`."""
    bar = BarColumn(None, complete_style="green", finished_style="green")
    columns = TextColumn("[bold]global step {task.description}"), bar, TimeRemainingColumn(compact=True)
    progress = Progress(*columns, get_time=get_time, speed_estimate_period=SPEED_SECS, expand=True)
    progress.add_task("", total=None)
    return progress


def make_picture(run: RunStatus, bar: Progress, num_rows: int = 1000) -> RenderableType:
    """Return what to draw now. Tasks for which there is no row are only counted."""
    of_steps = f"/{run.train_steps}" if run.train_steps else ""
    count = f"{run.global_step}{of_steps}"
    bar.update(bar.task_ids[0], description=count, completed=run.global_step, total=run.train_steps)

    speed = run.examples_per_sec or None
    name, value = run.test or ("", None)
    figures = _tell_known(
        ", ", ("{:.0f} examples/s", speed), ("loss {}", _figure(run.loss)), (f"{name} {{}}", _figure(value))
    )

    ellipsis = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    tasks = Table.grid(Column(no_wrap=True), Column(no_wrap=True), ellipsis, padding=(0, 2, 0, 0), expand=True)
    head: list[RenderableType] = [
        "",
        bar,
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
    return _tell_known("  ", step, ("{:>7.0f} examples/s", speed), ("loss {}", _figure(task.loss)))


def _figure(value: float | None) -> str | None:
    return None if value is None else in_words(value)


def _tell_known(separator: str, *figures: tuple[str, float | str | None]) -> str:
    return separator.join(text.format(value) for text, value in figures if value is not None)
