"""The best setting of each contender, in `settings.json`: all are tuned alike, from the same grid.

First every optimizer is tried with each of its rates in one cycle, then with the best of them and the next lower one at
a constant rate. The best cycle is tried with the other numbers of batches, and the best of all with the contender's
other variants. Each such trial is one run.

A setting that is hardly long enough reaches the target by luck. So from the soonest on, each is tried with more seeds,
until two have ended above the target with at least seven of eight; the better of these has the lower median. The seeds
are not those of the comparison, so that no contender is compared in the very runs that chose its setting.
"""

import json
import pathlib
import statistics
import sys
from collections.abc import Iterable, Sequence

from benchmarks import contenders, report
from benchmarks.contenders import Contender, Setting
from benchmarks.peers.clock import TARGET_ACCURACY

SETTINGS = pathlib.Path(__file__).parent / "settings.json"
SEEDS = tuple(range(100, 108))
MAX_FAILURES = 1  # of these seeds, of a setting that is long enough
NUM_FINALISTS = 2
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
    """Return the setting of the grid that reaches the target first, of those that seldom end below it."""
    secs: dict[Setting, list[float]] = {}  # to the target; infinity: of a run that ended below it

    def run(setting: Setting, seed: int = SEEDS[0]) -> None:
        result = contenders.train(contender, setting, seed)
        is_above = result["test_accuracy"] >= TARGET_ACCURACY
        secs.setdefault(setting, []).append(result["secs_to_target"] if is_above else float("inf"))

    def seldom_fails(setting: Setting) -> bool:
        return secs[setting].count(float("inf")) <= MAX_FAILURES

    def soonest(settings: Iterable[Setting]) -> Setting:
        return min(settings, key=lambda setting: statistics.median(secs[setting]))

    for optimizer, rates in RATES.items():
        cycles = [Setting(optimizer, rate, "one_cycle", CYCLES[0], contender.variants[0]) for rate in rates]
        for setting in cycles:
            run(setting)
        best = cycles.index(soonest(cycles))
        for setting in cycles[max(best - 1, 0) : best + 1]:
            run(setting._replace(lr_schedule="constant", num_batches=CONSTANT))
    cycle = soonest(setting for setting in secs if setting.lr_schedule == "one_cycle")
    for num_batches in CYCLES[1:]:
        run(cycle._replace(num_batches=num_batches))
    of_first_variant = soonest(secs)
    for variant in contender.variants[1:]:
        run(of_first_variant._replace(variant=variant))
    finalists: list[Setting] = []
    for setting in sorted(secs, key=lambda setting: secs[setting]):
        for seed in SEEDS[1:]:
            if len(finalists) < NUM_FINALISTS and seldom_fails(setting):
                run(setting, seed)
        if len(secs[setting]) == len(SEEDS) and seldom_fails(setting):
            finalists.append(setting)
    return soonest(finalists or secs)
