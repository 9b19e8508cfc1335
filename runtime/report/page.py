"""The page: what a history tells, section by section."""

import base64
import datetime
import html
import pathlib
import re
import shlex
import struct
import zlib

from runtime.report import charts, history
from runtime.report.charts import Series
from runtime.report.history import History

CSS = pathlib.Path(__file__).with_name("page.css")
# Nothing is fetched: the browser refuses whatever does not stand in the page.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
STATES = {
    "starting": "starting",
    "waiting": "waiting",
    "training": "training",
    "serving": "serving",
    "testing": "has trained, or tests",
    "gone": "gone",
}


def make_page(run: History) -> str:
    """Return the page, HTML."""
    sections = {
        "Result": _make_figures(run),
        "Accuracy and loss": _make_curves(run),
        "Examples per second": _make_speed(run),
        "What each task did": _make_timeline(run),
        "What was taken for what": _make_confusion(run),
        "The worst mistakes": _make_mistakes(run),
        "What each ps holds": _make_placement(run),
        "Commands and versions": _make_commands(run),
    }
    body = "".join(f"<section><h2>{title}</h2>{content}</section>" for title, content in sections.items())
    began_at = datetime.datetime.fromtimestamp(run.began_at, datetime.timezone.utc) if run.began_at else None
    when = f"It began at {began_at:%Y-%m-%d %H:%M:%S} UTC and took {run.secs:.1f} s." if began_at else ""
    title = html.escape(f"Run {run.name}")
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<link rel="icon" href="data:,"><style>{CSS.read_text()}</style></head>'
        f'<body><header><h1>{title}</h1><p class="soft">{when}</p></header><main>{body}</main></body></html>\n'
    )


def _make_figures(run: History) -> str:
    result = run.result
    if not result:
        steps = [event["global_step"] for _, event in run.of_kind("progress")]
        return (
            f"<p>The run has no result: it goes on, or was ended. It came to global step {max(steps, default=0)}.</p>"
        )
    mode = "synchronous" if result["sync_replicas"] else "asynchronous"
    figures = {
        "test accuracy": f"{result['test_accuracy']:.2%}",
        "test loss": f"{result['test_loss']:.4f}",
        "global steps": charts.format_number(result["global_step"]),
        "of training": f"{result['train_secs']:.1f} s",
        "examples/s": charts.format_number(result["examples_per_sec"]),
    }
    items = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in figures.items())
    local_steps = f", {result['local_steps']} local steps" if result["local_steps"] > 1 else ""
    how = (
        f"{result['model']} with {result['optimizer']}, {mode}{local_steps}, batches of {result['batch_size']},"
        f" {result['num_ps']} ps, {result['num_workers']} workers, TensorFlow {result['tensorflow_version']}"
    )
    return f'<dl class="figures">{items}</dl><p class="soft">{html.escape(how)}</p>'


def _make_curves(run: History) -> str:
    progress = [pair for pair in run.of_kind("progress") if "loss" in pair[1]]
    workers = sorted({task for task, _ in progress})
    parts = []
    for axis, x_name in (("global_step", "global step"), ("secs", "seconds")):
        tested = [(entry[axis], entry) for entry in run.evaluations]
        accuracy = [(x, entry["test_accuracy"]) for x, entry in tested]
        losses = [Series("on the test images", [(x, entry["test_loss"]) for x, entry in tested], with_dots=True)]
        losses += [
            Series(f"{w}, one batch", [(e[axis], e["loss"]) for task, e in progress if task == w]) for w in workers
        ]
        name = f"Test accuracy by {x_name}"
        parts.append(charts.make_line_chart(name, x_name, "accuracy", [Series("test accuracy", accuracy, True)], True))
        parts.append(charts.make_line_chart(f"Loss by {x_name}", x_name, "loss", losses))
    return f'<div class="charts">{"".join(parts)}</div>'


def _make_speed(run: History) -> str:
    lines = []
    for task, events in run.events.items():
        rates: list[tuple[float, float]] = []
        counts: list[tuple[float, float]] = []  # of one process: the next begins at 0
        batch_size = 0  # not known yet
        for event in events:
            if event["event"] == "training":
                rates += charts.pairwise_rates(counts)
                if rates:  # nothing was used between the two sessions
                    rates += [(rates[-1][0], 0.0), (event["secs"], 0.0)]
                counts, batch_size = [], event["batch_size"]
            if batch_size and event["event"] in ("training", "progress", "finished") and "local_step" in event:
                counts.append((event["secs"], event["local_step"] * batch_size))
        rates += charts.pairwise_rates(counts)
        if rates:
            lines.append(Series(task, rates))
    return charts.make_line_chart("Examples per second of each worker", "seconds", "examples/s", lines)


def _make_timeline(run: History) -> str:
    if not run.events:
        return "<p>Nothing was recorded.</p>"
    lanes, rows = [], []
    for task in run.events:
        spans, marks = history.find_spans(run, task), history.find_marks(run, task)
        lanes.append(_make_lane(task, spans, marks, run.secs))
        rows += [(task, f"{s.start:.1f}", f"{s.end:.1f}", " ".join((s.state, s.note)).strip()) for s in spans]
        rows += [(task, f"{mark.secs:.1f}", "", mark.text) for mark in marks]
    rows.sort(key=lambda row: float(row[1]))
    legend = "".join(f'<li><span class="key {state}"></span>{name}</li>' for state, name in STATES.items())
    ticks = "".join(f"<span>{run.secs * share:.3g} s</span>" for share in (0, 0.25, 0.5, 0.75, 1))
    troubles = [
        row
        for row in rows
        if re.match("lost|gone|restored|started again|.* (is back|are lost)|ended with status [1-9]", row[3])
    ]
    what = [(task, start, text) for task, start, _, text in troubles]
    told = charts.make_table("What went wrong, and was mended", ("task", "at (s)", "what"), what)
    table = charts.make_table("What each task did", ("task", "from (s)", "to (s)", "what"), rows)
    return (
        '<svg class="hidden" aria-hidden="true"><defs><pattern id="hatch" width="8" height="8"'
        ' patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><path class="hatch" d="M0 0V8"/></pattern></defs>'
        "</svg>"
        f'{"".join(lanes)}<div class="axis" aria-hidden="true">{ticks}</div>'
        f'<ul class="legend">{legend}<li>| checkpoints and other events</li></ul>'
        f'<div class="words">{told if troubles else ""}{charts.make_details("As a table", table)}</div>'
    )


