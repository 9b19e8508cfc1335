"""What stops a worker before its last step: a signal, or, until it has a new session, the loss of a ps."""

import contextlib
import ctypes
import gc
import math
import signal
import threading
import time
from typing import NoReturn

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster import signals
from runtime.cluster.board import STOPPED, TRAINING, absent
from runtime.cluster.membership import Membership
from runtime.cluster.task import Peer
from runtime.cluster.waiting import wait_until_nothing_is_missing
from runtime.process.end import end_process
from runtime.process.errors import AwayError, UnusableError, reason
from runtime.process.threads import make_guard, start_guard
from runtime.saving.checkpoint_hook import CheckpointHook
from runtime.session.scaffold import TrainingScaffold

STEP_SECS = 1.0  # how long a worker may take after a signal to finish its step
CLOSING_SECS = 60.0  # how long the close of a lost session may take; TCP gives up a cut link after 20 s
STOP_SECS = 8.0  # how long a worker that saves nothing may take to stop in order; Docker kills after 10 s
OTHERS_SECS = 3.0  # how long the chief waits for the others to stop before it saves, and any worker for the ps tasks


class StopOnSignalHook(tf.train.SessionRunHook):
    """Lets a signal stop a worker in order: it finishes its step, the chief saves, the ps tasks hear of it.

    A step may wait for others that have stopped already, or take long. So the worker stops without its end after
    `STEP_SECS`, and so does the chief while it tests or exports the model. A save that goes on is waited for, and said.
    A second signal ends the process at once. So does the first if there is no session yet.
    """

    def __init__(
        self, membership: Membership, scaffold: TrainingScaffold, checkpoint_hook: CheckpointHook, save_secs: float
    ):
        """Prepare to stop this task; the `checkpoint_hook` saves, within `save_secs`."""
        self._scaffold = scaffold
        self._task, self._membership, self._checkpoint_hook = membership.task, membership, checkpoint_hook
        saves = checkpoint_hook.is_needed
        self._stop = signals.Stop(save_secs, self._describe_unsaved) if saves else signals.Stop(STOP_SECS)
        self._session: tf.Session | None = None
        self._stopping = threading.Lock()  # either the main thread stops the worker, after its step, or another one
        self._is_done = False  # nothing is left to save
        self._received: signal.Signals | None = None

    def begin(self) -> None:
        signals.listen(self._note_signal)

    def _note_signal(self, number: signal.Signals) -> signals.Stop:
        session = self._scaffold.found_session or self._session  # other hooks may still prepare the one that was found
        if not session:
            return signals.Stop()
        logging.info("%s: %s: stopping cleanly, or at once at a second signal", self._task, number.name)
        self._received = number
        start_guard("stop", self._end, session, number, STEP_SECS)
        return self._stop

    def _describe_unsaved(self) -> str:
        if self._is_done:
            return ""
        silent = self._membership.describe_silent_ps()
        since = f"{self._task} has not saved the steps after global step {self._checkpoint_hook.saved_step} yet"
        return f"{since}, since it waits for {silent}" if silent else since

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        self._session = session
        self._scaffold.note_ready()

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        if self._received:
            self._end(run_context.session, self._received)

    def end(self, session: tf.Session) -> None:
        with self._stopping:
            self._is_done = True

    def _end(self, session: tf.Session, number: signal.Signals, after_secs: float = 0.0) -> NoReturn:
        """End this process; before that, save what others need of it, unless the end of training has done so."""
        time.sleep(after_secs)
        with self._stopping:
            saves, failure = self._checkpoint_hook.is_needed, ""
            try:
                if not self._is_done:
                    if saves and self._task.clients:
                        self._wait_for_others()
                    self._checkpoint_hook.end_without_workers(session, self._scaffold.connection)
                    self._is_done = not self._checkpoint_hook.failure
                    saying = make_guard("say", self._say_that_it_stops)
                    saying.start()
                    saying.join(OTHERS_SECS)  # a server that is silent may take longer
            except (tf.errors.OpError, RuntimeError) as error:  # a ps or the session is gone
                failure = self._membership.describe_silent_ps() or reason(error)
            except UnusableError as error:
                failure = str(error)
            unwritten = self._checkpoint_hook.failure
            failure = (failure or unwritten) if saves else ""  # a worker that saves nothing loses nothing
            saved = f"and saved global step {self._checkpoint_hook.saved_step} " if saves and not failure else ""
            lost = f", and could not save the last steps ({failure})" if failure else ""
            remedy = self._checkpoint_hook.remedy if failure and failure == unwritten else ""
            go_on = "restart it to resume"
            if self._task.is_chief and not saves:
                go_on = "nothing is saved: restart it while the ps tasks still run, or training starts over"
            message = f"{self._task} stopped {saved}because of {number.name}{lost}{remedy}; {go_on}"
            end_process(128 + number, message, is_error=bool(failure))

    def _say_that_it_stops(self) -> None:
        with contextlib.suppress(AwayError, RuntimeError, tf.errors.OpError):  # they will see that it is gone
            self._membership.board.repeat_until_answered(lambda: self._membership.board.say(STOPPED), OTHERS_SECS)

    def _wait_for_others(self) -> None:
        """Wait a little for the other workers, which may have had the signal too, to save their last steps."""

        def describe_training() -> str:
            records = self._membership.board.repeat_until_answered(self._membership.board.records, OTHERS_SECS)
            training = [peer for peer in self._task.clients if records[peer.index].state == TRAINING]
            return ", ".join(f"{peer} to stop" for peer in {*training} - absent(training, records).keys())

        with contextlib.suppress(AwayError):
            wait_until_nothing_is_missing(self._task, describe_training, OTHERS_SECS)


