"""What a table costs, whatever its size; and the examples with tables, beside the classic way and others."""

import functools
import itertools
import json
import pathlib
import re
import runpy
import sys
import tempfile
import time
import types
from collections.abc import Callable, Sequence
from typing import Any

import runtime.process.environment  # noqa: F401  (first: it sets what TensorFlow reads when it is imported)

# isort: split
import numpy as np

from benchmarks import report
from benchmarks.data import peak_bytes
from benchmarks.testbed.network import Network
from benchmarks.testbed.processes import Cluster, Process, poll_for
from runtime.data import download
from runtime.data.sources import open_source
from runtime.launch.ports import choose_ports
from runtime.records.events import read_run
from runtime.records.folder import RunFolder

NUM_WORKERS = 2
SMALL = 10_000  # rows
SAVE_SECS = 60  # so the rate is measured without a checkpoint
FLAGS = (
    "--optimizer=adagrad",
    "--train_steps=100000000",
    "--log_every_secs=0.1",
    f"--save_checkpoint_secs={SAVE_SECS}",
)
PROGRESS = r"global step (\d+)/\d+, local step \d+, loss"
TABLE = f"--user_dir={report.PROJECT / 'benchmarks' / 'table'}"
WORDS = "/usr/share/dict"
DIM, BATCH_SIZE = 16, 100
RATE = 10
COMMON = (f"--data_dir={WORDS}", "--optimizer=sgd", f"--learning_rate={RATE}", "--lr_schedule=one_cycle")
OURS = {"this script": COMMON, "this script, 16 local steps": (*COMMON, "--local_steps=16")}
CLASSIC = (f"--data_dir={WORDS}", f"--learning_rate={RATE}", "--falls")
EXAMPLES = report.PROJECT / "examples"
RATE_OF_FLIGHTS = 0.05
FLIGHTS = f"{download.default_data_dir()}-flights"
Ways = dict[str, Callable[[], dict[str, float]]]  # by name: what trains once, and returns the figures of that


def measure_table(rows: int = 10_000_000, measured_secs: int = 30, num_ps: int = 3) -> str:
    """Return a table of what a step, a start and a checkpoint take with a few rows and with many."""
    columns = [train_table(num_rows, measured_secs, num_ps) for num_rows in (SMALL, rows)]
    headings = ["", *(f"{num_rows:,} rows".replace(",", " ") for num_rows in (SMALL, rows))]
    return report.make_table(headings, [[name, *(column[name] for column in columns)] for name in columns[0]])


def train_table(num_rows: int, measured_secs: int, num_ps: int) -> dict[str, str]:
    """Train for a while, each task on a host of its own; then start again from the last checkpoint."""
    with tempfile.TemporaryDirectory() as folder, Network(num_ps + NUM_WORKERS) as network:
        train_dir = RunFolder(f"{folder}/train")
        pathlib.Path(train_dir.path).mkdir()
        flags = [*FLAGS, TABLE, f"--rows={num_rows}", f"--data_dir={folder}", f"--train_dir={train_dir.path}"]
        with Cluster(folder, num_ps, NUM_WORKERS, *flags, network=network) as cluster:
            ready = start(cluster)
            time.sleep(2)
            before = read(cluster, network)
            time.sleep(measured_secs)
            step, num_bytes, now = (b - a for a, b in zip(before, read(cluster, network), strict=True))
            poll_for(lambda: len(list(pathlib.Path(train_dir.path).glob("*.index"))) > 1, "second checkpoint")
            peaks = {name: peak_bytes(cluster[name].pid) / 1e9 for name in cluster.names}
            recorded = read_run(train_dir)
            kill(cluster)
            restored = start(cluster)
            assert "restored " in cluster["worker 0"].output()
            kill(cluster)
    saved = [event["secs_taken"] for event in recorded if event["event"] == "checkpoint"]
    progress = [event for event in recorded if (event["by"], event["event"]) == ("worker 1", "progress")]
    logged = [event["unix_secs"] for event in progress]
    pauses = [after - before for before, after in itertools.pairwise(logged)]
    return {
        "kB of a step, from and to all hosts": f"{num_bytes / step / 1000:.0f}",
        "thousand examples/s": f"{BATCH_SIZE * step / now / 1000:.1f}",
        "s from the command to the first steps": f"{ready:.1f}",
        "the same, from a checkpoint": f"{restored:.1f}",
        "s that a checkpoint takes": f"{max(saved):.1f}",
        "the longest pause of the other worker, s": f"{max(pauses):.1f}",
        "GB of a worker, at most": f"{peaks['worker 1']:.2f}",
        "GB of a ps, at most": f"{max(peaks[f'ps {ps}'] for ps in range(num_ps)):.2f}",
    }


