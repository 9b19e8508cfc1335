"""The evaluator: a process beside the cluster that evaluates each checkpoint of a run."""

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.task import Task
from runtime.cluster.waiting import Timeouts, wait_until_nothing_is_missing
from runtime.errors import UnusableError
from runtime.session.checkpoints import check_last_checkpoint
from runtime.session.evaluation import Evaluate, EvaluationLog
from runtime.session.result import Goal, is_finished


def follow_checkpoints(task: Task, evaluate: Evaluate, train_dir: str, goal: Goal, timeouts: Timeouts) -> None:
    """Evaluate each checkpoint in `train_dir` once, the oldest first, until the run has reached `goal`.

    An evaluator that is started again goes on where the last one was: `eval.jsonl` says which checkpoints it had. Those
    that the chief has deleted meanwhile are left out.

    Raises:
      TimeoutError: no new checkpoint came in time.
      UnusableError: there is no `train_dir`, or its checkpoints are not of this model.
    """
    if not train_dir:
        raise UnusableError("the evaluator needs --train_dir, the folder of the run that it shall evaluate")
    log = EvaluationLog(task, train_dir)
    evaluated = log.read_steps()
    saver = tf.train.Saver()

    def describe_missing() -> str:
        is_there = _new_checkpoints(train_dir, evaluated) or is_finished(train_dir, goal)
        after = f" after global step {max(evaluated)}" if evaluated else ""
        return "" if is_there else f"a checkpoint{after} in {train_dir}"

    with tf.Session(config=tf.ConfigProto(device_count={"GPU": 0})) as session:  # the GPUs are for the workers
        while True:
            wait_until_nothing_is_missing(
                task,
                describe_missing,
                timeouts.recovery_secs if evaluated else timeouts.startup_secs,
                "start the chief, or give the --train_dir and the --train_steps of the run",
            )
            was_finished = is_finished(train_dir, goal)  # first: the result comes after the last checkpoint
            for step, path in _new_checkpoints(train_dir, evaluated).items():
                check_last_checkpoint(train_dir)
                evaluated.add(step)
                try:
                    saver.restore(session, path)
                except (tf.errors.NotFoundError, ValueError):  # ValueError: what TensorFlow makes of a missing index
                    logging.info("%s: %s was deleted before it could be evaluated", task, path)
                else:
                    log.write(evaluate(session))
            if was_finished:
                logging.info("%s: the run is finished, and its checkpoints are evaluated", task)
                return


def _new_checkpoints(train_dir: str, evaluated: set[int]) -> dict[int, str]:
    """Return the paths of the checkpoints that are not evaluated yet, by global step, the oldest first."""
    state = tf.train.get_checkpoint_state(train_dir)
    paths = {int(path.rpartition("-")[2]): path for path in (state.all_model_checkpoint_paths if state else ())}
    return {step: paths[step] for step in sorted(paths.keys() - evaluated)}
