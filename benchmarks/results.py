"""The figures of a run, as the tables need them: `results.json`, `quick.json` and `accuracy.json`."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

FOLDER = pathlib.Path(__file__).parent
RESULTS, QUICK, ACCURACY = (FOLDER / f"{name}.json" for name in ("results", "quick", "accuracy"))


class Figures(NamedTuple):
    """The figures of one contender, one for each round."""

    setting: str
    examples_per_sec: list[float]
    secs_to_target: list[float | None]  # None: never reached
    setup_secs: list[float]
    constant_batch_ratio: list[float] | None  # of a contender that shows what the input costs


class Results(NamedTuple):
    """The figures of a comparison."""

    header: str  # machine, versions, commit and date of the run
    recommended: str  # the contender that the README recommends
    figures: dict[str, Figures]  # by contender


class Accuracy(NamedTuple):
    """The test accuracies after `train_steps` global steps."""

    header: str
    train_steps: int
    setting: str
    accuracies: dict[str, list[float]]  # by contender, one for each round


def make_figures(setting: str, runs: Sequence[Mapping[str, Any]]) -> Figures:
    """Return the figures of the runs of one contender."""
    ratios = [run["constant_batch_ratio"] for run in runs if "constant_batch_ratio" in run]
    return Figures(
        setting,
        [run["examples_per_sec"] for run in runs],
        [run["secs_to_target"] for run in runs],
        [run["setup_secs"] for run in runs],
        ratios or None,
    )


def write_results(results: Results, path: pathlib.Path) -> None:
    """Write the figures of a comparison, one contender a line."""
    figures = {name: figures._asdict() for name, figures in results.figures.items()}
    _write(path, {"header": results.header, "recommended": results.recommended}, figures)


def read_results(path: pathlib.Path) -> Results:
    """Return the figures of the last comparison that was written there."""
    fields = json.loads(path.read_text())
    figures = {name: Figures(**values) for name, values in fields.pop("contenders").items()}
    return Results(figures=figures, **fields)


def write_accuracy(accuracy: Accuracy) -> None:
    """Write the accuracies of a full run, one contender a line."""
    fields = accuracy._asdict()
    accuracies = fields.pop("accuracies")
    _write(ACCURACY, fields, accuracies)


def read_accuracy() -> Accuracy:
    """Return the accuracies of the last full run."""
    fields = json.loads(ACCURACY.read_text())
    return Accuracy(accuracies=fields.pop("contenders"), **fields)


def _write(path: pathlib.Path, fields: Mapping[str, Any], by_contender: Mapping[str, Any]) -> None:
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in by_contender.items()]
    head = "".join(f" {json.dumps(name)}: {json.dumps(value)},\n" for name, value in fields.items())
    contenders = ",\n".join(lines)
    path.write_text(f'{{\n{head} "contenders": {{\n{contenders}\n }}\n}}\n')
