"""How far a worker is, and how fast: the progress line, and the account of time and examples."""

import math
import time

import tensorflow.compat.v1 as tf
from absl import logging

from runtime import events
from runtime.cluster.task import Task
from runtime.folder import RunFolder
from runtime.monitoring import event_files
from runtime.updates.exchange import Updates


class ProgressHook(tf.train.SessionRunHook):
    """Logs a progress line every `log_every_secs`, with summaries of it, and keeps account of time and examples.

    The chief counts the examples of the whole cluster, by the global step; another worker counts its own.
    """

    def __init__(
        self, task: Task, updates: Updates, train_steps: int, batch_size: int, log_every_secs: float, folder: RunFolder
    ):
        """Prepare to count.

        Args:
          task: this worker.
          updates: what it runs.
          train_steps: the global step at which training ends.
          batch_size: examples in a local step.
          log_every_secs: the period of the line.
          folder: where summaries are written, if it is given.
        """
        self.train_secs = 0.0  # from the first step to the last
        self.num_examples = 0  # used in that time
        self._task, self._train_steps, self._batch_size = task, train_steps, batch_size
        # Fetch everything in each run: for other fetches TensorFlow would build the graph again.
        self._fetches = [updates.num_steps, updates.loss, updates.global_step]
        self._examples_per_count = self._batch_size * (updates.num_replicas if task.is_chief else 1)
        self._log_every_secs = log_every_secs
        self._summary_dir = folder.summaries_of(task)
        self._local_step = 0
        self._started_at = math.inf

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        # Count from here, not from where the last session was: a restored model may have lost steps.
        self._last_global_step = session.run(tf.train.get_global_step(session.graph))
        self._counted = self._count(self._last_global_step)
        self._note_logged(time.monotonic())
        sizes = {"train_steps": self._train_steps, "batch_size": self._batch_size}
        events.record("training", **sizes, **self._steps(self._last_global_step))

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        self._started_at = min(self._started_at, time.monotonic())
        return tf.train.SessionRunArgs(self._fetches)

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        now = time.monotonic()
        num_steps, loss_value, global_step = run_values.results
        self._local_step += int(num_steps)
        self.train_secs = now - self._started_at
        self._last_global_step = int(global_step)
        if num_steps and now >= self._logged_at + self._log_every_secs:
            self._add_examples(global_step)
            secs = now - self._logged_at
            examples_per_sec = (self.num_examples - self._examples_logged) / secs
            own_examples_per_sec = (self._local_step - self._local_step_logged) * self._batch_size / secs
            logging.info(
                "%s: global step %d/%d, local step %d, loss %.4f, %.0f examples/s",
                self._task,
                global_step,
                self._train_steps,
                self._local_step,
                loss_value,
                examples_per_sec,
            )
            self._note_logged(now)
            values = {"loss": float(loss_value), "worker/examples_per_sec": own_examples_per_sec}
            if self._task.is_chief:
                values["cluster/examples_per_sec"] = examples_per_sec
            event_files.write_scalars(self._summary_dir, int(global_step), values)
            figures = {"loss": float(loss_value), "examples_per_sec": own_examples_per_sec}
            events.record("progress", **figures, **self._steps(global_step))

    def end(self, session: tf.Session) -> None:
        self._add_examples(self._last_global_step)  # of the time that was measured: others may still train
        global_step = session.run(tf.train.get_global_step(session.graph))
        logging.info(
            "%s: finished at global step %d, after %d local step%s in %.1f s",
            self._task,
            global_step,
            self._local_step,
            "s" * (self._local_step != 1),
            self.train_secs,
        )
        own_examples_per_sec = self._local_step * self._batch_size / (self.train_secs or 1.0)
        events.record("finished", examples_per_sec=own_examples_per_sec, **self._steps(global_step))

    def _note_logged(self, now: float) -> None:
        self._examples_logged, self._local_step_logged, self._logged_at = self.num_examples, self._local_step, now

    def _add_examples(self, global_step: int) -> None:
        count = self._count(global_step)
        self.num_examples += (count - self._counted) * self._examples_per_count
        self._counted = count

    def _steps(self, global_step: int) -> dict[str, int]:
        return {"global_step": int(global_step), "local_step": self._local_step}

    def _count(self, global_step: int) -> int:
        return int(global_step) if self._task.is_chief else self._local_step
