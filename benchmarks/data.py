"""What examples in files of `tf.train.Example` cost, and examples that workers share: speed and memory.

It makes MNIST larger by shifting its images, writes that as TFRecord files, and trains on them with 16 local steps,
with one ps and two workers. For comparison it trains on MNIST in memory. Linux only: it says how much memory a process
has used at most.
"""

import itertools
import math
import pathlib
import re
import statistics
import tempfile

from runtime.process import environment  # noqa: F401  # first: it sets what TensorFlow reads when it is imported

# isort: split
import numpy as np

import mnist_input
from benchmarks import report
from benchmarks.testbed.processes import Cluster, poll_for
from examples import convert
from runtime.data import download

NUM_PS, NUM_WORKERS, NUM_FILES = 1, 2, 16
FLAGS = ["--local_steps=16", "--optimizer=sgd", "--learning_rate=0.1", "--log_every_secs=1"]
_ALL_SHIFTS = itertools.product(range(-3, 5), repeat=2)  # pixels down and right
SHIFTS = sorted(_ALL_SHIFTS, key=lambda shift: max(map(abs, shift)))[:50]
LAST_LINE = r"test accuracy (\d\.\d+) .* in \d+\.\d s, (\d+) examples/s\n"


def load_shifted(num_examples: int) -> convert.Load:
    """Return what loads MNIST again and again, shifted by some pixels, until it has `num_examples` to train on."""

    def load(data_dir: str, split: str) -> mnist_input.Examples:
        examples = mnist_input.load(data_dir, split)
        if split != "train":
            return examples
        shifts = SHIFTS[: math.ceil(num_examples / len(examples.images))]
        images = np.empty([len(shifts), *examples.images.shape], np.uint8)
        for copy, shift in zip(images, shifts, strict=True):
            shifted = np.roll(examples.images.reshape(-1, *mnist_input.IMAGE_SHAPE), shift, axis=(1, 2))
            copy[:] = shifted.reshape(copy.shape)
        labels = np.tile(examples.labels, len(shifts))
        return mnist_input.Examples(images.reshape(-1, mnist_input.NUM_PIXELS)[:num_examples], labels[:num_examples])

    return load


def train(data_dir: str, sharding: str, train_steps: int) -> tuple[float, float, float]:
    """Return the examples per second, a worker's highest memory in GB, and the test accuracy."""
    flags = [*FLAGS, f"--data_dir={data_dir}", f"--sharding={sharding}", f"--train_steps={train_steps}"]
    with tempfile.TemporaryDirectory() as folder, Cluster(folder, NUM_PS, NUM_WORKERS, *flags) as cluster:
        cluster.start()
        workers = [cluster[f"worker {index}"] for index in range(NUM_WORKERS)]
        peaks = [0]

        def have_ended() -> bool:
            running = [worker for worker in workers if worker.is_running()]
            peaks.extend(peak_bytes(worker.pid) for worker in running)
            return not running

        poll_for(have_ended, "end of training", timeout_secs=3600)
        cluster.wait()
        accuracy, examples_per_sec = re.findall(LAST_LINE, workers[0].output())[-1]
    return float(examples_per_sec), max(peaks) / 1e9, float(accuracy)


def peak_bytes(pid: int) -> int:
    """Return how much memory a process has used at most, 0 if it has just ended."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    return 1024 * int(match[1]) if match else 0


def measure_data(examples: int = 3_000_000, train_steps: int = 60_000, rounds: int = 5) -> str:
    """Return a table of the medians of runs in turns; 3 million examples at most."""
    data_dir = download.default_data_dir()
    with tempfile.TemporaryDirectory() as folder:
        files = f"{folder}/examples"
        convert.convert(load_shifted(examples), mnist_input.FEATURES, data_dir, files, NUM_FILES)
        of_files = f"{examples:,} in {NUM_FILES} files".replace(",", " ")
        kinds = [
            (where, sharding, path)
            for where, path in (("60 000 in memory", data_dir), (of_files, files))
            for sharding in ("static", "dynamic")
        ]
        runs: dict[tuple[str, str, str], list[tuple[float, float, float]]] = {kind: [] for kind in kinds}
        for _ in range(rounds):
            for kind, measured in runs.items():
                measured.append(train(kind[2], kind[1], train_steps))
                print(*kind, measured[-1], flush=True)
    rows = []
    first_rate = statistics.median(rate for rate, _, _ in runs[kinds[0]])
    for (where, sharding, _), measured in runs.items():
        rates, peaks, accuracies = zip(*measured, strict=True)
        rate = statistics.median(rates)
        speed = f"{rate / 1000:.0f} ({min(rates) / 1000:.0f} to {max(rates) / 1000:.0f})"
        share = f"{100 * rate / first_rate:.0f} %"
        rows.append([where, sharding, speed, share, f"{max(peaks):.2f} GB", f"{statistics.median(accuracies):.4f}"])
    headings = ("examples", "sharding", "1000 examples/s", "relative speed", "memory of a worker", "test accuracy")
    return report.make_table(headings, rows)
