"""How far a worker is, and how fast: the progress line, and the account of time and examples."""

import math
import time

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.task import Task
from runtime.monitoring.summaries import write, write_scalars
from runtime.process import phases
from runtime.process.output import in_words
from runtime.records import events
from runtime.updates.exchange import Updates


class ProgressHook(tf.train.SessionRunHook):
    """Logs a progress line every `log_every_secs`, with summaries of it, and keeps account of time and examples.

    The chief counts the examples of the whole cluster, by the global step; another worker counts its own.
    """

    def __init__(self, task: Task, updates: Updates, train_steps: int, batch_size: int, log_every_secs: float):
        """Prepare to count.

        Args:
          task: this worker.
          updates: what it runs.
          train_steps: the global step at which training ends.
          batch_size: examples in a local step.
          log_every_secs: the period of the line.
        """
        self.train_secs = 0.0  # from the first step to the last
        self.num_examples = 0  # used in that time
        self._task, self._train_steps, self._batch_size = task, train_steps, batch_size
        # Fetch everything in each run: for other fetches TensorFlow would build the graph again.
        self._fetches = [updates.num_steps, updates.loss, updates.global_step]
        self._examples_per_global_step = batch_size * updates.num_replicas
        self._log_every_secs = log_every_secs
        self._local_step = 0
        self._started_at = math.inf

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        # Count from here, not from where the last session was: a restored model may have lost steps.
        self._global_step = int(session.run(tf.train.get_global_step(session.graph)))
        self._note_logged(time.monotonic())
        if not coord.should_stop():  # else nothing is left to train, and the report stays that of the run before
            # TensorBoard shows no more what was written of steps that are lost.
            write(tf.Event(step=self._global_step + 1, session_log=tf.SessionLog(status=tf.SessionLog.START)))
            period_secs = self._log_every_secs
            self._record(
                "training", train_steps=self._train_steps, batch_size=self._batch_size, period_secs=period_secs
            )

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        self._started_at = min(self._started_at, time.monotonic())
        return tf.train.SessionRunArgs(self._fetches)

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        now = time.monotonic()
        num_steps, loss, global_step = run_values.results
        self._local_step += int(num_steps)
        if self._task.is_chief:
            self.num_examples += (int(global_step) - self._global_step) * self._examples_per_global_step
        else:
            self.num_examples += int(num_steps) * self._batch_size
        self._global_step = int(global_step)
        self.train_secs = now - self._started_at
        phases.note_step()
        if num_steps and now >= self._logged_at + self._log_every_secs:
            self._log(float(loss), now)

    def end(self, session: tf.Session) -> None:
        self._global_step = int(session.run(tf.train.get_global_step(session.graph)))
        logging.info(
            "%s: finished at global step %d, after %d local step%s in %.1f s",
            self._task,
            self._global_step,
            self._local_step,
            "s" * (self._local_step != 1),
            self.train_secs,
        )
        self._record("finished", examples_per_sec=self._local_step * self._batch_size / (self.train_secs or 1.0))

    def _log(self, loss: float, now: float) -> None:
        secs = now - self._logged_at
        examples_per_sec = (self.num_examples - self._examples_logged) / secs
        own_examples_per_sec = (self._local_step - self._local_step_logged) * self._batch_size / secs
        logging.info(
            "%s: global step %d/%d, local step %d, loss %s, %.0f examples/s",
            self._task,
            self._global_step,
            self._train_steps,
            self._local_step,
            in_words(loss),
            examples_per_sec,
        )
        values = {"loss": loss, "worker/examples_per_sec": own_examples_per_sec}
        if self._task.is_chief:
            values["cluster/examples_per_sec"] = examples_per_sec
        write_scalars(self._global_step, values)
        self._record("progress", loss=loss, examples_per_sec=own_examples_per_sec)
        self._note_logged(now)

    def _note_logged(self, now: float) -> None:
        self._examples_logged, self._local_step_logged, self._logged_at = self.num_examples, self._local_step, now

    def _record(self, event: str, **figures: float) -> None:
        events.record(event, **figures, global_step=self._global_step, local_step=self._local_step)
