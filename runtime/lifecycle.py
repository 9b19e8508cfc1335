"""Start, recover, finish: what a worker's session needs, from the first to the last."""

import math
import time
from collections.abc import Mapping, Sequence

import tensorflow.compat.v1 as tf
from absl import logging

from runtime import cluster


class TrainingScaffold(tf.train.Scaffold):
    """Makes every session of a worker ready, at the start and after a ps or the chief was lost.

    `MonitoredTrainingSession` calls `finalize()` before it makes a session, and on the chief `init_fn` once it has
    one. Three things are done differently from TensorFlow's own way:

    * No wait is silent or endless: the ps tasks are probed with plain sockets before a session tries to reach them.
    * A worker that looks before the chief has initialised would sleep 30 s (tensorflow/tensorflow#10679); here it
      polls.
    * The model that lives on the ps tasks is kept: TensorFlow's way, a `checkpoint_dir`, would roll it back to the
      last checkpoint whenever the chief restarts.
    """

    def __init__(
        self,
        task: cluster.Task,
        target: str,
        config: tf.ConfigProto,
        train_dir: str,
        unsaved_variables: Sequence[tf.Variable],
        local_init_op: tf.Operation,
        local_init_feed_dict: Mapping[tf.Tensor, object],
        startup_timeout_secs: float,
        recovery_timeout_secs: float,
    ):
        """Build the ops that this needs, after the model's.

        Args:
          task: this worker.
          target: its server's target.
          config: its sessions' settings.
          train_dir: where the checkpoints are, or empty.
          unsaved_variables: are initialised with the model, or before it is restored.
          local_init_op: runs in every new session, beside the initialisation of local variables.
          local_init_feed_dict: what it is fed.
          startup_timeout_secs: how long the chief may take to make the model before the first session.
          recovery_timeout_secs: how long before each later one.
        """
        self.found_step = 0  # at which the chief found the model, for its last session
        super().__init__(
            init_op=tf.no_op(),  # init_fn decides
            init_fn=lambda _, session: self._keep_restore_or_initialize(session),
            local_init_op=tf.group(tf.train.Scaffold.default_local_init_op(), local_init_op),
            local_init_feed_dict=local_init_feed_dict,
            saver=tf.train.Saver(sharded=True, save_relative_paths=True),
        )
        self._task, self._target, self._config, self._train_dir = task, target, config, train_dir
        self._timeout_secs = startup_timeout_secs
        self._recovery_timeout_secs = recovery_timeout_secs
        self._was_ready = self._has_trained = False
        self._global_step = tf.train.get_global_step()
        self._uninitialized = tf.report_uninitialized_variables([*unsaved_variables, *tf.global_variables()])
        self._uninitialized.mark_used()  # else TensorFlow prints a stack trace when a wait ends before its first use
        self._initialize_unsaved = tf.variables_initializer(unsaved_variables)
        self._initializer = tf.global_variables_initializer()

    def finalize(self) -> "TrainingScaffold":
        """Wait until a session can be made and used.

        Raises:
          TimeoutError: the chief did not initialise or restore the model in time.
        """
        super().finalize()
        if self._was_ready:
            logging.info("%s: the last session is lost: making a new one", self._task)
            time.sleep(cluster.POLL_SECS)  # gRPC takes its time to find a ps that is back
        cluster.wait_for_ps(self._task)
        if not self._task.is_chief:
            chief = f"the chief, worker 0 at {self._task.worker_hosts[0]}, to initialise or restore the model"
            cluster.wait_until_nothing_is_missing(
                self._task, lambda: "" if self._is_initialized() else chief, self._timeout_secs, "start the chief"
            )
        self._timeout_secs = self._recovery_timeout_secs
        self._was_ready = True
        return self

    def _is_initialized(self) -> bool:
        """Look with a session of its own, since the one to come would sleep."""
        try:
            with tf.Session(self._target, config=self._config) as session:
                return not session.run(self._uninitialized).size
        except tf.errors.UnavailableError:  # a ps went away since it was probed
            return False

    def _keep_restore_or_initialize(self, session: tf.Session) -> None:
        """Find the model: on the ps tasks, else in the last checkpoint, else from scratch."""
        checkpoint = tf.train.latest_checkpoint(self._train_dir) if self._train_dir else None
        is_alive = not session.run(self._uninitialized).size
        if not is_alive:
            session.run(self._initialize_unsaved)  # before the rest: then the model is ready, and workers look for that
        if is_alive:
            how = "the ps tasks hold a living model: keeping it"
        elif checkpoint:
            self.saver.restore(session, checkpoint)
            how = f"restored {checkpoint}"
        else:
            session.run(self._initializer)
            how = "initialised a new model"
            if self._has_trained:
                logging.warning("%s: there is no checkpoint, so the model is lost: training begins again", self._task)
        self._has_trained = True
        self.found_step = int(session.run(self._global_step))
        logging.info("%s: %s, at global step %d", self._task, how, self.found_step)


