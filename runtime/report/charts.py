"""Charts as inline SVG, each with a legend, and with its numbers in a table for those who do not see it."""

import html
import itertools
import math
import re
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT = 420, 240
LEFT, RIGHT, TOP, BOTTOM = 62, 10, 10, 42  # margins, which the labels of the axes need
MAX_POINTS, MAX_ROWS = 300, 20  # of a line, and of its table
MAX_DOTS = 60  # a line with no more points has a dot for each
DASHES = ("none", "7 3", "2 3", "10 3 2 3", "5 2")  # of the lines of workers
HUE_STEP = 137.5  # degrees from worker to worker, which never come back to the same hue
EARLY = 0.1  # of the x axis: what lies there is left out if it would flatten all that comes later,
FLAT = 0.25  # to less than this share of the height

Points = Sequence[tuple[float, float]]


def thin_out(points: Points, count: int) -> Points:
    """Return at most about `count` of the points, among them the last."""
    step = math.ceil(len(points) / count)
    return [*points[:-1:step], points[-1]]


def make_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return round numbers that lie between `low` and `high`, about `count`."""
    raw = (high - low) / count
    magnitude = 10 ** math.floor(math.log10(raw))
    step = next(m * magnitude for m in (1, 2, 5, 10) if m * magnitude >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(n * step, 10) for n in range(first, last + 1)]


def format_number(value: float) -> str:
    """Return a number for people: thousands with thin spaces, and no more digits than tell something."""
    if abs(value) >= 1e7 or not math.isfinite(value):
        return f"{value:.3g}".replace("e+", "e")
    return f"{value:,.0f}".replace(",", "\u202f") if abs(value) >= 100 or value % 1 == 0 else f"{value:.4g}"


class Cell(str):
    """A cell of a table that is HTML already: `<td>` and what is in it."""


def make_table(caption: str, head: Sequence[object], rows: Sequence[Sequence[object]], style: str = "") -> str:
    """Return a table that can be scrolled, by keyboard too, where it is too wide; nothing if there are no rows.

    Its first column names the rows. The `style` is one of page.css.
    """
    if not rows:
        return ""
    name = html.escape(caption)
    titles = "".join(f'<th scope="col">{html.escape(str(title))}</th>' for title in head)
    body = ""
    for first, *rest in rows:
        cells = (cell if isinstance(cell, Cell) else f"<td>{html.escape(str(cell))}</td>" for cell in rest)
        body += f'<tr><th scope="row">{html.escape(str(first))}</th>{"".join(cells)}</tr>'
    return (
        f'<div class="scroll {style}" role="region" aria-label="{name}" tabindex="0"><table><caption>{name}</caption>'
        f"<thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def make_line_chart(title: str, x_name: str, y_name: str, lines: Mapping[str, Points]) -> str:
    """Return a figure of lines, by name; points that are not finite are left out.

    Two points make a line: if there is none, there is nothing to see. A line whose name ends with a number, such as
    that of a worker, looks the same in every chart.
    """
    finite = {name: [point for point in points if all(map(math.isfinite, point))] for name, points in lines.items()}
    drawn = {name: points for name, points in finite.items() if points}
    if not any(len(points) > 1 for points in drawn.values()):
        return ""
    all_points = [*itertools.chain(*drawn.values())]
    x_low, x_high, y_low, y_high = _choose_axes(all_points)

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - (y - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM),
        )

    x_ticks = {n: place(n, y_low)[0] for n in make_ticks(x_low, x_high)}
    y_ticks = {n: place(x_low, n)[1] for n in make_ticks(y_low, y_high)}
    picture = _make_axes(x_name, x_ticks, y_ticks)
    legend = ""
    rows = []
    for name, points in drawn.items():
        style = _make_style(name)
        places = [place(x, y) for x, y in thin_out(points, MAX_POINTS) if y_low <= y <= y_high]
        picture += f'<polyline {style} points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>'
        if len(places) <= MAX_DOTS:
            picture += "".join(f'<circle {style} cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places)
        swatch = f'<svg class="swatch" aria-hidden="true"><path {style} d="M0 4H24"/></svg>'
        legend += f"<li>{swatch}{html.escape(name)}</li>"
        rows += [(name, format_number(x), format_number(y)) for x, y in thin_out(points, MAX_ROWS)]
    which = "all points" if len(rows) == len(all_points) else "some of the points"
    table = make_table(f"{title}: {which}", ("line", x_name, y_name), rows)
    name = html.escape(title)
    return (
        f'<figure><figcaption>{name}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}">'
        f'{picture}</svg><ul class="legend">{legend}</ul>'
        f"<details><summary>As a table</summary>{table}</details></figure>"
    )


def _make_style(name: str) -> str:
    """Return the attributes of a line: of a worker, a dash and a hue for its number."""
    number = re.search(r"\d+$", name)
    if not number:
        return 'class="line"'
    index = int(number[0])
    dash = DASHES[index % len(DASHES)]
    return f'class="line worker" style="--hue: {(210 + index * HUE_STEP) % 360:g}; --dash: {dash}"'


def _choose_axes(points: Points) -> tuple[float, float, float, float]:
    """Return the least and the greatest x and y to show; early points are left out if they would flatten later ones."""
    xs, ys = ([*values] for values in zip(*points, strict=True))
    x_low, x_high = min(xs), max(xs) or 1.0
    x_low = x_low if x_high / 2 < x_low < x_high else 0.0  # a run may go on from an earlier one
    late = [y for x, y in points if x >= x_low + EARLY * (x_high - x_low)]
    if len(late) > 2 and max(late) - min(late) < FLAT * (max(ys) - min(ys)):
        ys = late
    margin = 0.05 * (max(ys) - min(ys)) or 0.02 * (abs(max(ys)) or 1.0)
    y_low = min(ys) - margin
    return x_low, x_high, max(0.0, y_low) if min(ys) >= 0 else y_low, max(ys) + margin


def _make_axes(x_name: str, x_ticks: Mapping[float, float], y_ticks: Mapping[float, float]) -> str:
    """Return the axes with their ticks, whose places are by number."""
    axes = f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{html.escape(x_name)}</text>'
    for value, y in y_ticks.items():
        axes += f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
        axes += f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{format_number(value)}</text>'
    for value, x in x_ticks.items():
        anchor = "end" if x > WIDTH - RIGHT - 12 else "middle"
        axes += f'<text x="{x:.1f}" y="{HEIGHT - 25}" text-anchor="{anchor}">{format_number(value)}</text>'
    return axes
