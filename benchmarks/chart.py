"""The chart of the comparison, as SVG: it follows the reader's light or dark mode."""

from collections.abc import Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH, ROW, TOP, BOTTOM = 880, 28, 62, 18
NAME_END, SECS_START, RATE_START = 296, 308, 644
SECS_WIDTH, RATE_WIDTH = 270, 160  # of the longest bars
STYLE = """\
text { font: 13px system-ui, -apple-system, "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif; fill: #414a54; }
.page { fill: #ffffff; }
.head { fill: #6a737d; font-size: 12px; }
.name { text-anchor: end; }
.value { font-variant-numeric: tabular-nums; }
.bar { fill: #cbd2d9; }
.own .bar { fill: #d9622b; }
.own text { fill: #1b1f24; font-weight: 600; }
@media (prefers-color-scheme: dark) {
  text { fill: #aeb8c2; }
  .page { fill: #0d1117; }
  .head { fill: #8b949e; }
  .bar { fill: #3d4651; }
  .own .bar { fill: #f0803c; }
  .own text { fill: #f0f3f6; }
}"""


class Row(NamedTuple):
    """The bars of a contender."""

    name: str
    secs: float  # infinity: it has no bar
    rate: float  # in 1000 examples/s


def draw(rows: Sequence[Row]) -> str:
    """Return the chart: the soonest on top, this script's own rows in a colour of their own."""
    finite = [row.secs for row in rows if row.secs < float("inf")]
    secs_unit, rate_unit = SECS_WIDTH / max(finite), RATE_WIDTH / max(row.rate for row in rows)
    height = TOP + ROW * len(rows) + BOTTOM
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>Seconds to 97.5 % test accuracy, and examples per second, of this script and others</title>",
        f"<style>\n{STYLE}\n</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>',
        f'<text class="head" x="{SECS_START}" y="36">seconds to 97.5 % test accuracy: shorter is better</text>',
        f'<text class="head" x="{RATE_START}" y="36">1000 examples per second</text>',
    ]
    for number, row in enumerate(sorted(rows, key=lambda row: row.secs)):
        y = TOP + ROW * number
        secs = ("never", 0.0) if row.secs == float("inf") else (f"{row.secs:.2f}", secs_unit * row.secs)
        lines.append(f'<g class="{"own" if row.name.startswith("this script") else "other"}">')
        lines.append(f'<text class="name" x="{NAME_END}" y="{y + 13}">{escape(row.name)}</text>')
        for start, (text, length) in ((SECS_START, secs), (RATE_START, (f"{row.rate:.0f}", rate_unit * row.rate))):
            lines.append(f'<rect class="bar" x="{start}" y="{y}" width="{length:.1f}" height="18" rx="2"/>')
            lines.append(f'<text class="value" x="{start + length + 7:.1f}" y="{y + 13}">{text}</text>')
        lines.append("</g>")
    return "\n".join([*lines, "</svg>"]) + "\n"
