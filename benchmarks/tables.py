"""The tables of the comparison, made from its figures."""

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.report import make_table, median_and_spread
from benchmarks.results import Accuracy, Figures, Results

HEADINGS = (
    "",
    "setting",
    "1000 examples/s",
    "of the first",
    "s to 97.5 %",
    "spread",
    "s of building, tracing and compiling",
)


def results_table(results: Results) -> str:
    """Return medians over the rounds: the rate, also as a ratio to the first one's, and the seconds to the target."""
    figures = without_constant_batch(results.figures)
    rates = {name: median_rate(of_one) for name, of_one in figures.items()}
    rows = []
    for name, of_one in figures.items():
        secs = _with_never_as_infinity(of_one.secs_to_target)
        rows.append(
            [
                f"{name} (recommended)" if name == results.recommended else name,
                of_one.setting,
                f"{rates[name] / 1000:.0f}",
                f"{rates[name] / next(iter(rates.values())):.2f}",
                _secs(statistics.median(secs)),
                _secs(secs[0]) if min(secs) == max(secs) else f"{_secs(min(secs))} to {_secs(max(secs))}",
                f"{statistics.median(of_one.setup_secs):.1f}",
            ]
        )
    return make_table(HEADINGS, rows)


def input_table(figures: Mapping[str, Figures]) -> str:
    """Return the rates on a constant batch, as ratios to the rates on real batches in the same runs."""
    rows = []
    for name, of_one in figures.items():
        if ratios := of_one.constant_batch_ratio:
            rows.append([name, *median_and_spread(ratios)])
    return make_table(("", "of the rate on real batches", "spread"), rows)


def accuracy_table(accuracy: Accuracy) -> str:
    """Return the mean test accuracies and their spreads."""
    rows = [
        [name, f"{statistics.mean(values):.4f}", f"{min(values):.4f} to {max(values):.4f}"]
        for name, values in accuracy.accuracies.items()
    ]
    return make_table(("", "mean test accuracy", "spread"), rows)


def without_constant_batch(figures: Mapping[str, Figures]) -> dict[str, Figures]:
    """Return the figures of those that train on real batches all the time."""
    return {name: of_one for name, of_one in figures.items() if of_one.constant_batch_ratio is None}


def median_rate(figures: Figures) -> float:
    """Return the median of the examples/s."""
    return statistics.median(figures.examples_per_sec)


def median_secs(figures: Figures) -> float:
    """Return the median of the seconds to the target, or infinity if most runs never reached it."""
    return statistics.median(_with_never_as_infinity(figures.secs_to_target))


def _with_never_as_infinity(secs: Sequence[float | None]) -> list[float]:
    return [float("inf") if value is None else value for value in secs]


def _secs(secs: float) -> str:
    return "never" if secs == float("inf") else f"{secs:.2f}"