class AbandonSessionHook(tf.train.SessionRunHook):
    """Closes a session that has lost a ps, so that the worker makes a new one.

    Without it a step may wait for ever: for an update on another ps, say, which lacks a gradient that was lost. The
    thread of the membership looks; another one closes, since that may take long.
    """

    def __init__(self, membership: Membership, scaffold: TrainingScaffold):
        self._membership, self._scaffold = membership, scaffold
        self._guarded: tuple[tf.Session, tf.train.Coordinator, dict[Peer, str]] | None = None  # with its servers
        self._lost: object = None
        self._closing = threading.Thread()
        self._failure, self._give_up_at = "", math.inf
        membership.decisions.append(self._abandon_if_lost)

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        if self._guarded:
            self._guarded[1].request_stop()  # TensorFlow does not, if a later hook has failed
            release_free_memory()  # that of the last session
        self._guarded = session, coord, self._scaffold.incarnations

    def _abandon_if_lost(self) -> None:
        if self._lost and self._closing.is_alive() and time.monotonic() > self._give_up_at:
            end_process(1, f"the last session cannot be closed after {self._failure}: start this task again")
        guarded = self._guarded
        if not guarded or guarded is self._lost:
            return
        session, coord, incarnations = guarded
        if coord.should_stop() or not (dead := self._membership.ended_servers(incarnations)):
            return
        self._failure, self._give_up_at = f"{dead} is gone", time.monotonic() + CLOSING_SECS
        with coord.stop_on_exception():
            raise tf.errors.UnavailableError(None, None, self._failure)
        self._closing, self._lost = make_guard("close_session", self._close, session), guarded
        self._closing.start()

    def _close(self, session: tf.Session) -> None:
        # A step that registers its graph waits for the answer of each ps, whatever is cancelled, and TCP notices a cut
        # link only while something is on its way. So send something.
        with contextlib.suppress(tf.errors.OpError, RuntimeError):
            session.run(self._scaffold.ready_op)
        session.close()  # it cancels the step, and waits until that has ended


def release_free_memory() -> None:
    """Return what is not in use to the system, if the C library is glibc; else only collect Python's garbage.

    A session frees many small pieces when it ends. glibc keeps the pages between those that stay, and the next session
    takes new ones: without this, a worker grows by some megabytes with each session that it loses.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
