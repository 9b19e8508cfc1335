"""The resident memory of the tasks of a cluster, sampled from when they train, and how much it grows."""

import contextlib
import dataclasses
import math
import statistics
import threading
import time
from typing import NamedTuple

import psutil

from benchmarks.testbed.processes import Cluster

SAMPLE_SECS = 1.0
WARM_UP_SECS = 120.0  # of training, until a task has used all that it needs, for a recovery too
WINDOW_SECS = 30.0  # the median of so long counts, at the beginning, after the warm-up, and at the end
MIN_LIFE_SECS = WARM_UP_SECS + 3 * WINDOW_SECS  # a shorter life says nothing of growth


class Sample(NamedTuple):
    """How much memory a process has at some age, which begins when the cluster first trains with it."""

    age_secs: float
    mebibytes: float


@dataclasses.dataclass
class Life:
    """One process of a task."""

    task: str
    start: float  # in terms of time.monotonic()
    samples: list[Sample] = dataclasses.field(default_factory=list)

    @property
    def secs(self) -> float:
        """How long it lasted."""
        return self.samples[-1].age_secs if self.samples else 0.0

    def mebibytes(self, from_secs: float, to_secs: float) -> float:
        """Return the median of the samples that were taken between two ages; NaN: the machine slept meanwhile."""
        return statistics.median([mib for age, mib in self.samples if from_secs <= age <= to_secs] or [math.nan])

    @property
    def growth(self) -> float:
        """How much more memory it has at its end than after the warm-up: 0.05 is 5 percent."""
        steady = self.mebibytes(WARM_UP_SECS, WARM_UP_SECS + WINDOW_SECS)
        return self.mebibytes(self.secs - WINDOW_SECS, self.secs) / steady - 1

    def curve(self) -> list[float]:
        """Return the median of each minute, the last of which may be shorter."""
        minutes = range(1 + int(self.secs - WINDOW_SECS) // 60)
        return [self.mebibytes(60 * minute, 60 * (minute + 1)) for minute in minutes]


class Sampler:
    """Samples the memory of all tasks of a cluster, from a thread, while this is entered as a context manager."""

    def __init__(self, cluster: Cluster):
        self._cluster, self._lives = cluster, {}
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory", daemon=True)

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._has_ended.set()
        self._thread.join()

    def judged_lives(self) -> list[Life]:
        """Return the lives that lasted long enough to say something of their growth."""
        return [life for life in self._lives.values() if life.secs >= MIN_LIFE_SECS]

    def watch_new(self) -> None:
        """Begin to sample the processes that are not sampled yet, with which the cluster has just come to train."""
        for name, task in self._cluster.tasks.items():
            self._lives.setdefault((name, task.pid), Life(name, time.monotonic()))

    def _sample(self) -> None:
        while not self._has_ended.wait(SAMPLE_SECS):
            for name, task in list(self._cluster.tasks.items()):
                life = self._lives.get((name, task.pid))
                with contextlib.suppress(psutil.NoSuchProcess):  # it may end at any moment
                    if life and (num_bytes := psutil.Process(task.pid).memory_info().rss):
                        life.samples.append(Sample(time.monotonic() - life.start, num_bytes / 2**20))
