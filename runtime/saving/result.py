"""The result of a run: `result.json`, and the last line."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.task import Task
from runtime.cluster.waiting import LOOK_SECS, wait_until_nothing_is_missing
from runtime.model.users_files import users_flags
from runtime.monitoring.measures import Measures, Target, describe
from runtime.monitoring.model_test import ModelTest
from runtime.monitoring.progress import ProgressHook
from runtime.process.errors import UnsavedError, UnusableError
from runtime.process.threads import reminding
from runtime.records.files import read_json, replace_file
from runtime.records.folder import RunFolder
from runtime.saving.checkpoint_hook import CheckpointHook
from runtime.saving.checkpoints import is_saved
from runtime.saving.train_dir import keep_locked


class Goal(NamedTuple):
    """Where training ends."""

    train_steps: int  # at this global step
    target: Target | None = None  # or before it, when an evaluation reaches this


class Result(NamedTuple):
    """One run's result, as in `result.json`."""

    figures: dict[str, float]  # of `Measures`, rounded: the metrics of the test, its loss, and the global step
    train_secs: float | None  # from the chief's first step to its last, if this process has taken any
    examples_per_sec: float | None  # used by all workers in that time
    settings: dict[str, Any]  # the flags of the run

    def write(self, folder: RunFolder) -> None:
        """Write `result.json`, unless no folder is given, or it has the result of this very model already.

        A reader sees either this result or the last one, whole.

        Raises:
          UnsavedError: it cannot be written, or another job has the folder now.
        """
        written = read_json(folder.result)
        is_same = all(written.get(name) == value for name, value in self.figures.items())
        if not folder.is_given or (is_same and self.train_secs is None):  # an earlier process has trained the model
            return
        keep_locked(folder)
        speed = {"train_secs": self.train_secs, "examples_per_sec": self.examples_per_sec}
        figures = {**self.figures, **speed}
        # Figures come first, and a user's flag of the same name replaces none. `default` is for a flag of an enum.
        content = json.dumps({**figures, **self.settings, **figures}, indent=2, default=str)
        try:
            with reminding("still writing the result", folder.path):
                replace_file(folder.result, f"{content}\n".encode())
        except OSError as error:
            raise UnsavedError(f"{folder.result} could not be written: {error.strerror}") from error

    def __str__(self) -> str:
        step = self.figures["global_step"]
        scalars = {name: value for name, value in self.figures.items() if name != "global_step"}
        speed = f" in {self.train_secs:.1f} s, {self.examples_per_sec:.0f} examples/s" if self.train_secs else ""
        return f"{describe(scalars)} after {step} global step{'s' * (step != 1)}{speed}"


def evaluate_and_save(session: tf.Session, test: ModelTest, checkpoint_hook: CheckpointHook) -> Measures:
    """Evaluate the finished model, which the last checkpoint should have; else try to save it once more.

    A worker for which the chief did not wait, since it was stopped, may go on and bring its last run after that.
    """
    measures, last_step = test(session), -1
    while not checkpoint_hook.has_saved(measures.global_step) and measures.global_step != last_step:
        logging.warning("the last checkpoint is not of global step %d: saving again", measures.global_step)
        checkpoint_hook.end(session)
        measures, last_step = test(session), measures.global_step
    return measures


def keep_trying(task: Task, steps: Sequence[Callable[[], None]], timeout_secs: float) -> None:
    """Take each of `steps` that save what a run has found; take those that fail again, until somebody has made room.

    Raises:
      UnsavedError: some still failed with one after `timeout_secs`.
      UnusableError: one that would fail again has failed with it; the others are taken.
    """
    left = list(steps)
    final: list[UnusableError] = []

    def describe_failures() -> str:
        failures = []
        for step in left.copy():
            try:
                step()
                left.remove(step)
            except UnusableError as error:
                left.remove(step)
                final.append(error)
            except UnsavedError as error:
                failures.append(str(error))
        return f"the result to be saved ({'; '.join(failures)})" if failures else ""

    remedy = (
        "create the folder again, free disk space or fix permissions; then restart this task while the ps tasks, which"
        " hold the model, still wait, or restart all tasks"
    )
    wait_until_nothing_is_missing(task, describe_failures, timeout_secs, remedy, LOOK_SECS, UnsavedError)
    if final:
        raise final[0]


def make_result(
    task: Task, flags: Mapping[str, Any], measures: Measures, progress: ProgressHook, class_names: Sequence[str] = ()
) -> Result:
    """Return the result of a run with these flags, with rounded figures."""
    names = ("optimizer", "sync_replicas", "max_staleness", "local_steps", "replication", "sharding", "batch_size")
    settings = {name: flags[name] for name in ("user_dir", *users_flags(), *names)}
    settings["reached"] = flags["stop_at"] if measures.global_step < flags["train_steps"] else None
    settings |= {"class_names": class_names} if class_names else {}
    settings |= {"num_ps": len(task.ps_hosts), "num_workers": len(task.worker_hosts)}
    return Result(
        measures.figures,
        round(progress.train_secs, 3) or None,
        round(progress.num_examples / progress.train_secs, 1) if progress.train_secs else None,
        {**settings, "tensorflow_version": tf.__version__},
    )


def is_finished(folder: RunFolder, goal: Goal) -> bool:
    """Return whether a run has left here the result of a model that has reached `goal`, and the model.

    A result does not count if the model could not be saved, or was removed: then training may begin again.
    """
    result = read_json(folder.result)
    global_step, is_good = result.get("global_step", -1), False
    if goal.target and result.get("reached"):
        name, value, is_ceiling = Target.parse(result["reached"])
        is_good = (name, is_ceiling) == (goal.target.name, goal.target.is_ceiling) and goal.target.is_reached(value)
    return (global_step >= goal.train_steps or is_good) and is_saved(folder, global_step)


def describe_result(folder: RunFolder, goal: Goal) -> str:
    """Return what tells a task that the run has ended without it; "" if that has not."""
    return f"nothing is left to do: {folder.path} has the result of a finished run" if is_finished(folder, goal) else ""


def is_of_finished_run(folder: RunFolder, goal: Goal, global_step: int) -> bool:
    """Return whether the model of this global step is the one of the result, and has reached `goal`."""
    return read_json(folder.result).get("global_step") == global_step and is_finished(folder, goal)
