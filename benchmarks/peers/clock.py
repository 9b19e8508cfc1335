"""The clock of a run: how fast it trained, how soon it was accurate, and how long it took to set up.

The clock runs from the end of the first call, because the first call also traces and compiles. Its examples are not
free: the time to the target includes the seconds that they would take at the rate that the run itself had later. The
rest of the time since the process began to build is its set-up.
"""

import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

TARGET_ACCURACY = 0.975
WARM_UP = 0.25  # of the training time; the rate is that of the time after it, when every process is at work


class Result(NamedTuple):
    """What a run measured."""

    examples_per_sec: float  # of all workers, after the warm-up
    setup_secs: float  # for building, tracing and compiling
    train_secs: float  # from the end of the first call to that of the last
    global_step: int  # the last one
    secs_to_target: float | None  # of training, with the first examples; None: the target was never reached
    steps_to_target: int | None
    test_accuracy: float  # in the end


class Snapshot(NamedTuple):
    """The model at one time of the run."""

    secs: float  # since the end of the first call
    global_step: int
    parameters: Sequence[npt.NDArray[np.float32]]


class Clock:
    """Times one run and keeps snapshots of its parameters, which are evaluated after the run.

    Construct it when the process has loaded its data and is about to build the model. Then call `start()` once,
    `keep()` whenever it `is_due()`, `stop()` and `result()`.
    """

    def __init__(self, examples_per_step: int, snapshot_secs: float, now: Callable[[], float] = time.perf_counter):
        """Begin the set-up; a global step has `examples_per_step` of all workers."""
        self._examples_per_step = examples_per_step
        self._snapshot_secs = snapshot_secs
        self._now = now
        self._constructed_at = now()
        self._snapshots: list[Snapshot] = []

    def start(self, global_step: int) -> None:
        """Start at the end of the first call, which has taken the model to `global_step`."""
        self._started_at = self._now()
        self._first_step = global_step
        self._due_at = self._started_at + self._snapshot_secs

    def is_due(self) -> bool:
        """Return whether it is time for the next snapshot."""
        return self._now() >= self._due_at

    def keep(self, global_step: int, parameters: Sequence[npt.NDArray[np.float32]]) -> None:
        """Keep a snapshot; `parameters` must be copies, not views of the arrays in training."""
        now = self._now()
        self._snapshots.append(Snapshot(now - self._started_at, global_step, parameters))
        self._due_at = now + self._snapshot_secs

    def stop(self, global_step: int) -> None:
        """Stop at the end of the last call."""
        self._train_secs = self._now() - self._started_at
        self._last_step = global_step

    def result(
        self,
        parameters: Sequence[npt.NDArray[np.float32]],
        accuracy: Callable[[Sequence[npt.NDArray[np.float32]]], float],
    ) -> Result:
        """Return what the run measured.

        Args:
          parameters: the trained ones.
          accuracy: returns the test accuracy of such parameters, in [0, 1].

        Raises:
          SystemExit: the run was over before its clock started.
        """
        end = Snapshot(self._train_secs, self._last_step, parameters)
        start = Snapshot(0.0, self._first_step, parameters)  # for a run that was too short for snapshots
        later = [s for s in self._snapshots if s.secs >= WARM_UP * end.secs and s.global_step < end.global_step]
        warm = later[0] if later else start
        if warm.global_step >= end.global_step:
            sys.exit("error: the run was over when its clock started: give more --train_steps")
        rate = (end.global_step - warm.global_step) * self._examples_per_step / (end.secs - warm.secs)
        first_secs = self._first_step * self._examples_per_step / rate
        reached = next((s for s in [*self._snapshots, end] if accuracy(s.parameters) >= TARGET_ACCURACY), None)
        return Result(
            examples_per_sec=round(rate, 1),
            setup_secs=round(self._started_at - self._constructed_at - first_secs, 3),
            train_secs=round(end.secs, 3),
            global_step=end.global_step,
            secs_to_target=round(reached.secs + first_secs, 3) if reached else None,
            steps_to_target=reached.global_step if reached else None,
            test_accuracy=round(accuracy(end.parameters), 6),
        )