def start(cluster: Cluster) -> float:
    """Start all tasks, and return how many seconds pass until each worker has logged a step."""
    started = time.monotonic()
    cluster.start()
    for worker in range(NUM_WORKERS):
        cluster[f"worker {worker}"].wait_for_new_output(PROGRESS)
    return time.monotonic() - started


def read(cluster: Cluster, network: Network) -> tuple[int, int, float]:
    """Return the global step, the bytes of all hosts and the time, as soon as the chief has logged its next line."""
    step = int(cluster["worker 0"].wait_for_new_output(PROGRESS))
    return step, sum(network.num_bytes(host) for host in range(len(cluster.names))) // 2, time.monotonic()


def kill(cluster: Cluster) -> None:
    """Kill all tasks."""
    for name in cluster.names:
        cluster[name].kill()


def measure_languages(epochs: int = 3, rounds: int = 1) -> str:
    """Return a table of accuracies and speeds: this script, the classic way and fastText, on the same words."""
    example = EXAMPLES / "languages"
    words = types.SimpleNamespace(**runpy.run_path(str(example / "mnist_input.py")))
    with tempfile.TemporaryDirectory() as folder:
        try:
            num_words = len(words.load(WORDS, "train").labels)
        except words.DataError as error:
            sys.exit(f"error: {error}")
        steps = f"--train_steps={epochs * num_words // BATCH_SIZE}"
        ways: Ways = {
            name: functools.partial(train_ours, folder, example, [*flags, steps]) for name, flags in OURS.items()
        }
        ways["`embedding_lookup`, `feed_dict`"] = functools.partial(train_classic, folder, example, [*CLASSIC, steps])
        ways["fastText, two threads"] = functools.partial(train_fasttext, folder, words, epochs)
        results = run_ways(ways, rounds)
    return examples_table(results, "words", epochs, {"test accuracy": "{test_accuracy:.2%}"})


def fetch_flights() -> Any:
    """Download the flights, if they are not there; return the module that reads them."""
    flights = types.SimpleNamespace(**runpy.run_path(str(EXAMPLES / "flights" / "mnist_input.py")))
    flights.fetch(FLIGHTS)
    return flights


def measure_flights(epochs: int = 2, rounds: int = 1) -> str:
    """Return a table of AUCs and speeds: this script, the classic way and one plain process, on the same flights."""
    example, flights = EXAMPLES / "flights", fetch_flights()
    with tempfile.TemporaryDirectory() as folder:
        steps = epochs * len(open_source(FLIGHTS, "train", flights).load()[0]) // BATCH_SIZE
        flags = [f"--data_dir={FLIGHTS}", f"--learning_rate={RATE_OF_FLIGHTS}", f"--train_steps={steps}"]
        ways: Ways = {
            "this script": functools.partial(train_ours, folder, example, flags),
            "this script, synchronous": functools.partial(
                train_ours, folder, example, [*flags[:-1], f"--train_steps={steps // NUM_WORKERS}", "--sync_replicas"]
            ),
            "the classic way": functools.partial(train_classic, folder, example, flags),
            "one plain process": functools.partial(train_alone, folder, example, flags),
        }
        results = run_ways(ways, rounds)
    figures = {"test AUC": "{test_auc:.4f}", "test accuracy": "{test_accuracy:.2%}"}
    return examples_table(results, "flights", epochs, figures)


