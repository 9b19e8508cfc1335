"""Measure something, and print it: `python -m benchmarks NAME [options]`; with --write, put it into its document, too.

Without a name it lists what there is. What is measured runs in a private network where the system allows it, since
TensorFlow's servers listen on every interface of their machine.
"""

import argparse
import importlib
import inspect
import os
import pathlib
import signal
import subprocess
import sys
import types
from typing import Any, NamedTuple

from benchmarks import contenders, report
from benchmarks.testbed import encrypted, network
from runtime.data import download

PRIVATE_NETWORK = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$0" "$@"']
EXAMPLES = report.PROJECT / "examples"


class Benchmark(NamedTuple):
    """What a name stands for."""

    function: str  # "module.function"; its parameters are the options
    what: str
    document: pathlib.Path | None = None  # what the function returns is its section NAME; None: it writes
    hosts: types.ModuleType | None = None  # what makes a host for each task; None: all run in one private network


BENCHMARKS = {
    "tune": Benchmark("tuning.tune", "find the best setting of each contender of the comparison (an hour)"),
    "compare": Benchmark("compare.compare", "compare this script with others, at these settings (15 minutes)"),
    "redraw": Benchmark("compare.write_documents", "write tables and chart of the last comparison again"),
    "recommended": Benchmark("outcomes.measure_recommended", "what the recommended flags reach", report.DETAILS),
    "accuracy": Benchmark("outcomes.measure_accuracy", "the accuracy after 10 000 steps of each kind", report.DETAILS),
    "replication": Benchmark("outcomes.measure_replication", "ways to replicate a model", report.DETAILS),
    "start": Benchmark("start.measure_start", "how long a cluster takes to start and exit", report.DETAILS),
    "watching": Benchmark(
        "watching.measure_watching", "what the display, summaries and evaluations cost", report.DETAILS
    ),
    "data": Benchmark("data.measure_data", "speed and memory with TFRecord files", report.DETAILS),
    "messages": Benchmark("scaling.count_messages", "the messages of an exchange", report.DETAILS),
    "processes": Benchmark("scaling.measure_processes", "1 to 8 workers, 1 to 4 ps tasks", report.DETAILS),
    "network": Benchmark("hosts.measure_network", "slow links between the tasks", report.PERFORMANCE, network),
    "encryption": Benchmark(
        "hosts.measure_encryption", "WireGuard compared with no encryption", report.DETAILS, encrypted
    ),
    "ps": Benchmark(
        "hosts.measure_ps", "when more ps tasks help: 4 and 8 workers on slow links", report.DETAILS, network
    ),
    "table": Benchmark("tables.measure_table", "what small and large embedding tables cost", report.DETAILS, network),
    "languages": Benchmark(
        "tables.measure_languages",
        "languages of words, compared with fastText and the classic way",
        EXAMPLES / "languages" / "README.md",
    ),
    "flights": Benchmark(
        "tables.measure_flights",
        "late flights, compared with the classic way and one process",
        EXAMPLES / "flights" / "README.md",
    ),
    "unequal": Benchmark(
        "unequal.measure_unequal", "one of two workers paused most of the time, in three modes", report.DETAILS
    ),
    "simulated": Benchmark("crowd.measure_simulated", "the heartbeats of up to 1000 workers", report.DETAILS),
    "real": Benchmark("crowd.measure_real", "2 ps and 24 workers, six of which are killed at once", report.DETAILS),
}


def isolate() -> None:
    """Start this program again in a network of its own, where the system allows it."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):  # gRPC would look for the tasks behind it
        os.environ.pop(name, None)
        os.environ.pop(name.upper(), None)
    os.environ["PATH"] = network.ENVIRONMENT["PATH"]
    attempt = [*PRIVATE_NETWORK, "true"]
    if network.find_program(attempt[0]) and not subprocess.run(attempt, capture_output=True).returncode:
        command = [sys.executable, "-m", "benchmarks", *sys.argv[1:], "--no_isolation"]
        os.execvp(PRIVATE_NETWORK[0], [*PRIVATE_NETWORK, *command])
    print("warning: there is no private network here: other machines may reach the tasks", file=sys.stderr)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the options; those of a benchmark are the parameters of its function."""
    names = "\n".join(f"  {name:12} {benchmark.what}" for name, benchmark in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        "python -m benchmarks",
        usage="%(prog)s NAME [options]",
        description=__doc__,
        epilog=f"names:\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", choices=BENCHMARKS, metavar="NAME")
    parser.add_argument("--write", action="store_true", help="put what is measured into its document")
    parser.add_argument("--no_isolation", action="store_true", help="run in the machine's own network")
    if arguments and (benchmark := BENCHMARKS.get(arguments[0])):
        for name, parameter in inspect.signature(load(benchmark)).parameters.items():
            if name == "write":
                continue
            if isinstance(parameter.default, int):
                parser.add_argument(
                    f"--{name}", type=positive, default=parameter.default, help="%(default)s by default"
                )
            else:
                parser.add_argument(f"--{name}", nargs="+", choices=contenders.BY_NAME, default=(), metavar="CONTENDER")
    options = parser.parse_args(arguments)
    if options.name is None:
        parser.print_help()
        sys.exit()
    return options


def positive(text: str) -> int:
    """Return the number that an option gives."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def load(benchmark: Benchmark) -> Any:
    """Return the function of a benchmark."""
    module, _, function = benchmark.function.partition(".")
    return getattr(importlib.import_module(f"benchmarks.{module}"), function)


def main() -> None:
    """Do what the command line says."""
    options = vars(parse(sys.argv[1:]))
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # and so end what has been started
    name, writes, is_isolated = (options.pop(option) for option in ("name", "write", "no_isolation"))
    benchmark = BENCHMARKS[name]
    if benchmark.hosts and (why := benchmark.hosts.missing()):
        sys.exit(f"error: {name} makes hosts of its own, which cannot be here: {why}")
    if not is_isolated:
        download.fetch(download.default_data_dir())
        if name == "flights":  # pip needs the network
            importlib.import_module("benchmarks.tables").fetch_flights()
        if not benchmark.hosts:
            isolate()
    header = report.run_header()
    function = load(benchmark)
    if "write" in inspect.signature(function).parameters:
        options["write"] = writes
    text = function(**options)
    if benchmark.document:
        print(text)
        if writes:
            report.write_section(benchmark.document, name, f"{header}\n\n{text}")


if __name__ == "__main__":
    main()
