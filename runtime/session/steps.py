"""The steps of a worker: from which one on it takes them, and up to which."""

import math
import time

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.task import Task
from runtime.cluster.waiting import LOOK_SECS
from runtime.data.reader import Batches
from runtime.process.errors import DIVERGED, AwayError, UnusableError
from runtime.process.threads import REMINDER_SECS, SessionThread
from runtime.records import events
from runtime.session.probe import Probe
from runtime.session.scaffold import TrainingScaffold
from runtime.updates.exchange import Updates

LONG_SECS = 25.0  # a worker is not silent for longer


class StepsHook(tf.train.SessionRunHook):
    """Starts the input of each session where the model is, and stops the worker after its last step.

    A worker that takes part in every synchronous update goes on with its next batch. Asynchronous workers share the
    global steps unevenly, so each begins at the average.

    `tf.train.StopAtStepHook` looks at the global step as it was before the step, so its workers take a few more. This
    one looks after it, stops a worker where the model says that training is over, and logs how many steps were lost
    with a ps.
    """

    def __init__(self, task: Task, scaffold: TrainingScaffold, updates: Updates, batches: Batches | None):
        """Take the steps of `updates`, on `batches`, until the global step has reached the last one."""
        self._task, self._scaffold, self._updates, self._batches = task, scaffold, updates, batches
        self._seen_step = 0

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        step, last_step = map(int, session.run([tf.train.get_global_step(session.graph), self._updates.last_step_now]))
        if self._batches:
            first_batch = step * self._updates.num_replicas // self._task.num_clients
            self._batches.start(session, first_batch, coord)
        # On the chief, others may have trained since it restored the model.
        found_step = self._scaffold.found_step if self._task.is_chief else step
        if (num_lost := self._seen_step - found_step) > 0:
            logging.warning(
                "%s: global step %d after %d: steps lost: %d", self._task, found_step, self._seen_step, num_lost
            )
            events.record("steps lost", num_steps=num_lost, global_step=found_step)
            self._seen_step = found_step  # another loss is counted from here
        if step >= last_step:
            logging.info("%s: global step %d: nothing is left to train", self._task, step)
            coord.request_stop()

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        return tf.train.SessionRunArgs([self._updates.global_step, self._updates.last_step, self._updates.loss])

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        step, last_step, loss = run_values.results
        if not np.isfinite(loss):
            found = self._batches.describe_not_finite() if self._batches else ""
            remedy = f"correct the examples, which have NaN or infinity: {found}" if found else DIVERGED
            raise UnusableError(f"{self._task}: the loss is not finite at global step {step}: {remedy}")
        self._seen_step = int(step)
        if not last_step:
            logging.info("%s: the model is good enough: training ends", self._task)
        if step >= last_step:
            run_context.request_stop()


class LongStepHook(SessionThread):
    """Says so while a step takes long, such as one that waits for its examples.

    The steps of other workers may wait for it, and cannot tell why. A function of the user's that never returns would
    keep this worker, and the end of the run, waiting.

    A connection may be gone: TCP notices that only while something is on its way. So this sends something, to each
    server and back, and the step fails.
    """

    def __init__(
        self, task: Task, probe: Probe, num_drawn: tf.Variable | None, num_exchanges: int, timeout_secs: float
    ):
        """Look at each step from a thread.

        Args:
          task: of this worker.
          probe: of this hook alone.
          num_drawn: for how many steps of a session examples have come; None: they are in memory.
          num_exchanges: that a step has.
          timeout_secs: how long to wait for examples.
        """
        super().__init__("look_at_step", self._look, LOOK_SECS, f"{task} could not check whether it waits for examples")
        self._task, self._probe, self._num_exchanges, self._timeout_secs = task, probe, num_exchanges, timeout_secs
        self._num_drawn = None if num_drawn is None else num_drawn.read_value()

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        super().after_create_session(session, coord)
        self._num_steps, self._began_at, self._said_at = 0, math.inf, 0.0
        self._looked_at = math.inf

    def before_run(self, run_context: tf.train.SessionRunContext) -> None:
        self._began_at = time.monotonic()
        super().before_run(run_context)

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        if self._said_at > self._began_at:
            events.record("waited")
        self._num_steps, self._began_at = self._num_steps + 1, math.inf

    def _look(self, session: tf.Session, coord: tf.train.Coordinator) -> bool:
        num_steps, now = self._num_steps, time.monotonic()
        if now > self._looked_at + REMINDER_SECS:
            logging.warning("%s: this process was paused for %.0f s", self._task, now - self._looked_at)
            self._said_at = now
        secs = now - max(self._began_at, self._said_at)
        if secs > REMINDER_SECS and self._num_drawn is not None and session.run(self._num_drawn) == num_steps:
            self._said_at, missing = now, "its next examples"
            remedy = "check that what mnist_input.py reads is reachable, and fast enough"
            if now > self._began_at + self._timeout_secs:
                waited = f"{self._task} waited {now - self._began_at:.0f} s for {missing}"
                raise AwayError(f"{waited}: {remedy}, or raise --recovery_timeout_secs")
            logging.warning("%s: waiting for %s: %s", self._task, missing, remedy)
            events.record("waiting", missing=missing)
        elif secs > LONG_SECS:
            self._said_at = now
            awaited = self._probe.describe_unreached() or "other workers"
            told = f"a call of {self._num_exchanges} exchanges has taken {now - self._began_at:.0f} s so far"
            hint = "; where the network is slow, --local_steps exchanges less often"
            hint *= self._task.replication == "between_graph"
            logging.warning("%s: %s: it computes, or waits for %s%s", self._task, told, awaited, hint)
        self._looked_at = time.monotonic()
        return False
