"""Train the same model in every way, side by side, and write a table, `results.json` and a chart.

    .venv/bin/python benchmarks/compare.py --tune      # finds each contender's best setting: settings.json
    .venv/bin/python benchmarks/compare.py             # compares them at those

It needs `benchmarks/requirements.txt` beside the program's own. Each round runs each contender once, one after the
other, so that whatever else the machine does hits all alike; figures are medians over the rounds. Where the system
allows it, all of it runs in a private network, since TensorFlow's servers listen on every interface.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

FOLDER = pathlib.Path(__file__).parent
SETTINGS, RESULTS, CHART = FOLDER / "settings.json", FOLDER / "results.json", FOLDER / "results.png"
PRIVATE_NETWORK = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$0" "$@"']
TIMEOUT_SECS = 600.0
GRID = {
    "adam": (0.0005, 0.001, 0.002, 0.004, 0.008),
    "sgd": (0.05, 0.1, 0.2, 0.5, 1.0),
    "momentum": (0.01, 0.02, 0.05, 0.1, 0.2),
}
TUNING_SEEDS = (100, 101, 102)


class Contender(NamedTuple):
    """A way to train."""

    name: str
    script: str
    train_steps: int  # enough to reach the target with any good setting
    flags: tuple[str, ...] = ()
    is_limit: bool = False  # it trains no model together, and so reaches nothing


CONTENDERS = [
    Contender("ours, asynchronous", "ours", 6000),
    Contender("ours, synchronous", "ours", 3000, ("--sync_replicas",)),
    *(Contender(f"ours, {h} local steps", "ours", 1500 * h, (f"--local_steps={h}",)) for h in (4, 8)),
    *(Contender(f"ours, {h} local steps", "ours", 20000, (f"--local_steps={h}",)) for h in (16, 32, 64)),
    Contender("the classic script", "classic", 6000),
    Contender("ParameterServerStrategy", "tf2_parameter_server", 6000),
    Contender("MultiWorkerMirroredStrategy", "tf2_multi_worker_mirrored", 3000),
    Contender("DistributedDataParallel", "torch_ddp", 3000),
    Contender("one process, TensorFlow", "single_tf", 20000),
    Contender("one process, PyTorch", "single_torch", 10000),
    Contender("the limit", "limit", 40000, is_limit=True),
]


def run(contender: Contender, setting: str, seed: int) -> dict[str, Any]:
    """Train once, and return what the contender's last line says."""
    optimizer, learning_rate = setting.split()
    command = [sys.executable, str(FOLDER / f"{contender.script}.py"), *contender.flags, f"--seed={seed}"]
    command += [
        f"--train_steps={contender.train_steps}",
        f"--optimizer={optimizer}",
        f"--learning_rate={learning_rate}",
    ]
    process = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECS)
    if process.returncode:
        sys.exit(f"error: {contender.name} ended with status {process.returncode}:\n{process.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    print(f"{contender.name}, {setting}: {result}", flush=True)
    return result


def tune(contenders: Sequence[Contender]) -> None:
    """Find the setting of the grid with which each contender is soonest at the target, and write them."""
    settings = json.loads(SETTINGS.read_text()) if SETTINGS.exists() else {}
    for contender in contenders:
        secs: dict[str, float] = {}
        for setting in (f"{optimizer} {rate}" for optimizer, rates in GRID.items() for rate in rates):
            # A setting that does not get there with one seed is not tried with the next.
            found: list[float] = []
            for seed in TUNING_SEEDS:
                found.append(run(contender, setting, seed)["secs_to_target"] or float("inf"))
                if found[-1] > 2 * min([*secs.values(), float("inf")]):
                    break
            secs[setting] = statistics.median(found) if len(found) == len(TUNING_SEEDS) else float("inf")
        settings[contender.name] = min(secs, key=lambda setting: secs[setting])
        print(f"{contender.name}: {settings[contender.name]}", flush=True)
        SETTINGS.write_text(json.dumps(settings, indent=2) + "\n")


def compare(contenders: Sequence[Contender], num_rounds: int) -> None:
    """Run all in turn, and write the results."""
    settings = json.loads(SETTINGS.read_text())
    runs: dict[str, list[dict[str, Any]]] = {contender.name: [] for contender in contenders}
    for seed in range(num_rounds):
        for contender in contenders:
            runs[contender.name].append(run(contender, settings[contender.name], seed))
    RESULTS.write_text(json.dumps({"settings": settings, "runs": runs}, indent=1) + "\n")
    print_table(runs, settings)
    draw_chart(runs)


def _figures(results: Sequence[dict[str, Any]], field: str) -> list[float]:
    return [result[field] if result[field] is not None else float("inf") for result in results]


def print_table(runs: dict[str, list[dict[str, Any]]], settings: dict[str, str]) -> None:
    """Print medians, spreads and ratios to the first, as a table of Markdown."""
    print("| | setting | examples/s | from to to | of ours | s to 97.5 % | from to to | of ours |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    first: dict[str, float] = {}
    for name, results in runs.items():
        cells = [name, settings[name]]
        for field, digits in (("examples_per_sec", 0), ("secs_to_target", 2)):
            figures = _figures(results, field)
            median = statistics.median(figures)
            ratio = median / first.setdefault(field, median)
            cells += [f"{median:.{digits}f}", f"{min(figures):.{digits}f} to {max(figures):.{digits}f}", f"{ratio:.2f}"]
        print(f"| {' | '.join(cells)} |")


def draw_chart(runs: dict[str, list[dict[str, Any]]]) -> None:
    """Draw both figures of each contender as bars."""
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5), sharey=True)
    for axes, field, title in (
        (left, "examples_per_sec", "examples/s of all workers"),
        (right, "secs_to_target", "seconds to 97.5 % test accuracy"),
    ):
        medians = [statistics.median(_figures(results, field)) for results in runs.values()]
        axes.barh(list(runs), [median if median < float("inf") else 0 for median in medians])
        axes.set_title(title)
        axes.invert_yaxis()
    figure.tight_layout()
    figure.savefig(CHART, dpi=100)


def main() -> None:
    """Tune or compare, in a network of our own where that is possible."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", action="store_true", help="find the best settings")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", help="parts of the names of contenders; all others are left out")
    parser.add_argument("--no_isolation", action="store_true")
    options = parser.parse_args()
    if not options.no_isolation and not subprocess.run([*PRIVATE_NETWORK, "true"], capture_output=True).returncode:
        os.execvp(PRIVATE_NETWORK[0], [*PRIVATE_NETWORK, sys.executable, *sys.argv, "--no_isolation"])
    chosen = [c for c in CONTENDERS if not options.only or any(part in c.name for part in options.only)]
    if options.tune:
        tune([contender for contender in chosen if not contender.is_limit])
    else:
        compare(chosen, options.rounds)


if __name__ == "__main__":
    main()
