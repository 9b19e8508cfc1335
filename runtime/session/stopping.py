"""Why a worker stops: at its last step, because of a signal, or, until it has a new session, at the loss of a ps."""

import os
import select
import signal
import threading
from collections.abc import Sequence

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.task import Task
from runtime.cluster.waiting import LOOK_SECS, Watch
from runtime.session.scaffold import TrainingScaffold

STOP_SECS = 8.0  # how long a worker may take to finish its step and to save; Docker kills after 10 s


class StoppedError(Exception):
    """A signal stopped training, in order, before its end."""


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


class StopOnSignalHook(tf.train.SessionRunHook):
    """Lets SIGTERM or SIGINT stop a worker after its step, and the chief save first.

    Python's own signal handlers do not run while the main thread is inside TensorFlow. So a thread reads the signals
    from a pipe that Python's C handler writes to. A second signal ends the process at once, and so does the first if
    there is no session yet. A step that is blocked has `STOP_SECS`.
    """

    def __init__(self, task: Task, saving_hooks: Sequence[tf.train.SessionRunHook]):
        """Prepare to stop `task`; `saving_hooks` save in their `end()`."""
        self._task, self._saving_hooks = task, saving_hooks
        self._has_session = False
        self._received: signal.Signals | None = None

    def begin(self) -> None:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)  # as set_wakeup_fd demands
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is not signal.SIG_IGN:  # a shell ignores SIGINT for its background jobs
                signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(writer)
        threading.Thread(target=self._listen, args=(reader,), name="signals", daemon=True).start()

    def _listen(self, reader: int) -> None:
        number = signal.Signals(os.read(reader, 1)[0])
        if self._has_session:
            logging.info("%s: %s: stopping after this step, or at once at a second signal", self._task, number.name)
            self._received = number
            select.select([reader], [], [], STOP_SECS)
        logging.info("%s: %s: stopping at once", self._task, number.name)
        logging.flush()
        os._exit(128 + number)

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        self._has_session = True

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        if self._received:
            for hook in self._saving_hooks:
                hook.end(run_context.session)
            saved = "and saved " if self._saving_hooks else ""
            raise StoppedError(f"{self._task} stopped {saved}because of {self._received.name}; start it again to go on")


class AbandonSessionHook(tf.train.SessionRunHook):
    """Closes a session that has lost a ps or one of its threads, so that the worker makes a new one.

    Without it a step may wait for ever: for a token on another ps, say, from a chief that waits for this very step.
    """

    def __init__(self, watch: Watch):
        self._watch = watch

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        threading.Thread(target=self._abandon, args=(session, coord), name="abandon_session", daemon=True).start()

    def _abandon(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        try:
            with coord.stop_on_exception():
                while not coord.wait_for_stop(LOOK_SECS):
                    if dead := self._watch.dead_ps():
                        raise tf.errors.UnavailableError(None, None, f"{dead} is gone")
            coord.raise_requested_exception()
        except tf.errors.OpError:
            session.close()
