"""Traces of chosen steps."""

import os
import re

import tensorflow.compat.v1 as tf
from absl import logging

from runtime import trace
from runtime.cluster.task import Task
from runtime.process.errors import UnusableError
from runtime.records import events
from runtime.records.files import replace_file
from runtime.records.folder import RunFolder

WRITING_SECS = 20.0  # how long the trace of all tasks waits for what was traced


def is_step_range(text: str | None) -> bool:
    """Return whether `--profile_steps`, if given, is `A:B`, two global steps of which A is not above B."""
    match = re.fullmatch("([0-9]+):([0-9]+)", text) if text is not None else None
    return text is None or (match is not None and int(match[1]) <= int(match[2]))


class ProfileHook(tf.train.SessionRunHook):
    """Traces each run of a worker that has steps between two global steps, with what its ps tasks did in it.

    What it has traced is TensorFlow's `RunMetadata` in a file `step-STEP.pb`, named by the step after the run, in
    `profile/worker-N` of the train directory. At the end, when the other workers have left, the chief merges all files
    into one trace, before the ps tasks may leave.
    """

    def __init__(self, task: Task, global_step: tf.Tensor, steps: str, folder: RunFolder):
        """Trace `steps`, `A:B`; `global_step`, int64 [], is as it is after a run.

        Raises:
          UnusableError: no trace can be written there.
        """
        self._task, self._folder, self._global_step = task, folder, global_step
        self._first_step, self._last_step = map(int, steps.split(":"))
        try:
            os.makedirs(folder.profile_of(task), exist_ok=True)
        except OSError as error:
            raise UnusableError(f"no trace can be written to --train_dir {folder.path}: {error.strerror}") from error

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        self._step = int(session.run(tf.train.get_global_step(session.graph)))  # after the last run
        self._steps_per_run = 0

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        is_traced = self._step + self._steps_per_run >= self._first_step and self._step < self._last_step
        options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE) if is_traced else None
        return tf.train.SessionRunArgs(self._global_step, options=options)

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        step = int(run_values.results)
        self._step, self._steps_per_run = step, step - self._step
        if run_values.options.trace_level == tf.RunOptions.FULL_TRACE:
            path = os.path.join(self._folder.profile_of(self._task), f"step-{step}.pb")
            events.write_later(lambda *_: self._write(path, run_values.run_metadata))

    def end(self, session: tf.Session) -> None:
        events.wait_until_written(WRITING_SECS)  # before the chief can hear that this worker has trained
        if self._task.is_chief and (path := trace.write(self._folder)):
            logging.info("the trace of all tasks is in %s", path)

    def _write(self, path: str, metadata: tf.RunMetadata) -> None:
        try:
            replace_file(path, metadata.SerializeToString())
        except OSError as error:  # on a full disk, say, only the trace is lost
            logging.error("no trace could be written (%s): %s", error, self._folder.remedy_for(str(error)))
