"""The best setting of each contender, in `settings.json`: all are tuned alike, from the same grid.

First every optimizer is tried with each of its rates in one cycle, then with the best of them and the next lower one at
a constant rate. The best cycle is tried with the other numbers of batches, and the best of all with the contender's
other variants. Each such trial is one run; the three soonest settings are then tried with two more seeds.

A cycle that is hardly long enough reaches the target by luck. So the best setting and its next longer cycle are tried
with five more, and the one that ends at a safe accuracy with more of them is taken. The seeds are not those of the
comparison, so that no contender is compared in the very runs that chose its setting.
"""

import json
import pathlib
import statistics
import sys
from collections.abc import Mapping, Sequence

from benchmarks import contenders, report
from benchmarks.contenders import Contender, Setting

SETTINGS = pathlib.Path(__file__).parent / "settings.json"
SEEDS = (100, 101, 102)
NUM_FINALISTS = 3
CONFIRMING_SEEDS = (103, 104, 105, 106, 107)
SAFE_ACCURACY = 0.976  # a cycle that ends at less reaches the target by luck
RATES = {"adam": (0.002, 0.004), "sgd": (0.5, 1.0), "nesterov": (0.05, 0.1, 0.2, 0.3, 0.4)}
# Of 100 examples, of all workers; each is a whole number of the calls of every contender. One cycle ends at a rate of
# 0, so it must be hardly longer than it takes to reach the target.
CYCLES = (2048, 1280, 1536, 3072)
CONSTANT = 4096  # enough for a constant rate: a shorter run would be the beginning of this one


def read_settings() -> dict[str, Setting]:
    """Return the best setting of each contender, by name."""
    settings = json.loads(SETTINGS.read_text()) if SETTINGS.exists() else {}
    return {name: Setting(**fields) for name, fields in settings.items()}


def setting_of(contender: Contender) -> Setting:
    """Return the setting that a contender trains with; exit with an error if it is not tuned yet."""
    settings = read_settings()
    if contender.name not in settings:
        name = contender.name
        sys.exit(f'error: {SETTINGS} has no setting of "{name}": run python -m benchmarks tune --only "{name}"')
    return settings[contender.name]


def tune(only: Sequence[str] = ()) -> None:
    """Find the best setting of each contender, or of some of them: most of an hour."""
    for contender in contenders.CONTENDERS:
        if contender.name in (only or contenders.BY_NAME):
            settings = read_settings() | {contender.name: best_setting(contender)}
            report.write_json(SETTINGS, {name: setting._asdict() for name, setting in settings.items()})


def best_setting(contender: Contender) -> Setting:
    """Return the setting of the grid with which a contender is soonest at the target."""
    secs: dict[Setting, list[float | None]] = {}

    def try_all(settings: Sequence[Setting], seeds: Sequence[int] = SEEDS[:1]) -> None:
        for setting in settings:
            secs.setdefault(setting, []).extend(
                contenders.train(contender, setting, seed)["secs_to_target"] for seed in seeds
            )

    def tried(optimizer: str, rate: float, schedule: str, num_batches: int) -> Setting:
        return Setting(optimizer, rate, schedule, num_batches, contender.variants[0])

    for optimizer, rates in RATES.items():
        cycles = [tried(optimizer, rate, "one_cycle", CYCLES[0]) for rate in rates]
        try_all(cycles)
        best_rate = rates.index(ranked({setting: secs[setting] for setting in cycles})[0].learning_rate)
        constant = rates[max(best_rate - 1, 0) : best_rate + 1]
        try_all([tried(optimizer, rate, "constant", CONSTANT) for rate in constant])
    cycle = next(setting for setting in ranked(secs) if setting.lr_schedule == "one_cycle")
    try_all([cycle._replace(num_batches=num_batches) for num_batches in CYCLES[1:]])
    best = ranked(secs)[0]
    try_all([best._replace(variant=variant) for variant in contender.variants[1:]])
    finalists = ranked(secs)[:NUM_FINALISTS]
    try_all(finalists, SEEDS[1:])
    return confirmed(contender, ranked({setting: secs[setting] for setting in finalists})[0])


def confirmed(contender: Contender, best: Setting) -> Setting:
    """Return a setting, or its next longer cycle if that ends at a safe accuracy with more seeds."""
    if best.lr_schedule == "constant":
        return best
    longer = [num_batches for num_batches in sorted(CYCLES) if num_batches > best.num_batches]
    settings = [best, *(best._replace(num_batches=num_batches) for num_batches in longer[:1])]
    secs: dict[Setting, list[float | None]] = {}
    for setting in settings:
        runs = [contenders.train(contender, setting, seed) for seed in CONFIRMING_SEEDS]
        secs[setting] = [run["secs_to_target"] if run["test_accuracy"] >= SAFE_ACCURACY else None for run in runs]
    return ranked(secs)[0]


def ranked(secs_to_target: Mapping[Setting, Sequence[float | None]]) -> list[Setting]:
    """Return the settings whose runs reach the target most often first, and of these the lowest median first."""

    def rank(setting: Setting) -> tuple[float, float]:
        secs = [float("inf") if value is None else value for value in secs_to_target[setting]]
        return secs.count(float("inf")) / len(secs), statistics.median(secs)

    return sorted(secs_to_target, key=rank)
