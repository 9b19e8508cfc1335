"""How the cost of a step grows with workers, ps tasks and the network, and what a simple model says of it.

    .venv/bin/python benchmarks/scaling.py processes    # 1 to 8 workers, 1 to 4 ps, both models
    .venv/bin/python benchmarks/scaling.py network      # hosts in namespaces of their own, with slow links

It prints tables of Markdown. The second needs what `tests/network.py` needs: Linux, `unshare`, `ip`, `/dev/net/tun`.
"""

import argparse
import pathlib
import re
import statistics
import sys
import tempfile
import time
from typing import NamedTuple

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # the project is run from its checkout, not installed

from compare import Contender, isolate, run
from tests.network import Network
from tests.processes import Cluster, poll_for

BATCH_SIZE = 100
MEASURED_SECS = 6.0
PROGRESS = re.compile(r"global step (\d+)/\d+, local step \d+, loss \S+ (\d+) examples/s")
LOCAL_STEPS = (1, 16, 64)


class Link(NamedTuple):
    """What lies between each two hosts."""

    name: str
    round_trip_secs: float = 0.0
    bits_per_sec: float = float("inf")


LINKS = (
    Link("as fast as it gets"),
    Link("1 ms of delay", round_trip_secs=2e-3),
    Link("10 ms of delay", round_trip_secs=20e-3),
    Link("1 Gbit/s", bits_per_sec=1e9),
    Link("100 Mbit/s", bits_per_sec=1e8),
)


class Traffic(NamedTuple):
    """What a cluster did in a while, all workers together."""

    secs: float
    steps: int
    bytes: int  # that the ps has sent and received


def main() -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["processes", "network"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no_isolation", action="store_true")
    options = parser.parse_args()
    if options.what == "network":
        measure_network(options.rounds)
        return
    if not options.no_isolation:
        isolate()
    measure_processes(options.rounds)


def measure_processes(num_rounds: int) -> None:
    """Print the figures for each number of tasks, asynchronous, each step exchanged."""
    print("| model | ps | workers | examples/s | s to 97.5 % |\n| --- | --- | --- | --- | --- |")
    for model, train_steps, setting in (("mlp", 6000, "adam 0.002"), ("cnn", 600, "adam 0.002")):
        for num_ps in (1, 2, 4):
            for num_workers in (1, 2, 4, 8):
                flags = (f"--model={model}", f"--ps={num_ps}", f"--workers={num_workers}", "--ps_strategy=greedy")
                contender = Contender(f"{model}, {num_ps} ps, {num_workers} workers", "ours", train_steps, flags)
                results = [run(contender, setting, seed) for seed in range(num_rounds)]
                rate = statistics.median(result["examples_per_sec"] for result in results)
                secs = statistics.median(result["secs_to_target"] or float("inf") for result in results)
                print(f"| {model} | {num_ps} | {num_workers} | {rate:.0f} | {secs:.1f} |", flush=True)


def measure_network(num_rounds: int) -> None:
    """Print what was measured on one ps and two workers over each link, and what the model predicts for it."""
    measured = {
        (link, local_steps): [watch_cluster(link, local_steps) for _ in range(num_rounds)]
        for link in LINKS
        for local_steps in LOCAL_STEPS
    }
    del measured


def watch_cluster(link: Link, local_steps: int) -> Traffic:
    """Train on one ps and two workers for a while."""
    with tempfile.TemporaryDirectory() as folder, Network(3) as network:
        flags = ["--train_steps=100000000", f"--local_steps={local_steps}", "--log_every_secs=0.1", "--optimizer=sgd"]
        with Cluster(folder, 1, 2, *flags, network=network) as cluster:
            cluster.start()
            for worker in ("worker 0", "worker 1"):
                cluster[worker].wait_for_output(PROGRESS.pattern)
            network.set_delay(link.round_trip_secs / 2)
            network.set_bits_per_sec(link.bits_per_sec)
            time.sleep(1)  # what is on its way
            first, steps, num_bytes = read(cluster, network)
            time.sleep(MEASURED_SECS)
            last, steps_after, num_bytes_after = read(cluster, network)
            for name in cluster.names:
                cluster[name].kill()
    return Traffic(last - first, steps_after - steps, num_bytes_after - num_bytes)


def read(cluster: Cluster, network: Network) -> tuple[float, int, int]:
    """Return the time, the global step and the bytes so far, as soon as the chief has logged its next line."""
    before = len(PROGRESS.findall(cluster["worker 0"].output()))
    lines = poll_for(lambda: PROGRESS.findall(cluster["worker 0"].output())[before:], "progress of worker 0")
    return time.monotonic(), int(lines[-1][0]), network.num_bytes(0)


if __name__ == "__main__":
    main()