def _make_lane(task: str, spans: list[history.Span], marks: list[history.Mark], secs: float) -> str:
    """Return a row of the timeline; it is stretched to the width of the page, so it has no text in it."""
    parts = []
    for span in spans:
        text = html.escape(f"{span.state} {span.note}".strip() + f", {span.start:.1f} s to {span.end:.1f} s")
        x, width = 1000 * span.start / secs, max(1000 * (span.end - span.start) / secs, 1)
        parts.append(
            f'<rect class="{span.state}" x="{x:.1f}" y="0" width="{width:.1f}" height="24"><title>{text}</title></rect>'
        )
    for mark in marks:
        x = min(1000 * mark.secs / secs, 998)
        style = "mark trouble" if mark.is_trouble else "mark"
        text = html.escape(f"{mark.secs:.1f} s: {mark.text}")
        parts.append(f'<path class="{style}" d="M{x:.1f} 3V21"><title>{text}</title></path>')
    told = ", ".join(f"{span.state} until {span.end:.1f} s" for span in spans)
    return (
        f'<div class="lane"><span>{html.escape(task)}</span><svg viewBox="0 0 1000 24" preserveAspectRatio="none"'
        f' role="img" aria-label="{html.escape(f"{task}: {told}")}">{"".join(parts)}</svg></div>'
    )


def _make_confusion(run: History) -> str:
    tested = run.of_kind("tested")
    if not tested:
        return "<p>The model was not tested.</p>"
    confusion = tested[-1][1]["confusion"]
    classes = range(len(confusion))
    most_wrong = max((confusion[a][b] for a in classes for b in classes if a != b), default=0) or 1
    head = "".join(f'<th scope="col">{guess}</th>' for guess in classes)
    rows = []
    for label, row in enumerate(confusion):
        cells = []
        for guess, count in enumerate(row):
            share = count / (sum(row) or 1) * 0.6 if guess == label else count / most_wrong * 0.7
            style = "" if guess == label else ' class="wrong"'
            cells.append(f'<td{style} style="--share: {share:.2f}">{count}</td>')
        rows.append(f'<tr><th scope="row">{label}</th>{"".join(cells)}</tr>')
    return (
        '<div class="scroll" role="region" aria-label="Confusion matrix" tabindex="0"><table class="confusion">'
        "<caption>Test images by their label (row) and by what the model took them for (column)</caption>"
        f'<thead><tr><td style="--share: 0"></td>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


def _make_mistakes(run: History) -> str:
    tested = run.of_kind("tested")
    if not tested:
        return "<p>The model was not tested.</p>"
    items = []
    for mistake in tested[-1][1]["mistakes"]:
        what = f"{mistake['label']}, taken for {mistake['guess']}"
        png = _make_png(base64.b64decode(mistake["pixels"]))
        items.append(
            f'<li><img src="data:image/png;base64,{png}" width="28" height="28"'
            f' alt="test image {mistake["index"]}: {what}"><span>{what}</span>'
            f'<span class="soft">{mistake["probability"]:.1%} sure</span></li>'
        )
    return f'<ul class="mistakes">{"".join(items)}</ul>' if items else "<p>The model made no mistake.</p>"


def _make_png(pixels: bytes) -> str:
    """Return a square grey picture as a PNG, in Base64: dark ink on light paper."""
    size = int(len(pixels) ** 0.5)
    inverted = bytes(255 - pixel for pixel in pixels)
    rows = b"".join(b"\0" + inverted[start : start + size] for start in range(0, size * size, size))

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", size, size, 8, 0, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return base64.b64encode(png).decode()


def _make_placement(run: History) -> str:
    placement = {event["ps"]: event for _, event in run.of_kind("placement")}  # the last, if the chief was restarted
    if not placement:
        return "<p>Nothing was recorded.</p>"
    rows = [
        (f"ps {ps}", charts.format_number(event["num_bytes"]), len(event["variables"]), ", ".join(event["variables"]))
        for ps, event in sorted(placement.items())
    ]
    table = charts.make_table("The variables on each ps", ("ps", "bytes", "variables", "their names"), rows)
    return f'<div class="words">{table}</div>'


def _make_commands(run: History) -> str:
    rows = []
    for task, events in run.events.items():
        starts = [event for event in events if event["event"] == "starting"]
        if starts:
            last = starts[-1]
            versions = ", ".join(f"{name} {version}" for name, version in last["versions"].items())
            rows.append((task, last["host"], len(starts), versions, shlex.join(last["command"])))
    if not rows:
        return "<p>Nothing was recorded.</p>"
    commands = "".join(f"<h3>{html.escape(row[0])}</h3><pre>{html.escape(row[-1])}</pre>" for row in rows)
    head = ("task", "host", "starts", "versions")
    table = charts.make_table("Where each task ran", head, [row[:-1] for row in rows])
    return f'<div class="words">{table}</div>{charts.make_details("The command of each task", commands)}'
