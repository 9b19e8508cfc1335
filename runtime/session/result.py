"""The result of a run: `result.json`, and the last line of the chief."""

import dataclasses
import json
import os

import tensorflow.compat.v1 as tf

from runtime.cluster.task import Task
from runtime.session.evaluation import Measures
from runtime.session.progress import ProgressHook
from runtime.updates.mode import Mode

RESULT_FILE = "result.json"


@dataclasses.dataclass(frozen=True)
class Result:
    """One run's result; its fields are those of `result.json`."""

    test_accuracy: float  # in [0, 1]
    test_loss: float
    global_step: int  # of the parameters that were evaluated
    train_secs: float  # from the chief's first step to its last
    examples_per_sec: float  # used by all workers in that time
    model: str
    optimizer: str
    sync_replicas: bool
    local_steps: int  # between exchanges with the ps
    batch_size: int
    num_ps: int
    num_workers: int
    tensorflow_version: str

    def publish(self, train_dir: str) -> None:
        """Write `result.json` into `train_dir`, unless that is empty, and print the last line."""
        if train_dir:
            self._write(train_dir)
        print(self, flush=True)

    def _write(self, train_dir: str) -> None:
        """Write `result.json`, so that a reader sees either this result or the last one, whole."""
        path = os.path.join(train_dir, RESULT_FILE)
        with open(path + ".tmp", "w") as file:
            json.dump(dataclasses.asdict(self), file, indent=2)
            file.write("\n")
        os.replace(path + ".tmp", path)

    def __str__(self) -> str:
        return (
            f"test accuracy {self.test_accuracy:.4f} (test loss {self.test_loss:.4f}) after {self.global_step} global"
            f" steps in {self.train_secs:.1f} s, {self.examples_per_sec:.0f} examples/s"
        )


def make_result(
    task: Task, mode: Mode, measures: Measures, progress: ProgressHook, model: str, batch_size: int
) -> Result:
    """Return the result of a run, with rounded figures."""
    return Result(
        test_accuracy=round(measures.accuracy, 6),
        test_loss=round(measures.loss, 6),
        global_step=measures.global_step,
        train_secs=round(progress.train_secs, 3),
        examples_per_sec=round(progress.num_examples / progress.train_secs, 1) if progress.train_secs else 0.0,
        model=model,
        optimizer=mode.optimizer,
        sync_replicas=mode.sync_replicas,
        local_steps=mode.local_steps,
        batch_size=batch_size,
        num_ps=len(task.ps_hosts),
        num_workers=len(task.worker_hosts),
        tensorflow_version=tf.__version__,
    )
