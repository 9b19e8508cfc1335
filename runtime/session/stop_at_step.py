"""When a worker has taken its last step."""

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.task import Task
from runtime.session.scaffold import TrainingScaffold


class StopAtStepHook(tf.train.SessionRunHook):
    """Stops a worker when its own step has reached `last_step`, or when it joins after that.

    `tf.train.StopAtStepHook` looks at the global step as it was before the step, so its workers take a few more. This
    one also says how many steps a lost ps has cost.
    """

    def __init__(self, task: Task, scaffold: TrainingScaffold, global_step: tf.Tensor, last_step: int):
        """Stop `task` when `global_step`, int64 [], as it is after a step, has reached `last_step`."""
        self._task, self._scaffold, self._global_step, self._last_step = task, scaffold, global_step, last_step
        self._seen_step = 0

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        step = session.run(tf.train.get_global_step(session.graph))
        # On the chief, others may have trained since it restored the model.
        found_step = self._scaffold.found_step if self._task.is_chief else step
        if (num_lost := self._seen_step - found_step) > 0:
            logging.warning(
                "%s: global step %d after %d: %d steps are lost", self._task, found_step, self._seen_step, num_lost
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
