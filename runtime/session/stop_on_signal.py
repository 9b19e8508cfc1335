"""How SIGTERM and SIGINT stop a worker without loss."""

import os
import select
import signal
import threading
from collections.abc import Sequence

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.task import Task

STOP_SECS = 8.0  # how long a worker may take to finish its step and to save; Docker kills after 10 s


class StoppedError(Exception):
    """A signal stopped training, in order, before its end."""


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
