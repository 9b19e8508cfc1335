"""The evaluator: a process beside the cluster that evaluates each checkpoint of a run."""

import contextlib
import os
from collections.abc import Callable, Collection
from typing import NamedTuple

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.task import Task
from runtime.cluster.waiting import Timeouts, wait_until_nothing_is_missing
from runtime.data.reader import Columns
from runtime.monitoring.evaluation import check_as_before, record_evaluation
from runtime.monitoring.model_test import ModelTest
from runtime.process.errors import UnusableError, reason
from runtime.records.events import read_lines
from runtime.records.folder import RunFolder
from runtime.saving.checkpoints import check_checkpoint, is_there, list_checkpoints
from runtime.saving.result import Goal, is_finished

AVERAGE = tf.train.ExponentialMovingAverage(0.0).name  # ends the name of an average


class Checkpoint(NamedTuple):
    """What tells a checkpoint from others, also from one of an earlier model in the same folder."""

    checkpoint_step: int  # in its name; asynchronous workers may have taken more steps until it was written
    checkpoint_unix_secs: float  # when it was written


def follow_checkpoints(
    task: Task,
    test: ModelTest,
    folder: RunFolder,
    goal: Goal,
    timeouts: Timeouts,
    load_examples: Callable[[], Columns],
    names: Collection[str] = (),
) -> None:
    """Evaluate each checkpoint of a run once, the oldest first, until the run has reached `goal`.

    An evaluator that is started again goes on where the last one was: its events say which checkpoints it had. Those
    that the chief has deleted meanwhile are left out, and broken ones that are not the latest.

    Args:
      task: this one.
      test: measures the variables of the graph.
      folder: that of the run.
      goal: of the run.
      timeouts: how long to wait for the first checkpoint, and for the next one.
      load_examples: loads those to test on anew.
      names: of the variables of the user's model.

    Raises:
      AwayError: no new checkpoint came in time.
      UnusableError: there is no folder, or its last checkpoint is broken or not of this model, or the chief tests
        on other examples.
    """
    if not folder.is_given:
        raise UnusableError("the evaluator needs --train_dir, the folder of the run to evaluate")
    found = [event for number in folder.runs for event in read_lines(folder.events_of(folder.run(number), task))]
    evaluated = {Checkpoint(e["checkpoint_step"], e["checkpoint_unix_secs"]) for e in found if "checkpoint_step" in e}
    savers: dict[frozenset[str], tf.train.Saver] = {}  # by what they read of a checkpoint

    def describe_missing() -> str:
        for path in (folder.checkpoint_state, folder.result):  # which count as absent below if they cannot be read
            is_there(path)
        if _new_checkpoints(folder, evaluated) or is_finished(folder, goal):
            return ""
        after = f" after global step {max(evaluated).checkpoint_step}" if evaluated else ""
        return f"a checkpoint{after} in {folder.path}"

    local_init_op = tf.train.Scaffold.default_local_init_op()  # of lookup tables, as a MonitoredSession does it
    with tf.Session(config=tf.ConfigProto(device_count={"GPU": 0})) as session:  # the GPUs are for the workers
        session.run(local_init_op)
        while True:
            wait_until_nothing_is_missing(
                task,
                describe_missing,
                timeouts.recovery_secs if evaluated else timeouts.startup_secs,
                "start the chief, or give the --train_dir, --train_steps and --save_checkpoint_secs of the run",
            )
            was_finished = is_finished(folder, goal)  # first: the result comes after the last checkpoint
            for checkpoint, path in _new_checkpoints(folder, evaluated).items():
                check_as_before(folder, test, load_examples)  # which the chief tells before it saves anything
                evaluated.add(checkpoint)
                try:
                    check_checkpoint(path)
                    tested = _find_tested(path, names)
                    if (key := frozenset(tested)) not in savers:
                        savers[key] = tf.train.Saver(tested)
                    savers[key].restore(session, path)
                except (tf.errors.OpError, UnusableError, ValueError) as error:
                    if checkpoint not in _new_checkpoints(folder, set()):
                        logging.info("%s: %s was deleted before it could be evaluated", task, path)
                    elif [path] == list_checkpoints(folder)[-1:]:
                        raise
                    else:  # the user may have named an older one as the latest, since this one is broken
                        why = reason(error) if isinstance(error, tf.errors.OpError) else error
                        logging.warning("%s: skipping %s: %s", task, path, why)
                else:
                    record_evaluation(task, test(session), **checkpoint._asdict())
            if was_finished:
                logging.info("%s: the run is finished, and its checkpoints are evaluated", task)
                return


def _find_tested(path: str, names: Collection[str]) -> dict[str, tf.Variable]:
    """Return the variables by what a checkpoint has for each: where the chief keeps averages, it tests these, too."""
    saved, tested = tf.train.load_checkpoint(path), {}
    for variable in tf.global_variables():
        average = f"{variable.op.name}/{AVERAGE}"
        is_there = saved.has_tensor(average) and average not in names
        tested[average if is_there else variable.op.name] = variable
    return tested


def _new_checkpoints(folder: RunFolder, evaluated: set[Checkpoint]) -> dict[Checkpoint, str]:
    """Return the paths of the checkpoints that are not evaluated yet, the oldest first."""
    paths = {}
    for path in list_checkpoints(folder):
        with contextlib.suppress(FileNotFoundError, ValueError):  # it was just deleted, or is the user's copy
            step, written_at = int(path.rpartition("-")[2]), round(os.path.getmtime(f"{path}.index"), 3)
            paths[Checkpoint(step, written_at)] = path
    return {checkpoint: paths[checkpoint] for checkpoint in sorted(paths.keys() - evaluated)}
