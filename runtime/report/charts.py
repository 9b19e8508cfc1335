"""Charts as inline SVG, each with a legend, and with its numbers in a table for those who do not see it."""

import html
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

WIDTH, HEIGHT = 420, 240
LEFT, RIGHT, TOP, BOTTOM = 62, 10, 10, 42  # margins, which the labels of the axes need
MAX_POINTS = 300  # in a line, and 20 in its table
MAX_ROWS = 20
NUM_STYLES = 6  # of lines, in page.css


class Series(NamedTuple):
    """One line."""

    name: str
    points: Sequence[tuple[float, float]]
    with_dots: bool = False


def thin_out(points: Sequence[tuple[float, float]], count: int) -> list[tuple[float, float]]:
    """Return at most about `count` of the points, among them the last."""
    step = max(1, math.ceil(len(points) / count))
    return [*points[:-1:step], *points[-1:]]


def make_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return round numbers that lie between `low` and `high`, about `count`."""
    raw = (high - low) / count or 1.0
    magnitude = 10 ** math.floor(math.log10(raw))
    step = next(m * magnitude for m in (1, 2, 5, 10) if m * magnitude >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(n * step, 10) for n in range(first, math.floor(high / step + 1e-9) + 1)]


def format_number(value: float) -> str:
    """Return a number for people: thousands with thin spaces, and no more digits than tell something."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}".replace(",", "\u202f") if abs(value) >= 100 or value == int(value) else f"{value:.4g}"


def make_table(caption: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table that can be scrolled, by keyboard too, where it is too wide."""
    name = html.escape(caption)
    cells = "".join(f'<th scope="col">{html.escape(title)}</th>' for title in head)
    body = "".join(
        f'<tr><th scope="row">{html.escape(str(first))}</th>'
        + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    return (
        f'<div class="scroll" role="region" aria-label="{name}" tabindex="0"><table><caption>{name}</caption>'
        f"<thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def make_details(summary: str, content: str) -> str:
    """Return something that opens on demand."""
    return f"<details><summary>{html.escape(summary)}</summary>{content}</details>"


def make_line_chart(title: str, x_name: str, y_name: str, series: Sequence[Series], is_share: bool = False) -> str:
    """Return a figure of lines, or a sentence if there is nothing to draw; shares, in [0, 1], need not begin at 0.

    Points that are not finite are left out.
    """
    finite = [line._replace(points=[p for p in line.points if all(map(math.isfinite, p))]) for line in series]
    drawn = [line for line in finite if line.points]
    if not drawn:
        return f"<figure><figcaption>{html.escape(title)}</figcaption><p>Nothing was recorded.</p></figure>"
    xs, ys = ([point[axis] for line in drawn for point in line.points] for axis in (0, 1))
    x_low, x_high = 0.0, max(xs) or 1.0
    y_low, y_high = (min(ys) if is_share else 0.0), max(ys)
    margin = (y_high - y_low) * 0.05 or 0.02 * (y_high or 1.0)
    y_low, y_high = (max(0.0, y_low - margin), min(1.0, y_high + margin)) if is_share else (0.0, y_high + margin)

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - (y - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM),
        )

    parts = _make_axes(x_name, make_ticks(x_low, x_high), make_ticks(y_low, y_high), place)
    for number, line in enumerate(drawn):
        places = [place(*point) for point in thin_out(line.points, MAX_POINTS)]
        style = f"s{number % NUM_STYLES}"
        parts.append(f'<polyline class="line {style}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>')
        if line.with_dots or len(places) == 1:
            parts += [f'<circle class="dot {style}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places]
    last = "; ".join(f"{line.name} ends at {format_number(line.points[-1][1])}" for line in drawn)
    swatch = '<svg class="swatch" viewBox="0 0 24 8" aria-hidden="true"><path class="line s{}" d="M0 4H24"/></svg>'
    legend = "".join(
        f"<li>{swatch.format(n % NUM_STYLES)}{html.escape(line.name)}</li>" for n, line in enumerate(drawn)
    )
    rows = [
        (line.name, format_number(x), format_number(y)) for line in drawn for x, y in thin_out(line.points, MAX_ROWS)
    ]
    table = make_table(f"{title}: some of the points", ("line", x_name, y_name), rows)
    return (
        f"<figure><figcaption>{html.escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(f"{title}. {last}.")}">'
        f"<title>{html.escape(title)}</title>{''.join(parts)}</svg>"
        f'<ul class="legend">{legend}</ul>{make_details("As a table", table)}</figure>'
    )


def _make_axes(x_name: str, x_ticks: Sequence[float], y_ticks: Sequence[float], place) -> list[str]:  # type: ignore[no-untyped-def]
    parts = []
    for value in y_ticks:
        _, y = place(0, value)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{format_number(value)}</text>')
    for value in x_ticks:
        x, _ = place(value, 0)
        anchor = "end" if x > WIDTH - RIGHT - 12 else "middle"
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="{anchor}">{format_number(value)}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{html.escape(x_name)}</text>')
    return parts


def pairwise_rates(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return how fast a count grows: at each moment but the first, the growth per second since the one before."""
    return [
        (after[0], (after[1] - before[1]) / (after[0] - before[0]))
        for before, after in itertools.pairwise(points)
        if after[0] > before[0] and after[1] >= before[1]
    ]
