"""The comparison of this script with other ways to train the same model.

Each round runs each contender once, with its best setting, and then the commands; one after the other, so that other
work of the machine hits all alike. With --write, one run writes `results.json`, and from that come the tables in
`docs/performance.md`, the chart, and what the READMEs say.
"""

import json
import pathlib
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks import chart, contenders, readme, report, tuning
from benchmarks.contenders import DDP, OURS, TORCH, XLA
from benchmarks.testbed.processes import Process, poll_for

RESULTS = pathlib.Path(__file__).parent / "results.json"
CHART = report.PROJECT / "docs" / "benchmarks.svg"
READMES = {report.PROJECT / "README.md": readme.ENGLISH, report.PROJECT / "README.zh-CN.md": readme.CHINESE}
LAUNCHER = "./run_local_cluster.sh"
ACCURACY = re.compile(r"^test accuracy (\d\.\d+)", re.MULTILINE)
OWN_COMMAND, TORCHRUN = "this script's launcher, with the recommended flags", "`torchrun`, two processes"


class Figures(NamedTuple):
    """The figures of one contender, one for each round."""

    setting: str
    examples_per_sec: list[float]
    secs_to_target: list[float | None]  # None: never reached
    setup_secs: list[float]

    def secs(self) -> list[float]:
        """Return the seconds to the target; infinity: never reached."""
        return [float("inf") if secs is None else secs for secs in self.secs_to_target]


class Results(NamedTuple):
    """The figures of a comparison."""

    header: str  # machine, versions, commit and date of the run
    contenders: dict[str, Figures]
    commands: dict[str, list[tuple[float, float]]]  # seconds from the command to the accuracy, and the accuracy


def compare(rounds: int = 5, only: Sequence[str] = (), write: bool = False) -> None:
    """Run contenders in turn, again and again, print what came of it and, if told to, write it; never of some only."""
    header = report.run_header()
    chosen = [contender for contender in contenders.CONTENDERS if contender.name in (only or contenders.BY_NAME)]
    settings = {contender.name: tuning.setting_of(contender) for contender in chosen}
    figures = {name: Figures(str(setting), [], [], []) for name, setting in settings.items()}
    results = Results(header, figures, {} if only else {name: [] for name in make_commands(0)})
    for seed in range(rounds):
        for contender in chosen:
            run = contenders.train(contender, settings[contender.name], seed)
            for field in ("examples_per_sec", "secs_to_target", "setup_secs"):
                getattr(figures[contender.name], field).append(run[field])
        for name, of_one in results.commands.items():
            of_one.append(time_command(make_commands(seed)[name]))
            print(name, of_one[-1], flush=True)
    print(results_table(results), commands_table(results), sep="\n\n")
    if write and not only:
        of_contenders = {name: of_one._asdict() for name, of_one in figures.items()}
        report.write_json(RESULTS, {**results._asdict(), "contenders": of_contenders})
        write_documents()


def make_commands(seed: int) -> dict[str, list[str]]:
    """Return what is timed from its start to its accuracy: each trains with the contender's best setting."""

    def flags(name: str) -> list[str]:
        contender = contenders.BY_NAME[name]
        return contenders.make_flags(contender, tuning.setting_of(contender), seed)

    plain = ["benchmarks.peers", "{}", "--snapshot_secs=0"]
    torch, xla = ([name if part == "{}" else part for part in plain] for name in ("pytorch", "tensorflow2"))
    torchrun = ["torch.distributed.run", "--nproc-per-node=2", "-m"]
    return {
        OWN_COMMAND: [LAUNCHER, *flags(OURS)],
        TORCH: [sys.executable, "-m", *torch, *flags(TORCH)],
        XLA: [sys.executable, "-m", *xla, *flags(XLA)],
        TORCHRUN: [sys.executable, "-m", *torchrun, *torch, *flags(DDP)],
    }


