"""The page: what a history tells, section by section."""

import base64
import datetime
import html
import io
import pathlib
import shlex
import string
from collections.abc import Sequence

from runtime.display.status import Event
from runtime.report import charts, history
from runtime.report.history import History

FOLDER = pathlib.Path(__file__).parent  # of page.html and page.css
STATES = ("starting", "waiting", "training", "serving", "finishing", "done", "gone")
TOO_SHORT = "<p>Too little was recorded for a chart: see --log_every_secs and --eval_every_secs.</p>"


def make_page(run: History) -> str:
    """Return the page, HTML."""
    sections = {
        "Result": _make_figures(run),
        "Accuracy and loss": _make_curves(run),
        "What each task did": _make_timeline(run),
        "Confusion matrix": _make_confusion(run),
        "The worst mistakes": _make_mistakes(run),
        "What each ps holds": _make_placement(run),
        "Commands and versions": _make_commands(run),
    }
    nothing = "<p>Nothing was recorded.</p>"
    body = "".join(f"<section><h2>{title}</h2>{content or nothing}</section>" for title, content in sections.items())
    began_at = datetime.datetime.fromtimestamp(run.began_at, datetime.timezone.utc)
    origin = f", resumed from global step {run.first_step} of an earlier run," if run.first_step else ""
    when = f"It began at {began_at:%Y-%m-%d %H:%M:%S} UTC{origin} and took {run.secs:.1f} s." if run.events else ""
    page = string.Template((FOLDER / "page.html").read_text())
    style = (FOLDER / "page.css").read_text()
    return page.substitute(name=html.escape(run.name), when=when, style=style, sections=body)


def _make_figures(run: History) -> str:
    if not run.result:
        step = max((event["global_step"] for event in run.of_kind("progress")), default=0)
        return f"<p>The run has no result: it is still running, or was stopped. It reached global step {step}.</p>"
    result = run.result
    steps = f"global steps, from {run.first_step} on" if run.first_step else "global steps"
    measured = run.tested or result  # a flag of the user's, too, may begin with "test_"
    names = [name for name, value in result.items() if name.startswith("test_") and isinstance(value, float)]
    scalars = {name: result[name] for name in names if name in measured}
    figures = {
        name.replace("_", " "): f"{value:.2%}" if name == "test_accuracy" else charts.format_number(value)
        for name, value in scalars.items()
    }
    figures[steps] = charts.format_number(result["global_step"])
    if result["train_secs"]:
        figures["of training"] = f"{result['train_secs']:.1f} s"
        figures["examples/s"] = charts.format_number(result["examples_per_sec"])
    items = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in figures.items())
    shown = (*scalars, "global_step", "train_secs", "examples_per_sec")
    others = ", ".join(f"{name}: {value}" for name, value in result.items() if name not in shown and value is not None)
    return f'<dl class="figures">{items}</dl><p class="soft">{html.escape(others)}</p>'


def _make_curves(run: History) -> str:
    figures = ""
    for axis, x_name, start in (("global_step", "global step", 0.0), ("secs", "seconds of training", run.trained_at)):

        def read(entries: list[Event], name: str, axis: str = axis, start: float = start) -> list[tuple[float, float]]:
            return [(max(entry[axis] - start, 0.0), entry[name]) for entry in entries if name in entry]

        metrics = [name for entry in run.evaluations[-1:] for name in entry if name.startswith("test_")]
        losses = {"test examples": read(run.evaluations, "test_loss")}
        losses |= {task: read(run.of_kind("progress", task), "loss") for task in run.tasks}
        for name in metrics:
            words = name.replace("_", " ")
            if name != "test_loss":  # it is in the other chart
                lines = {words: read(run.evaluations, name)}
                figures += charts.make_line_chart(f"{words.capitalize()} by {x_name}", x_name, words[5:], lines)
        title = f"Loss by {x_name}, that of a worker on one batch"
        figures += charts.make_line_chart(title, x_name, "loss", losses)
    return f'<div class="charts">{figures}</div>' if figures else TOO_SHORT


def _make_timeline(run: History) -> str:
    lanes = ""
    rows = []
    for task in run.tasks:
        entries = history.tell(run, task)
        lanes += _make_lane(task, entries, run.secs)
        rows += [(task, f"{e.start:.1f}", f"{e.end:.1f}" if e.end > e.start else "", e.text, e.kind) for e in entries]
    rows.sort(key=lambda row: float(row[1]))
    troubles = [(task, start, text) for task, start, _, text, kind in rows if kind == "trouble"]
    told = charts.make_table("Faults and recoveries", ("task", "at (s)", "what"), troubles, "words")
    head = ("task", "from (s)", "to (s)", "what")
    table = charts.make_table("What each task did", head, [row[:-1] for row in rows], "words")
    ticks = "".join(f"<span>{charts.format_number(run.secs * share)} s</span>" for share in (0, 0.25, 0.5, 0.75, 1))
    legend = "".join(f'<li><span class="key {state}"></span>{state}</li>' for state in STATES)
    return lanes and (
        f'{lanes}<div class="axis" aria-hidden="true">{ticks}</div>'
        f'<ul class="legend">{legend}<li>| checkpoints and other events</li></ul>'
        f"{told}<details><summary>As a table</summary>{table}</details>"
    )


