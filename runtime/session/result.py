"""The result of a run: how good the model is that the ps tasks hold, `result.json`, and the last line."""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from runtime.cluster.task import Task
from runtime.errors import UnsavedError
from runtime.session.progress import ProgressHook

RESULT_FILE = "result.json"
BATCH_SIZE = 1000  # the activations of the cnn for all test images at once would take a gigabyte


class Measures(NamedTuple):
    """How good the model is on some examples."""

    loss: float
    accuracy: float  # in [0, 1]
    global_step: int  # that the parameters had
    parameters: dict[str, Any]  # their values, arrays by name


class Evaluation(NamedTuple):
    """The part of the graph that measures the model on the examples that it is fed."""

    parameters: Mapping[str, tf.Tensor]  # by name, on this task: read once, then fed, so that all batches meet the same
    images: tf.Tensor  # a placeholder, [n, ...]
    labels: tf.Tensor  # a placeholder, [n]
    loss: tf.Tensor  # float32 [], averaged over them
    accuracy: tf.Tensor  # float32 []

    def run(self, session: tf.Session, images: Any, labels: Any) -> Measures:
        """Measure the parameters as they are now on all of `images` and `labels`."""
        values, global_step = session.run([dict(self.parameters), tf.train.get_global_step(session.graph)])
        fed = {self.parameters[name]: value for name, value in values.items()}
        sums = np.zeros(2)
        for start in range(0, len(labels), BATCH_SIZE):
            batch = slice(start, start + BATCH_SIZE)
            feed_dict = {**fed, self.images: images[batch], self.labels: labels[batch]}
            sums += len(labels[batch]) * np.array(session.run([self.loss, self.accuracy], feed_dict))
        loss, accuracy = sums / len(labels)
        return Measures(float(loss), float(accuracy), int(global_step), values)


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

    def write(self, train_dir: str) -> None:
        """Write `result.json`, unless `train_dir` is empty or has the result of this very model already.

        A reader sees either this result or the last one, whole.

        Raises:
          UnsavedError: it cannot be written, or the last checkpoint does not have this model.
        """
        if not train_dir or (self.train_secs == 0.0 and read_global_step(train_dir) == self.global_step):
            return
        path = os.path.join(train_dir, RESULT_FILE)
        try:
            with open(path + ".tmp", "w") as file:
                json.dump(dataclasses.asdict(self), file, indent=2)
                file.write("\n")
            os.replace(path + ".tmp", path)
        except OSError as error:
            raise UnsavedError(f"{path} could not be written: {error.strerror}; make room and train again") from error
        if not (tf.train.latest_checkpoint(train_dir) or "").endswith(f"-{self.global_step}"):
            raise UnsavedError(
                f"the model of global step {self.global_step} could not be saved in {train_dir}, and is lost: make room"
                " and train again"
            )

    def __str__(self) -> str:
        return (
            f"test accuracy {self.test_accuracy:.4f} (test loss {self.test_loss:.4f}) after {self.global_step} global"
            f" steps in {self.train_secs:.1f} s, {self.examples_per_sec:.0f} examples/s"
        )


def make_result(task: Task, flags: Mapping[str, Any], measures: Measures, progress: ProgressHook) -> Result:
    """Return the result of a run with these flags, with rounded figures."""
    names = ("model", "optimizer", "sync_replicas", "local_steps", "batch_size")
    return Result(
        test_accuracy=round(measures.accuracy, 6),
        test_loss=round(measures.loss, 6),
        global_step=measures.global_step,
        train_secs=round(progress.train_secs, 3),
        examples_per_sec=round(progress.num_examples / progress.train_secs, 1) if progress.train_secs else 0.0,
        num_ps=len(task.ps_hosts),
        num_workers=len(task.worker_hosts),
        tensorflow_version=tf.__version__,
        **{name: flags[name] for name in names},
    )


def read_global_step(train_dir: str) -> int:
    """Return the global step of the result in `train_dir`, or 0 if there is none."""
    try:
        with open(os.path.join(train_dir, RESULT_FILE)) as file:
            return int(json.load(file)["global_step"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def is_finished(train_dir: str, train_steps: int) -> bool:
    """Return whether `train_dir` has the result of `train_steps` steps."""
    return bool(train_dir) and read_global_step(train_dir) >= train_steps
