"""The best setting of each contender, in `settings.json`: all are tuned alike, from the same grid.

`README.md` has the grid and the rule, with their reasons.
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
RATES = (0.1, 0.2, 0.3, 0.4)
# Of 100 examples, of all workers; each is a whole number of the calls of every contender. One cycle ends at a rate of
# 0, so it must be hardly longer than it takes to reach the target.
CYCLES = (2048, 1280, 1536, 3072)


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


def tune(only: Sequence[str] = (), rounds: int = len(SEEDS)) -> None:
    """Find the best setting of each contender, or of some of them: most of an hour."""
    for contender in contenders.CONTENDERS:
        if contender.name in (only or contenders.BY_NAME):
            settings = read_settings() | {contender.name: best_setting(contender, range(SEEDS[0], SEEDS[0] + rounds))}
            report.write_json(SETTINGS, {name: setting._asdict() for name, setting in settings.items()})


def best_setting(contender: Contender, seeds: Sequence[int] = SEEDS) -> Setting:
    """Return the setting of the grid that reaches the target first, of those that seldom end below it."""
    secs: dict[Setting, list[float]] = {}  # to the target; infinity: of a run that ended below it

    def run(setting: Setting, seed: int = seeds[0]) -> None:
        result = contenders.train(contender, setting, seed)
        is_above = result["test_accuracy"] >= TARGET_ACCURACY
        secs.setdefault(setting, []).append(result["secs_to_target"] if is_above else float("inf"))

    def seldom_fails(setting: Setting) -> bool:
        return secs[setting].count(float("inf")) <= MAX_FAILURES

    def soonest(settings: Iterable[Setting]) -> Setting:
        return min(settings, key=lambda setting: statistics.median(secs[setting]))

    for rate in RATES:
        run(Setting(rate, CYCLES[0], contender.variants[0]))
    best = soonest(secs)
    for num_batches in CYCLES[1:]:
        run(best._replace(num_batches=num_batches))
    best = soonest(secs)
    for variant in contender.variants[1:]:
        run(best._replace(variant=variant))
    finalists: list[Setting] = []
    for setting in sorted(secs, key=lambda setting: secs[setting]):
        for seed in seeds[1:]:
            if len(finalists) < NUM_FINALISTS and seldom_fails(setting):
                run(setting, seed)
        if len(secs[setting]) == len(seeds) and seldom_fails(setting):
            finalists.append(setting)
    return soonest(finalists or secs)
