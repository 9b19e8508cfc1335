"""How a worker's sessions become ready: wait for the ps tasks, then for the model, or make or restore it."""

import contextlib
import functools
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.board import TRAINING
from runtime.cluster.membership import Membership
from runtime.cluster.status import describe
from runtime.cluster.task import Peer, port_of
from runtime.cluster.waiting import POLL_SECS, wait_until_nothing_is_missing
from runtime.machine.session_config import Connection
from runtime.process.end import end_process
from runtime.process.errors import AwayError
from runtime.process.threads import reminding, start_reminding
from runtime.records import events
from runtime.records.folder import RunFolder
from runtime.saving import checkpoints, result
from runtime.saving.saver import make_saver
from runtime.saving.train_dir import ON_EACH, SharedFolder
from runtime.session.probe import Probe
from runtime.updates.exchange import Updates

PREPARING_SECS = 20.0  # how often a worker says that its session is not ready
LATE_SECS = 10.0  # a ps that starts together with this worker answers before that
MAX_PAUSE_SECS = 1.0  # between two sessions that cannot be made
MAX_FAILING_SECS = 60.0  # how long a session lasts at most that could take no step from the beginning
MANY_LOST = 3  # sessions in a row, though each ps lives on
SHARING_SECS = events.MAX_MEMORY_SECS + 5  # how long a shared folder may take to show what the chief has written


class Job(NamedTuple):
    """What the tasks of a job agree on, and where its model is saved."""

    agreed: Mapping[str, object]  # flags by name
    updates: Updates
    folder: RunFolder
    written_by: str  # "ps" or "chief": who writes them
    keep_checkpoints: int
    goal: result.Goal
    uses: Mapping[str, str] = {}  # of the variables: see `checkpoints.check_last_checkpoint()`