def _make_lane(task: str, entries: list[history.Entry], secs: float) -> str:
    """Return a row of the timeline, from the start of the run to its end."""
    parts = ""
    for entry in entries:
        left, width = 100 * entry.start / secs, 100 * (entry.end - entry.start) / secs
        place = f"left: min({left:.2f}%, 100% - 2px); width: {width:.2f}%"
        title = html.escape(f"{entry.start:.1f} s: {entry.text}")
        parts += f'<i class="{entry.kind}" style="{place}" title="{title}"></i>'
    told = ", ".join(f"{entry.text} until {entry.end:.1f} s" for entry in entries if entry.end > entry.start)
    label = html.escape(f"{task}: {told}")
    return f'<div class="lane"><span>{html.escape(task)}</span><div role="img" aria-label="{label}">{parts}</div></div>'


def _make_confusion(run: History) -> str:
    if "confused" in run.tested:
        head = ("label", "taken for", "examples")
        pairs = charts.make_table("Most often confused", head, run.tested["confused"], "words")
        return f"<p>The matrix would have {run.tested['num_classes']} rows and columns, too many to read.</p>{pairs}"
    confusion = run.tested.get("confusion", [])
    classes = run.tested.get("classes", range(len(confusion)))
    most = max((n for label, row in enumerate(confusion) for guess, n in enumerate(row) if guess != label), default=0)
    rows: list[list[object]] = []
    for label, row in enumerate(confusion):
        rows.append([classes[label]])
        for guess, count in enumerate(row):
            style, total = ("", sum(row)) if guess == label else (' class="wrong"', most)
            cell = f'<td{style} style="--share: {0.65 * count / (total or 1):.2f}">{count}</td>'
            rows[-1].append(charts.Cell(cell))
    caption = "Test examples by their label (row) and the model's prediction (column)"
    return charts.make_table(caption, ["", *classes], rows, "confusion")


def _make_mistakes(run: History) -> str:
    items = ""
    for mistake in run.tested.get("mistakes", []):
        what = html.escape(f"{mistake['label']}, taken for {mistake['guess']}")
        if "shape" in mistake:
            height, width, *_ = mistake["shape"]
            png = _make_png(base64.b64decode(mistake["pixels"]), mistake["shape"])
            shown = f'<img src="data:image/png;base64,{png}" width="{width}" height="{height}"'
            shown += f' alt="test image {mistake["index"]}: {what}">'
        else:
            shown = f"<b>{html.escape(mistake.get('text', ''))}</b>"
        items += f'<li>{shown}<span>{what}</span><span class="soft">{mistake["probability"]:.1%} sure</span></li>'
    if not items and "mistakes" in run.tested:
        return "<p>The model made no mistake.</p>"
    return items and f'<ul class="mistakes">{items}</ul>'


def _make_png(pixels: bytes, shape: Sequence[int]) -> str:
    """Return a picture, uint8 [h, w] or [h, w, 1 or 3], as a PNG, in Base64. In a grey one, ink is black."""
    from PIL import Image, ImageOps  # here: it takes a moment, and only the chief draws

    is_colored, file = shape[2:] == [3], io.BytesIO()
    image = Image.frombytes("RGB" if is_colored else "L", (shape[1], shape[0]), pixels)
    (image if is_colored else ImageOps.invert(image)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def _make_placement(run: History) -> str:
    placement = {event["ps"]: event for event in run.of_kind("placement")}  # the last, if the chief was restarted
    rows = [
        (f"ps {ps}", charts.format_number(event["num_bytes"]), len(event["variables"]), ", ".join(event["variables"]))
        for ps, event in sorted(placement.items())
    ]
    return charts.make_table("The variables on each ps", ("ps", "bytes", "variables", "their names"), rows, "words")


def _make_commands(run: History) -> str:
    rows = []
    for task in run.tasks:
        starts = run.of_kind("starting", task)
        for last in starts[-1:]:
            versions = ", ".join(f"{name} {version}" for name, version in last["versions"].items())
            rows.append((task, last["host"], len(starts), versions, shlex.join(last["command"])))
    head = ("task", "host", "starts", "versions", "command")
    return charts.make_table("Where each task ran", head, rows, "words")