def run_ways(ways: Ways, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Train in each way, in turns; return the results of each."""
    results: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, train in ways.items():
            results[name].append(train())
            print(name, results[name][-1], flush=True)
    return results


def examples_table(results: dict[str, list[dict[str, float]]], unit: str, epochs: int, figures: dict[str, str]) -> str:
    """Return a table of the median run of each way; `figures` are the last columns, each with its format."""
    rows = []
    for name, runs in results.items():
        run = sorted(runs, key=lambda run: run["examples_per_sec"])[len(runs) // 2]
        rate, secs = f"{run['examples_per_sec'] / 1000:.1f}", f"{run['train_secs']:.0f}"
        rows.append([name, rate, secs, *(figure.format(**run) for figure in figures.values())])
    return report.make_table(("", f"thousand {unit}/s", f"s of {epochs} epochs", *figures), rows)


def train_ours(folder: str, example: pathlib.Path, flags: Sequence[str]) -> dict[str, float]:
    """Train on one ps and two workers."""
    with tempfile.TemporaryDirectory() as train_dir:
        flags = [f"--user_dir={example}", f"--train_dir={train_dir}", *flags]
        with Cluster(folder, 1, NUM_WORKERS, *flags) as cluster:
            cluster.start()
            assert not any(cluster.wait().values()), cluster["worker 0"].output()
        return json.loads(pathlib.Path(train_dir, "result.json").read_text())


def train_classic(folder: str, example: pathlib.Path, flags: Sequence[str]) -> dict[str, float]:
    """Train the classic way, on one ps and two workers."""
    ps_host, *worker_hosts = (f"localhost:{port}" for port in choose_ports(1 + NUM_WORKERS))
    hosts = [f"--ps_hosts={ps_host}", f"--worker_hosts={','.join(worker_hosts)}"]
    ps, chief, other = (
        start_classic(folder, example, name, [f"--job_name={job}", f"--task_index={index}", *hosts, *flags])
        for name, job, index in (("ps", "ps", 0), ("chief", "worker", 0), ("other", "worker", 1))
    )
    try:
        for worker in (chief, other):
            assert worker.wait(timeout_secs=3600) == 0, worker.output()
    finally:
        for task in (ps, chief, other):
            task.kill()
    return read_result(chief)


def train_alone(folder: str, example: pathlib.Path, flags: Sequence[str]) -> dict[str, float]:
    """Train in one plain process."""
    process = start_classic(folder, example, "alone", flags)
    assert process.wait(timeout_secs=3600) == 0, process.output()
    return read_result(process)


def start_classic(folder: str, example: pathlib.Path, name: str, flags: Sequence[str]) -> Process:
    """Start a process of the classic way, which finds the files of the example where it runs."""
    command = [sys.executable, "-m", "benchmarks.table.lookup", *flags]
    return Process(command, f"{folder}/{name}.log", {"PYTHONPATH": str(report.PROJECT)}, example)


def read_result(process: Process) -> dict[str, float]:
    """Return what a process that has ended has printed last."""
    return json.loads(re.findall(r"^\{.*\}$", process.output(), re.MULTILINE)[-1])


def train_fasttext(folder: str, words: Any, epochs: int) -> dict[str, float]:
    """Train fastText's classifier with the same n-grams, on its own terms."""
    import fasttext

    paths, counts = {}, {}
    for split in ("train", "t10k"):
        examples = words.load(WORDS, split)
        paths[split] = f"{folder}/{split}.txt"
        lines = [f"__label__{words.LANGUAGES[label]} {examples.show(n)}\n" for n, label in enumerate(examples.labels)]
        counts[split] = len(lines)
        order = np.random.default_rng(0).permutation(len(lines))  # it takes them as they come
        pathlib.Path(paths[split]).write_text("".join(lines[number] for number in order))
    started = time.monotonic()
    trained = fasttext.train_supervised(
        paths["train"], dim=DIM, minn=2, maxn=5, bucket=2_000_000, epoch=epochs, thread=2, lr=0.5, verbose=0
    )
    secs = time.monotonic() - started
    _, accuracy, _ = trained.test(paths["t10k"])
    return {"test_accuracy": accuracy, "train_secs": secs, "examples_per_sec": epochs * counts["train"] / secs}