class TrainingScaffold(tf.train.Scaffold):
    """Makes every session of a worker ready, at the start and after a ps or the chief was lost.

    `MonitoredTrainingSession` calls `finalize()` before it makes a session and, on the chief, `init_fn` once it has
    one. Three things differ from TensorFlow's own scaffold:

    * No wait is silent or endless: a worker asks its servers before it makes a session.
    * A worker that comes before the chief has initialised polls. TensorFlow's would sleep 30 s
      (tensorflow/tensorflow#10679).
    * The model that lives on the ps tasks is kept. TensorFlow's `checkpoint_dir` would roll it back to the last
      checkpoint whenever the chief restarts.
    """

    def __init__(self, membership: Membership, connection: Connection, job: Job):
        """Build what this needs, after the model.

        Args:
          membership: of this worker.
          connection: to its server.
          job: that this worker takes part in.

        Raises:
          UnusableError: the last checkpoint is not one of this model: see `check_last_checkpoint()`.
        """
        task = membership.task
        if task.is_chief:
            checkpoints.check_last_checkpoint(job.folder, job.uses)
        self.found_session: tf.Session | None = None  # the last one in which the chief found the model
        self.found_step = 0  # the global step that it had there
        super().__init__(
            init_op=tf.no_op(),  # init_fn decides
            init_fn=lambda _, session: self._keep_restore_or_initialize(session),
            saver=make_saver(task, job.written_by, job.keep_checkpoints),
        )
        self._task, self._membership, self.connection, self._job = task, membership, connection, job
        self._timeouts = membership.timeouts  # of the chief, to initialise the model, and to restore it
        must_share = task.is_chief and job.folder.is_given and job.written_by == "ps"
        self._shared_folder = SharedFolder(task, job.folder) if must_share else None
        self._was_ready = self._has_trained = False
        self._is_unsure = task.is_chief and not events.has_recorded("tested")
        self._num_lost = 0  # sessions in a row of the same servers
        self._pause_secs = POLL_SECS  # before the next session, after one that never came to be
        self._failing_since, self._ready_at, self._waits_since = math.inf, -math.inf, -math.inf  # by `time.monotonic()`
        self._is_session_ready = threading.Event()
        self.incarnations: dict[Peer, str] = {}  # of the servers, as they were before the last session was made
        self._global_step = tf.train.get_global_step()
        unsaved = job.updates.unsaved_variables
        with tf.name_scope("session"):
            self._uninitialized = tf.report_uninitialized_variables([*unsaved, *tf.global_variables()])
            self._uninitialized.mark_used()  # or TensorFlow prints a stack trace when a wait ends before its first use
            self._initialize_unsaved = tf.variables_initializer(unsaved)
            self._initializer = tf.global_variables_initializer()
            self._probe = Probe(task, connection)

    def finalize(self) -> "TrainingScaffold":
        """Wait until a session can be made and used; end this process if a ps is gone because the job has finished.

        Raises:
          AwayError: the chief did not initialise or restore the model in time, or the host lists differ, or no session
            takes a step.
          UnusableError: this task and the chief do not agree.
        """
        with tf.name_scope("session"):
            super().finalize()
        if self._was_ready:
            self._pause_after_loss()
        before = self.incarnations
        self._waits_since = time.monotonic()
        self.note_ready()  # the last session is lost
        wait_for_servers = functools.partial(wait_until_nothing_is_missing, self._task, self._describe_missing_servers)
        wait_for_servers()
        self._num_lost = self._num_lost + 1 if before == self.incarnations else 0
        if self._num_lost >= MANY_LOST:
            told = "%s: lost %d sessions in a row, though each ps lives on: check that the network lets large packets"
            logging.warning(f"{told} through (the MTU)", self._task, self._num_lost)
        for describe_missing, remedy in self._questions():
            self._wait_for(describe_missing, remedy)
        wait_for_servers()  # the session meets the processes that answer now, or later ones
        self._was_ready, self._ready_at = True, time.monotonic()
        line = f"{self._task}: still preparing its session, which takes long where the network is slow"
        self._is_session_ready = start_reminding(logging.INFO, line, PREPARING_SECS)
        return self

    def note_ready(self) -> None:
        """Note that a session is ready for its first step."""
        self._is_session_ready.set()

    def _pause_after_loss(self) -> None:
        logging.info("%s: the last session is lost: creating a new one", self._task)
        if time.monotonic() > self._ready_at + MAX_FAILING_SECS:
            self._failing_since, self._num_lost = math.inf, 0
        self._end_if_failing("each session was lost before its first step", "start this task on another host")
        time.sleep(self._pause_secs)  # gRPC needs a moment to find a ps that is back, and 20 s at another address
        self._pause_secs = min(2 * self._pause_secs, MAX_PAUSE_SECS)

    def _questions(self) -> Iterator[tuple[Callable[[], str], str]]:
        """Yield what asks for all that may be missing once the servers are there, and what helps where it is."""
        remedy = (
            "give all tasks the same host lists; if they have them, read that task's log: it may not reach its own"
            " address, and check that large packets get through (the MTU)"
        )
        yield self._membership.agreement.describe_unconfirmed, remedy
        port = port_of(self._task.address)
        remedy = f"open port {port} of this host to them, and let large packets through (the MTU)"
        yield self._probe.describe_unreached, remedy
        if not self._task.is_chief:
            flag = "--recovery_timeout_secs" if self._was_ready else "--startup_timeout_secs"
            yield self._describe_missing_model, f"start the chief, or, if it is still reading, raise {flag}"

    def _wait_for(self, describe_missing: Callable[[], str], remedy: str) -> None:
        def describe_unless_finished() -> str:
            if missing := describe_missing():
                self._describe_missing_servers()  # they may leave meanwhile, at the end of a run without this worker
            return missing

        secs = self._timeouts.recovery_secs if self._was_ready else self._timeouts.startup_secs
        # A look at the model makes a session, so a long wait looks less often.
        wait_until_nothing_is_missing(self._task, describe_unless_finished, secs, remedy, poll_secs=2.0)

    @contextlib.contextmanager
    def repeating_cancelled_steps(self) -> Iterator[None]:
        """Suppress the error of a step that was cancelled, so that the training loop takes another one.

        `MonitoredTrainingSession` makes a new session after an `AbortedError` or an `UnavailableError`. But the step
        during which a ps drops the session fails with a `CancelledError`; only the next one is aborted.

        Raises:
          AwayError: all steps within the recovery timeout were cancelled.
        """
        try:
            yield
            self._failing_since = math.inf
        except tf.errors.CancelledError:
            problem = f"a ps has cancelled every step, as happens when two processes run as {self._task}"
            self._end_if_failing(problem, "end one of them")
            logging.warning("%s: a ps has cancelled a step: trying another one", self._task)
            time.sleep(POLL_SECS)

    def _end_if_failing(self, problem: str, remedy: str) -> None:
        """Raise an AwayError if there has been this problem, and no step, for the recovery timeout."""
        now, recovery_secs = time.monotonic(), self._timeouts.recovery_secs
        self._failing_since = min(self._failing_since, now)
        if now - self._failing_since > recovery_secs:
            raise AwayError(f"{self._task}: for {recovery_secs:g} s, {problem}: {remedy}")

    def _describe_missing_servers(self) -> str:
        statuses = self._membership.look()
        self.incarnations = {server: statuses[server].incarnation for server in self._task.servers}
        missing = {of: statuses[of].silence for of, found in self.incarnations.items() if not found}
        # It looks before the membership gives up. The chief must be surer, unless it has ended this very run before: a
        # run that begins anew needs it.
        late_secs = self._timeouts.startup_secs / 2 if self._is_unsure else min(LATE_SECS, min(self._timeouts) / 2)
        is_late = any(statuses[of].reason for of in missing) and time.monotonic() > self._waits_since + late_secs
        if is_late and (finished := self._membership.describe_end_without(missing)):
            end_process(0, finished, is_error=False)
        if missing and self._was_ready:
            self._membership.agreement.describe_unconfirmed()  # else this might wait for one that is in no list now
        return describe(missing)

    def _describe_missing_model(self) -> str:
        """Look with a session of its own, since TensorFlow's would sleep."""
        # A ps may go away after it has answered.
        with contextlib.suppress(tf.errors.UnavailableError), self.connection.session() as session:
            is_there = not session.run(self._uninitialized).size  # first: the chief publishes before it initialises
            self._membership.agreement.check_flags(self._job.agreed)
            if is_there:
                self._pause_secs = POLL_SECS
                return ""
        return f"the chief, worker 0 at {self._task.worker_hosts[0]}, to initialise or restore the model"

    def _keep_restore_or_initialize(self, session: tf.Session) -> None:
        """Find the model on the ps tasks, else in the last checkpoint; else make a new one."""
        self._membership.agreement.check_flags(self._job.agreed)
        if self._shared_folder:
            what = f"{self._task}: still checking that every ps sees --train_dir"
            with reminding(what, self._job.folder.path, ON_EACH):
                ask_every_ps = functools.partial(session.run, self.ready_op)
                self._shared_folder.check(session, ask_every_ps, min(SHARING_SECS, self._timeouts.startup_secs))
        checkpoint = checkpoints.recover(self.saver, self._job.folder)
        is_kept = not session.run(self._uninitialized).size
        would_lose = (checkpoint or "") if is_kept and checkpoints.find_last_step(self._job.folder) else ""
        self._membership.agreement.claim_model(self._job.folder.path, would_lose)
        if is_kept:
            origin = "the ps tasks still hold the model: keeping it"
        elif checkpoint:
            checkpoints.restore(self.saver, session, checkpoint)
            origin = f"restored {checkpoint}"
        else:
            session.run(self._initializer)
            origin = "initialised a new model"
            if self._has_trained:
                logging.warning("%s: there is no checkpoint, so the model is lost: training starts over", self._task)
        self.found_step = int(session.run(self._global_step))
        if not is_kept:
            is_finished = result.is_of_finished_run(self._job.folder, self._job.goal, self.found_step)
            # Last: the other workers then train at once.
            session.run(self._initialize_unsaved, dict.fromkeys(self._job.updates.are_finished, is_finished))
        self._has_trained, self._pause_secs = True, POLL_SECS
        self._membership.board.say(TRAINING)  # first: a signal lets this task save now, for which each ps must stay
        self.found_session = session
        logging.info("%s: %s, at global step %d", self._task, origin, self.found_step)
        events.record("model", origin=origin, global_step=self.found_step)
