"""The chart of the comparison: a bar for each contender's rate, and one for its seconds to the target."""

import pathlib
from collections.abc import Mapping

from benchmarks import tables
from benchmarks.results import Figures


def draw_chart(figures: Mapping[str, Figures], path: pathlib.Path) -> None:
    """Draw the medians of all contenders into a PNG file."""
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 6), sharey=True)
    names = list(figures)
    left.barh(names, [tables.median_rate(of_one) / 1000 for of_one in figures.values()])
    left.set_title("1000 examples/s of all workers")
    left.invert_yaxis()  # the first on top
    secs = [tables.median_secs(of_one) for of_one in figures.values()]
    right.barh(names, [0 if value == float("inf") else value for value in secs])
    right.set_title("seconds to 97.5 % test accuracy (no bar: never)")
    figure.tight_layout()
    figure.savefig(path, dpi=100)
