"""Traces of chosen steps, for Chrome or TensorBoard."""

import os

import tensorflow.compat.v1 as tf

from runtime import cluster


def parse_steps(text: str) -> tuple[int, int]:
    """Read `A:B`, two global steps.

    Raises:
      ValueError: it is not of that form, or A is above B.
    """
    first, last = (int(number) for number in text.split(":"))
    if not 0 <= first <= last:
        raise ValueError(f"{first} is not between 0 and {last}")
    return first, last


class ProfileHook(tf.train.SessionRunHook):
    """Writes a trace of each run of a worker between two global steps, with what its ps tasks did in it.

    A trace is a file `timeline-STEP.json` in the folder `profile/worker-N` of the train directory.
    """

    def __init__(self, task: cluster.Task, first_step: int, last_step: int, train_dir: str):
        """Trace from `first_step` to `last_step`."""
        self._first_step, self._last_step = first_step, last_step
        self._folder = os.path.join(train_dir, "profile", f"worker-{task.index}")
        self._profiler = tf.train.ProfilerHook(save_steps=1, output_dir=self._folder)

    def begin(self) -> None:
        os.makedirs(self._folder, exist_ok=True)
        self._profiler.begin()
        self._step = 0  # that the last run took
        self._global_step = tf.train.get_global_step()

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        # TensorFlow's hook traces nothing in the first run that it sees, and so sees one more.
        self._is_tracing = self._first_step - 2 <= self._step < self._last_step
        if self._is_tracing:
            return self._profiler.before_run(run_context)
        return tf.train.SessionRunArgs({"global_step": self._global_step})

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        if self._is_tracing:
            self._profiler.after_run(run_context, run_values)
        self._step = run_values.results["global_step"] + 1  # it was read before the run took its own
