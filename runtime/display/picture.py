"""How the display looks: a bar with the global step, the figures of the run, and a line for each task."""

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
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


def make_picture(run: RunStatus, unix_secs: float) -> RenderableType:
    """Return what to draw at that moment."""
    progress = Table.grid(padding=(0, 1), expand=True)
    progress.add_column(no_wrap=True)
    progress.add_column(ratio=1)
    progress.add_column(no_wrap=True, justify="right")
    of_steps = f"/{run.train_steps}" if run.train_steps else ""
    total = run.train_steps or 1
    bar = ProgressBar(total, min(run.global_step, total), complete_style="green", finished_style="green")
    secs_left = run.secs_left(unix_secs)
    left = "" if secs_left is None else f"{format_secs(secs_left)} left"
    progress.add_row(Text(f"global step {run.global_step}{of_steps}", style="bold"), bar, left)

    figures: list[str] = []
    if run.examples_per_sec:
        figures.append(f"{run.examples_per_sec:.0f} examples/s")
    if run.loss is not None:
        figures.append(f"loss {run.loss:.4f}")
    if run.test_accuracy is not None:
        figures.append(f"test accuracy {run.test_accuracy:.4f}")

    tasks = Table.grid(padding=(0, 2, 0, 0), expand=True)
    tasks.add_column(no_wrap=True)
    tasks.add_column(no_wrap=True)
    tasks.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for name, task in run.tasks.items():
        glyph, style = GLYPHS[task.state]
        tasks.add_row(Text(f"{glyph} {name.replace('-', ' ')}", style), task.state, Text(_describe(task)))
    return Group("", progress, *([Text(", ".join(figures))] if figures else []), tasks)


def _describe(task: TaskStatus) -> str:
    if task.state not in HAS_TRAINED or task.local_step is None:
        return task.note
    parts = [f"local step {task.local_step:>7}"]
    if task.examples_per_sec:
        parts.append(f"{task.examples_per_sec:>7.0f} examples/s")
    if task.loss is not None:
        parts.append(f"loss {task.loss:.4f}")
    return "  ".join(parts)


def format_secs(secs: float) -> str:
    """Return a time such as 1:05, or 1:00:05."""
    minutes, seconds = divmod(round(secs), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