class StopAtStepHook(tf.train.SessionRunHook):
    """Stops a worker when its own step has reached `last_step`, or when it joins after that.

    `tf.train.StopAtStepHook` looks at the global step as it was before the step, and so lets workers take a few more.
    This one also says how many steps are lost when a ps was.
    """

    def __init__(self, task: cluster.Task, scaffold: TrainingScaffold, global_step: tf.Tensor, last_step: int):
        """Stop `task` when `global_step`, int64 [], as it is after a step, has reached `last_step`."""
        self._task, self._scaffold, self._global_step, self._last_step = task, scaffold, global_step, last_step
        self._seen_step = 0

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        step = session.run(tf.train.get_global_step(session.graph))
        # Others may have trained since the chief restored the model.
        found_step = self._scaffold.found_step if self._task.is_chief else step
        if (lost := self._seen_step - found_step) > 0:
            logging.warning(
                "%s: global step %d after %d: %d steps are lost", self._task, found_step, self._seen_step, lost
            )
        if step >= self._last_step:
            logging.info("%s: global step %d of %d: nothing is left to train", self._task, step, self._last_step)
            coord.request_stop()

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        return tf.train.SessionRunArgs(self._global_step)

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        self._seen_step = run_values.results
        if self._seen_step >= self._last_step:
            run_context.request_stop()


class ProgressHook(tf.train.SessionRunHook):
    """Logs a progress line every `log_every_secs`, and keeps account of time and examples.

    On the chief the examples are those of the whole cluster, counted by the global step; else this worker's own.
    """

    def __init__(
        self,
        task: cluster.Task,
        num_steps: tf.Tensor,
        loss: tf.Tensor,
        global_step: tf.Tensor,
        train_steps: int,
        batch_size: int,
        num_replicas: int,
        log_every_secs: float,
    ):
        """Prepare to count.

        Args:
          task: this worker.
          num_steps: local steps in one run of the graph, int64 [].
          loss: of one of them, float32 [].
          global_step: as it is after that, int64 [].
          train_steps: what the line shows beside the global step.
          batch_size: examples in one local step.
          num_replicas: local steps, of any worker, in one global step.
          log_every_secs: the period of the line.
        """
        self.train_secs = 0.0  # from the first step to the last
        self.num_examples = 0  # used in that time
        self._task, self._train_steps = task, train_steps
        # All of it in each run: for other fetches TensorFlow would build the graph again.
        self._fetches = [num_steps, loss, global_step]
        self._examples_per_count = batch_size * (num_replicas if task.is_chief else 1)
        self._log_every_secs = log_every_secs
        self._local_step = 0
        self._started_at = math.inf

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        # Not since the last session: a restored model may have lost steps.
        self._counted = self._count(session.run(tf.train.get_global_step(session.graph)))
        self._examples_logged, self._logged_at = self.num_examples, time.monotonic()

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        self._started_at = min(self._started_at, time.monotonic())
        return tf.train.SessionRunArgs(self._fetches)

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        now = time.monotonic()
        num_steps, loss, global_step = run_values.results
        self._local_step += int(num_steps)
        self.train_secs = now - self._started_at
        if num_steps and now >= self._logged_at + self._log_every_secs:
            self._add_examples(global_step)
            logging.info(
                "%s: global step %d/%d, local step %d, loss %.4f, %.0f examples/s",
                self._task,
                global_step,
                self._train_steps,
                self._local_step,
                loss,
                (self.num_examples - self._examples_logged) / (now - self._logged_at),
            )
            self._examples_logged, self._logged_at = self.num_examples, now

    def end(self, session: tf.Session) -> None:
        global_step = session.run(tf.train.get_global_step(session.graph))
        self._add_examples(global_step)
        logging.info(
            "%s: finished at global step %d, after %d local steps in %.1f s",
            self._task,
            global_step,
            self._local_step,
            self.train_secs,
        )

    def _add_examples(self, global_step: int) -> None:
        count = self._count(global_step)
        self.num_examples += (count - self._counted) * self._examples_per_count
        self._counted = count

    def _count(self, global_step: int) -> int:
        return int(global_step) if self._task.is_chief else self._local_step
