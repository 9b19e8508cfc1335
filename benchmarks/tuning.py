"""The best setting of each contender: `settings.json`.

Settings are chosen with other seeds than those of the comparison, so that no contender is compared in the very runs
that chose its setting.
"""

import json
import pathlib
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence

from benchmarks import contenders
from benchmarks.contenders import Contender

SETTINGS = pathlib.Path(__file__).parent / "settings.json"
TUNING_SEEDS = (100, 101, 102)
GRID = {
    "adam": (0.001, 0.002, 0.004),
    "sgd": (0.2, 0.5, 1.0),
    "momentum": (0.02, 0.05, 0.1),
}
ONE_CYCLE_GRID = {  # the greatest rate is reached only once, so it may be greater
    "momentum": (0.1, 0.2, 0.3),
    "nesterov": (0.1, 0.2, 0.3),
}
NUM_FINALISTS = 3  # settings that are tried with all seeds; the others only with the first


def read_settings() -> dict[str, str]:
    """Return the best setting of each tuned contender, and the chosen contender of each family, by name."""
    settings: dict[str, str] = json.loads(SETTINGS.read_text()) if SETTINGS.exists() else {}
    return settings


def setting_of(contender: Contender, settings: Mapping[str, str]) -> str:
    """Return the setting that a contender trains with; exit with an error if it is not tuned yet."""
    name = contender.tuned_as or contender.name
    if name not in settings:
        sys.exit(f"error: {SETTINGS} has no setting of {name!r}: find it with --tune --only {name!r}")
    return settings[name]


def compared(settings: Mapping[str, str], is_quick: bool) -> list[Contender]:
    """Return the contenders of the comparison: all, but of PyTorch's local steps only the recommended number.

    In a quick comparison, return only some of them.
    """
    for name in contenders.FAMILIES:
        if name not in settings:
            sys.exit(f"error: {SETTINGS} has no {name!r}: find it with --tune --only {name!r}")
    left_out = {c.name for c in contenders.TORCH_LOCAL} - {settings[contenders.RECOMMENDED_TORCH]}
    if is_quick:
        quick = {*contenders.QUICK, settings[contenders.RECOMMENDED]}
        left_out |= {c.name for c in contenders.CONTENDERS} - quick
    return [contender for contender in contenders.CONTENDERS if contender.name not in left_out]


def tune(names: Sequence[str]) -> None:
    """Find the best setting of the tuned contenders among `names`, and then the best of each family among them."""
    settings = read_settings()
    for contender in contenders.CONTENDERS:
        if contender.name in names and not contender.tuned_as:
            _write(settings, contender.name, best_setting(contender))
    for name, family in contenders.FAMILIES.items():
        if name in names:
            secs = {c.name: _secs(c, setting_of(c, settings), TUNING_SEEDS) for c in family}
            _write(settings, name, soonest(secs))


def best_setting(contender: Contender) -> str:
    """Return the setting of the grid with which a contender is soonest at the target."""
    rates_of = ONE_CYCLE_GRID if contender == contenders.OURS_ONE_CYCLE else GRID
    grid = [f"{optimizer} {rate}" for optimizer, rates in rates_of.items() for rate in rates]
    secs = {setting: _secs(contender, setting, TUNING_SEEDS[:1]) for setting in grid}
    finalists: dict[str, list[float | None]] = {}
    for _ in range(NUM_FINALISTS):
        setting = soonest({name: value for name, value in secs.items() if name not in finalists})
        finalists[setting] = secs[setting]
    return soonest({s: [*first, *_secs(contender, s, TUNING_SEEDS[1:])] for s, first in finalists.items()})


def soonest(secs_to_target: Mapping[str, Sequence[float | None]]) -> str:
    """Return the name with the lowest median among those whose runs reach the target most often; None: it never did."""

    def rank(name: str) -> tuple[float, float]:
        secs = [float("inf") if value is None else value for value in secs_to_target[name]]
        return secs.count(float("inf")) / len(secs), statistics.median(secs)

    return min(secs_to_target, key=rank)


def _secs(contender: Contender, setting: str, seeds: Iterable[int]) -> list[float | None]:
    return [contenders.run(contender, setting, seed)["secs_to_target"] for seed in seeds]


def _write(settings: dict[str, str], name: str, value: str) -> None:
    settings[name] = value
    print(f"{name}: {value}", flush=True)
    SETTINGS.write_text(json.dumps(settings, indent=2) + "\n")
