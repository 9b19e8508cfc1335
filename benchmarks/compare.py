"""Train the same model in every way, side by side, and write the figures into `docs/benchmarks.md`.

    .venv/bin/python benchmarks/compare.py --tune            # finds the best settings: settings.json; over an hour
    .venv/bin/python benchmarks/compare.py                   # compares all at these: 40 minutes on two cores
    .venv/bin/python benchmarks/compare.py --quick           # compares eight of them: ten minutes
    .venv/bin/python benchmarks/compare.py --accuracy        # accuracies after 10 000 global steps: 15 minutes
    .venv/bin/python benchmarks/compare.py --from_results    # writes the document again, without running anything
    .venv/bin/python benchmarks/compare.py --only "ours, asynchronous" --rounds 1    # prints, and writes nothing

It needs `benchmarks/requirements.txt` beside the program's own. Each round runs each contender once, one after the
other, so that other work of the machine hits all alike; figures are medians over the rounds. Where the system allows
it, all of it runs in a private network.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # the project is run from its checkout, not installed

from benchmarks import chart, contenders, report, results, tables, tuning
from benchmarks.contenders import Contender
from benchmarks.isolation import isolate

NUM_ROUNDS, NUM_QUICK_ROUNDS = 5, 3
CHART, QUICK_CHART = (report.BENCHMARKS.with_name(f"{name}.png") for name in ("benchmarks", "benchmarks-quick"))
ACCURACY_STEPS = 10000
ACCURACY_SETTING = (
    "adam 0.001"  # the program's default; the setting that is soonest at 97.5 % is not the best in the end
)


def run_comparison(chosen: Sequence[Contender], num_rounds: int) -> results.Results:
    """Run all contenders in turn, again and again, each with its best setting."""
    header, settings = report.run_header(), tuning.read_settings()
    setting = {contender.name: tuning.setting_of(contender, settings) for contender in chosen}
    runs: dict[str, list[dict[str, float]]] = {contender.name: [] for contender in chosen}
    for seed in range(num_rounds):
        for contender in chosen:
            runs[contender.name].append(contenders.run(contender, setting[contender.name], seed))
    figures = {name: results.make_figures(setting[name], of_one) for name, of_one in runs.items()}
    return results.Results(header, settings.get(contenders.RECOMMENDED, ""), figures)


def run_accuracy(chosen: Sequence[Contender], num_rounds: int) -> results.Accuracy:
    """Train all contenders for the same number of steps with the same setting, again and again."""
    header = report.run_header()
    accuracies: dict[str, list[float]] = {contender.name: [] for contender in chosen}
    for seed in range(num_rounds):
        for contender in chosen:
            run = contenders.run(contender._replace(train_steps=ACCURACY_STEPS), ACCURACY_SETTING, seed)
            accuracies[contender.name].append(run["test_accuracy"])
    return results.Accuracy(header, ACCURACY_STEPS, ACCURACY_SETTING, accuracies)


def accuracy_names() -> list[str]:
    """Return the contenders whose accuracies are compared: exchanges that are exact, rounded, or after many steps."""
    recommended = tuning.read_settings().get(contenders.RECOMMENDED, contenders.OURS_SYNC_LOCAL[-1].name)
    asynchronous = (contenders.OURS, contenders.OURS_BFLOAT16, contenders.OURS_16, contenders.OURS_64)
    return [*asynchronous, contenders.OURS_SYNC, contenders.OURS_SYNC_16, recommended]


def comparison_sections(comparison: results.Results) -> dict[str, str]:
    """Return the sections of the page of benchmarks that a full comparison fills, by name."""
    return {
        "results": describe(comparison),
        "chart": f"![The table as a chart]({CHART.name})",
    }


def describe(comparison: results.Results) -> str:
    """Return the table of a comparison, and what it holds for."""
    (first, *_) = comparison.figures.values()
    rounds = f"Medians of {len(first.examples_per_sec)} rounds."
    return f"{comparison.header}\n{rounds}\n\n{tables.results_table(comparison)}"


def accuracy_sections(accuracy: results.Accuracy) -> dict[str, str]:
    """Return the section of the document with the accuracies, by name."""
    runs = f"After {accuracy.train_steps} global steps with the setting {accuracy.setting}."
    return {"accuracy": f"{accuracy.header}\n{runs}\n\n{tables.accuracy_table(accuracy)}"}


def write_document() -> None:
    """Write the figures of the last runs into the document, and draw the charts."""
    sections: dict[str, str] = {}
    if results.QUICK.exists():
        comparison = results.read_results(results.QUICK)
        sections["quick"] = f"{describe(comparison)}\n\n![This table as a chart]({QUICK_CHART.name})"
        chart.draw_chart(comparison.figures, QUICK_CHART)
    if results.RESULTS.exists():
        comparison = results.read_results(results.RESULTS)
        sections |= comparison_sections(comparison)
        chart.draw_chart(tables.without_constant_batch(comparison.figures), CHART)
        report.write_section(
            report.OVERHEAD, "input", f"{comparison.header}\n\n{tables.input_table(comparison.figures)}"
        )
    if results.ACCURACY.exists():
        sections |= accuracy_sections(results.read_accuracy())
    for name, text in sections.items():
        report.write_section(report.BENCHMARKS, name, text)


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--tune", action="store_true", help="find the best settings")
    what.add_argument("--quick", action="store_true", help="compare the eight that say most")
    what.add_argument("--accuracy", action="store_true", help="compare the accuracies after the same number of steps")
    what.add_argument("--from_results", action="store_true", help="write the document from the last full runs")
    parser.add_argument(
        "--rounds", type=int, help=f"runs of each: by default {NUM_ROUNDS}, or {NUM_QUICK_ROUNDS} quick"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run only these; print, and write no results")
    parser.add_argument("--no_isolation", action="store_true", help="run in the machine's own network")
    options = parser.parse_args()
    names = [contender.name for contender in contenders.CONTENDERS]
    for name in options.only or []:
        if name not in [*names, *contenders.FAMILIES]:
            parser.error(f"unknown contender {name!r}, expected one of {', '.join([*names, *contenders.FAMILIES])}")
    num_rounds = options.rounds or (NUM_QUICK_ROUNDS if options.quick else NUM_ROUNDS)
    if options.from_results:
        write_document()
        return
    if not options.no_isolation:
        isolate()
    if options.tune:
        tuning.tune(options.only or [*names, *contenders.FAMILIES])
    elif options.accuracy:
        wanted = options.only or accuracy_names()
        accuracy = run_accuracy([c for c in contenders.CONTENDERS if c.name in wanted], num_rounds)
        print(*accuracy_sections(accuracy).values(), sep="\n\n")
        if not options.only:
            results.write_accuracy(accuracy)
            write_document()
    elif options.only:
        comparison = run_comparison([c for c in contenders.CONTENDERS if c.name in options.only], num_rounds)
        print(tables.results_table(comparison), tables.input_table(comparison.figures), sep="\n\n")
    else:
        comparison = run_comparison(tuning.compared(tuning.read_settings(), options.quick), num_rounds)
        results.write_results(comparison, results.QUICK if options.quick else results.RESULTS)
        write_document()


if __name__ == "__main__":
    main()
