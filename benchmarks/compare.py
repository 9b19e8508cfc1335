"""Train the same model in every way, side by side, and write a table, `results.json` and a chart.

    .venv/bin/python benchmarks/compare.py --tune        # finds each contender's best setting: settings.json
    .venv/bin/python benchmarks/compare.py               # compares them at those
    .venv/bin/python benchmarks/compare.py --accuracy    # how good the model is after 10 000 global steps

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
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

FOLDER = pathlib.Path(__file__).parent
SETTINGS, RESULTS, CHART = FOLDER / "settings.json", FOLDER / "results.json", FOLDER / "results.png"
PRIVATE_NETWORK = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$0" "$@"']
TIMEOUT_SECS = 600.0
GRID = {
    "adam": (0.001, 0.002, 0.004),
    "sgd": (0.2, 0.5, 1.0),
    "momentum": (0.02, 0.05, 0.1),
}
TUNING_SEEDS = (100, 101, 102)  # others than those of the comparison
NUM_FINALISTS = 3  # settings that are tried with all of these; the others only with the first
ACCURACY_STEPS = 10000
ACCURACY_SETTING = "adam 0.001"  # our own default, for all alike: the fastest to a target is not the best in the end


class Contender(NamedTuple):
    """A way to train."""

    name: str
    script: str
    train_steps: int  # enough to reach the target with any good setting, or to tell what the input costs
    flags: tuple[str, ...] = ()
    tuned_as: str = ""  # the contender whose setting it takes, if it has none of its own


SYNC, LOCAL, CONSTANT = "--sync_replicas", "--local_steps=", "--constant_batch"
OURS, OURS_16, OURS_SYNC_16 = "ours, asynchronous", "ours, 16 local steps", "ours, synchronous, 16 local steps"
PS_STRATEGY = "ParameterServerStrategy, ten steps per call"
SINGLE_TF = "one process, TensorFlow, XLA, 100 steps per call"
# Those whose figures are compared stand beside each other, since a shared machine changes within a round, too.
CONTENDERS = [
    Contender(OURS, "ours", 8000),
    *(Contender(f"ours, {h} local steps", "ours", 15000, (f"{LOCAL}{h}",), OURS_16) for h in (4, 8)),
    Contender(OURS_16, "ours", 30000, (f"{LOCAL}16",)),
    *(Contender(f"ours, {h} local steps", "ours", 100000, (f"{LOCAL}{h}",), OURS_16) for h in (32, 64)),
    Contender("the limit", "limit", 30000, tuned_as=OURS_16),
    Contender("ours, synchronous", "ours", 3000, (SYNC,)),
    Contender(OURS_SYNC_16, "ours", 10000, (SYNC, f"{LOCAL}16")),
    *(
        Contender(f"ours, synchronous, {h} local steps", "ours", 15000, (SYNC, f"{LOCAL}{h}"), OURS_SYNC_16)
        for h in (32, 64, 128, 256)
    ),
    Contender(SINGLE_TF, "single_tf", 20000),
    Contender("one process, TensorFlow", "single_tf", 8000, ("--steps_per_call=1", "--nojit_compile"), SINGLE_TF),
    Contender("one process, PyTorch", "single_torch", 10000),
    Contender("DistributedDataParallel", "torch_ddp", 3000),
    Contender("MultiWorkerMirroredStrategy", "tf2_multi_worker_mirrored", 3000),
    Contender("the classic script", "classic", 6000),
    Contender("ParameterServerStrategy", "tf2_parameter_server", 4000, ("--steps_per_call=1",), PS_STRATEGY),
    Contender(PS_STRATEGY, "tf2_parameter_server", 6000),
    Contender(f"{OURS}, a constant batch", "ours", 60000, (CONSTANT,), OURS),
    Contender(f"{OURS_16}, a constant batch", "ours", 120000, (f"{LOCAL}16", CONSTANT), OURS_16),
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

    def secs(contender: Contender, setting: str, seed: int) -> float:
        return run(contender, setting, seed)["secs_to_target"] or float("inf")

    for contender in contenders:
        grid = [f"{optimizer} {rate}" for optimizer, rates in GRID.items() for rate in rates]
        first = {setting: secs(contender, setting, TUNING_SEEDS[0]) for setting in grid}
        found = {
            setting: statistics.median([first[setting], *(secs(contender, setting, seed) for seed in TUNING_SEEDS[1:])])
            for setting in sorted(grid, key=lambda setting: first[setting])[:NUM_FINALISTS]
        }
        settings[contender.name] = min(found, key=lambda setting: found[setting])
        print(f"{contender.name}: {settings[contender.name]}", flush=True)
        SETTINGS.write_text(json.dumps(settings, indent=2) + "\n")


def run_rounds(
    contenders: Sequence[Contender], settings: Mapping[str, str], num_rounds: int
) -> dict[str, list[dict[str, Any]]]:
    """Run all in turn, again and again; return what each found, by its name."""
    runs: dict[str, list[dict[str, Any]]] = {contender.name: [] for contender in contenders}
    for seed in range(num_rounds):
        for contender in contenders:
            setting = settings[contender.tuned_as or contender.name]
            runs[contender.name].append({"setting": setting, **run(contender, setting, seed)})
    return runs


def compare(contenders: Sequence[Contender], num_rounds: int) -> None:
    """Write what all contenders need, as `results.json`, a table and a chart."""
    if not SETTINGS.exists():
        sys.exit(f"error: {SETTINGS} is missing: find the settings first, with --tune")
    runs = run_rounds(contenders, json.loads(SETTINGS.read_text()), num_rounds)
    RESULTS.write_text(json.dumps(runs, indent=1) + "\n")
    constant = [contender.name for contender in contenders if CONSTANT in contender.flags]
    peers = {name: results for name, results in runs.items() if name not in constant}
    if peers:
        print_table(peers)
        draw_chart(peers)
    print_input_cost({name: runs[name] for name in constant})


def compare_accuracy(contenders: Sequence[Contender], num_rounds: int) -> None:
    """Print how good the models are after as many steps, with and without local steps."""
    chosen = [
        c._replace(train_steps=ACCURACY_STEPS, tuned_as="")
        for c in contenders
        if c.script == "ours" and CONSTANT not in c.flags
    ]
    runs = run_rounds(chosen, dict.fromkeys([c.name for c in chosen], ACCURACY_SETTING), num_rounds)
    print("| | test accuracy: mean | spread |\n| --- | --- | --- |")
    for name, results in runs.items():
        found = _figures(results, "test_accuracy")
        spread = f"{min(found):.4f} to {max(found):.4f}"
        print(f"| {name} | {statistics.mean(found):.4f} | {spread} |")


def _figures(results: Sequence[dict[str, Any]], field: str) -> list[float]:
    return [result[field] if result[field] is not None else float("inf") for result in results]


def print_table(runs: dict[str, list[dict[str, Any]]]) -> None:
    """Print medians, spreads and rates as ratios to the first, as a table of Markdown."""
    print("| | setting | 1000 examples/s | spread | of the first | s to 97.5 % | spread |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    (first, *_) = runs.values()
    first_rate = statistics.median(_figures(first, "examples_per_sec"))
    for name, results in runs.items():
        rates, secs = _figures(results, "examples_per_sec"), _figures(results, "secs_to_target")
        median = statistics.median(rates)
        cells = [
            name,
            results[0]["setting"],
            _thousands(median),
            f"{_thousands(min(rates))} to {_thousands(max(rates))}",
        ]
        cells += [
            f"{median / first_rate:.2f}",
            _secs(statistics.median(secs)),
            f"{_secs(min(secs))} to {_secs(max(secs))}",
        ]
        print(f"| {' | '.join(cells)} |")


def _thousands(rate: float) -> str:
    return f"{rate / 1000:.0f}"


def _secs(secs: float) -> str:
    return "never" if secs == float("inf") else f"{secs:.2f}"


def print_input_cost(runs: dict[str, list[dict[str, Any]]]) -> None:
    """Print the rates on a constant batch, as ratios to those on real ones in the same runs, as a table of Markdown."""
    print("| | of the rate on real batches | spread |\n| --- | --- | --- |")
    for name, results in runs.items():
        ratios = _figures(results, "constant_batch_ratio")
        print(f"| {name} | {statistics.median(ratios):.2f} | {min(ratios):.2f} to {max(ratios):.2f} |")


def draw_chart(runs: dict[str, list[dict[str, Any]]]) -> None:
    """Draw both figures of each contender as bars."""
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5), sharey=True)
    for axes, field, title in (
        (left, "examples_per_sec", "1000 examples/s of all workers"),
        (right, "secs_to_target", "seconds to 97.5 % test accuracy (no bar: never)"),
    ):
        medians = [statistics.median(_figures(results, field)) for results in runs.values()]
        axes.barh(list(runs), [median if median < float("inf") else 0 for median in medians])
        axes.set_title(title)
    left.invert_yaxis()  # the first on top
    left.xaxis.set_major_formatter(lambda rate, _: _thousands(rate))
    figure.tight_layout()
    figure.savefig(CHART, dpi=100)


def isolate() -> None:
    """Become this program again in a network of our own, where that is possible."""
    if not subprocess.run([*PRIVATE_NETWORK, "true"], capture_output=True).returncode:
        os.execvp(PRIVATE_NETWORK[0], [*PRIVATE_NETWORK, sys.executable, *sys.argv, "--no_isolation"])


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", action="store_true", help="find the best settings")
    parser.add_argument("--accuracy", action="store_true", help="compare how good our models are in the end")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", help="the names of contenders; all others are left out")
    parser.add_argument("--no_isolation", action="store_true")
    options = parser.parse_args()
    if not options.no_isolation:
        isolate()
    chosen = [c for c in CONTENDERS if not options.only or c.name in options.only]
    if options.tune:
        tune([contender for contender in chosen if not contender.tuned_as])
    elif options.accuracy:
        compare_accuracy(chosen, options.rounds)
    else:
        compare(chosen, options.rounds)


if __name__ == "__main__":
    main()