def time_command(command: Sequence[str]) -> tuple[float, float]:
    """Return the seconds from a command to its accuracy, and that."""
    with tempfile.TemporaryDirectory() as folder:
        if command[0] == LAUNCHER:
            command = [*command, f"--train_dir={folder}/train"]
        started_at = time.monotonic()
        process = Process(command, f"{folder}/output", cwd=report.PROJECT)
        try:
            poll_for(lambda: ACCURACY.search(process.output()) or not process.is_running(), "accuracy")
            secs = time.monotonic() - started_at
            match = ACCURACY.search(process.output())
            if process.wait() or not match:
                sys.exit(f"error: {command} ended with status {process.status}:\n{process.output()[-2000:]}")
        finally:
            process.kill()
    return round(secs, 3), float(match[1])


def read_results() -> Results:
    """Return the figures of the last comparison."""
    fields = json.loads(RESULTS.read_text())
    figures = {name: Figures(**values) for name, values in fields.pop("contenders").items()}
    return Results(contenders=figures, **fields)


def write_documents() -> None:
    """Write what came of the last comparison into the documents, and draw the chart."""
    results = read_results()
    for (document, section), text in make_sections(results).items():
        report.write_section(document, section, text)
    CHART.write_text(make_chart(results))


def make_sections(results: Results) -> dict[tuple[pathlib.Path, str], str]:
    """Return what a comparison says in the documents, by document and section."""
    command = f"```sh\n{LAUNCHER} {' '.join(recommended_flags())}\n```"
    sections = {(document, "command"): command for document in READMES}
    secs = {name: of_one.secs() for name, of_one in results.contenders.items()}
    for document, language in READMES.items():
        sections[document, "times"] = readme.describe(secs, language)
    (first, *_) = results.contenders.values()
    rounds = f"Medians of {len(first.secs_to_target)} rounds."
    text = f"{results.header}\n{rounds}\n\n{results_table(results)}"
    return sections | {
        (report.PERFORMANCE, "results"): text,
        (report.PERFORMANCE, "commands"): f"The same run.\n\n{commands_table(results)}",
    }


def make_chart(results: Results) -> str:
    """Return the chart of a comparison, in SVG."""
    bars = [
        chart.Row(name, statistics.median(of_one.secs()), statistics.median(of_one.examples_per_sec) / 1000)
        for name, of_one in results.contenders.items()
    ]
    return chart.draw(bars)


def recommended_flags() -> list[str]:
    """Return the flags that the documents recommend."""
    contender = contenders.BY_NAME[OURS]
    *flags, _ = contenders.make_flags(contender, tuning.setting_of(contender), seed=0)
    return flags


def results_table(results: Results) -> str:
    """Return medians over the rounds, the soonest first."""
    rows = []
    for name, of_one in sorted(results.contenders.items(), key=lambda item: statistics.median(item[1].secs())):
        secs, rate = of_one.secs(), statistics.median(of_one.examples_per_sec)
        spread = f"{_secs(min(secs))} to {_secs(max(secs))}" if min(secs) < max(secs) else _secs(min(secs))
        times = [_secs(statistics.median(secs)), spread, f"{rate / 1000:.0f}"]
        rows.append([name, of_one.setting, *times, f"{statistics.median(of_one.setup_secs):.1f}"])
    headings = ("", "setting", "s to 97.5 %", "spread", "1000 examples/s", "s of building, tracing and compiling")
    return report.make_table(headings, rows)


def commands_table(results: Results) -> str:
    """Return the seconds from each command to its accuracy, and that."""
    rows = []
    for name, of_one in results.commands.items():
        secs, accuracies = zip(*of_one, strict=True)
        spread = f"{100 * min(accuracies):.2f} to {100 * max(accuracies):.2f}"
        rows.append([name, *report.median_and_spread(secs), f"{100 * statistics.median(accuracies):.2f} %", spread])
    return report.make_table(("", "seconds", "spread", "test accuracy", "spread"), rows)


def _secs(secs: float) -> str:
    return "never" if secs == float("inf") else f"{secs:.2f}"
