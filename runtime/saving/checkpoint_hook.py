"""When and how checkpoints are written."""

import contextlib
import glob
import math
import os
import shutil
import threading
import time

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.task import Task
from runtime.machine.session_config import Connection
from runtime.process.errors import DIVERGED, UnsavedError, UnusableError, reason
from runtime.process.threads import reminding
from runtime.records import events
from runtime.records.folder import RunFolder
from runtime.saving.checkpoints import MOMENTARY, is_saved
from runtime.saving.saver import NOT_FINITE
from runtime.saving.train_dir import ON_EACH, keep_locked


def remove_unfinished(folder: RunFolder) -> None:
    """Remove what is left of checkpoints that could not be written, or whose writing was cut off."""
    pattern = f"{glob.escape(folder.checkpoint)}-*"
    for parts in glob.glob(f"{pattern}_temp"):  # those of the ps tasks
        shutil.rmtree(parts, ignore_errors=True)
    for path in glob.glob(f"{pattern}.tempstate*"):
        with contextlib.suppress(OSError):
            os.remove(path)


class CheckpointHook(tf.train.SessionRunHook):
    """Saves the model at the start of a session, from time to time and at the end, and trains on when that fails.

    The model lives on the ps tasks, and would be lost if a full disk ended the job. Only a new model, which has not
    trained yet, is refused when it cannot be saved, unless that may pass. TensorFlow's own hook takes a step for saved
    when saving it fails, and some errors of a file server for the loss of a ps.
    """

    def __init__(self, task: Task, folder: RunFolder, scaffold: tf.train.Scaffold, save_secs: float, train_steps: int):
        """Save into `folder`, if that is given, every `save_secs` before `train_steps`, if `task` is the chief."""
        self.is_needed = task.is_chief and folder.is_given
        self.saved_step = 0  # the global step of the last checkpoint that this process knows to be written
        self.failure = self.remedy = ""  # why the last checkpoint could not be written, and what to do
        self._left: list[str] = []  # old checkpoints that could not be deleted
        self._task, self._folder, self._scaffold, self._save_secs = task, folder, scaffold, save_secs
        self._train_steps = train_steps
        self._due_at = math.inf  # a time of `time.monotonic()`
        self._saving = threading.Lock()  # a signal may stop the worker while it saves

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        if self.is_needed:
            with self._saving:
                remove_unfinished(self._folder)  # of a process that was ended while it saved
        is_new = session.run(tf.train.get_global_step(session.graph)) == 0
        error = self._save_or_log(session, is_amid=True)
        if is_new and error and not isinstance(error.__cause__, MOMENTARY):
            problem = f"no checkpoint can be written to --train_dir {self._folder.path}: {self.failure}"
            raise UnusableError(f"{problem}{self.remedy}{ON_EACH if self.remedy else ''}")

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        if time.monotonic() >= self._due_at and not run_context.stop_requested:
            self._save_or_log(run_context.session, is_amid=True)

    def end(self, session: tf.Session) -> None:
        self._save_or_log(session)

    def end_without_workers(self, session: tf.Session, connection: Connection) -> None:
        """Save at the end as `session` would; in-graph, with one that needs no worker: one of them may be gone."""
        if not self.is_needed or self._task.batches_per_step == 1:
            return self.end(session)
        config = tf.ConfigProto()
        config.CopyFrom(connection.config)
        config.device_filters[:] = ["/job:ps", self._task.device]
        # TensorFlow would place all of the graph, also what no such session can run.
        step = session.graph.as_graph_element(tf.train.get_global_step(session.graph)).name
        needed = [self._scaffold.saver.saver_def.save_tensor_name, step, self._scaffold.ready_op.name]
        nodes = tf.graph_util.extract_sub_graph(session.graph.as_graph_def(), [name.split(":")[0] for name in needed])
        with tf.Graph().as_default() as graph:
            tf.import_graph_def(nodes, name="")
            tf.add_to_collection(tf.GraphKeys.GLOBAL_STEP, graph.get_tensor_by_name(step))
        with tf.Session(connection.target, graph, config) as of_ps_tasks:
            self.end(of_ps_tasks)

    def has_saved(self, global_step: int) -> bool:
        """Return whether the last checkpoint has the model of this step, or nothing is to be saved."""
        return not self.is_needed or is_saved(self._folder, global_step)

    def save(self, session: tf.Session, is_amid: bool = False) -> None:
        """Save the model, unless the last checkpoint has it, perhaps with more in it: another optimizer's state, say.

        While other workers train, `is_amid`, the last global step may be counted before each ps has what it brings. The
        end saves that step.

        Raises:
          OpError: a ps is lost, and the session with it.
          UnsavedError: the checkpoint cannot be written.
          UnusableError: a parameter is not finite: nothing is written, and the checkpoints that are good stay.
        """
        if not self.is_needed:
            return
        with self._saving:
            self._due_at = time.monotonic() + self._save_secs
            global_step = int(session.run(tf.train.get_global_step(session.graph)))
            if is_amid and global_step >= self._train_steps:
                return
            try:
                keep_locked(self._folder)
                start, saving = time.monotonic(), f"{self._task}: still saving global step {global_step}"
                with reminding(saving, self._folder.path, ON_EACH):
                    if not self.has_saved(global_step):
                        self._write(session, global_step)
                        secs = round(time.monotonic() - start, 3)
                        events.record("checkpoint", global_step=global_step, secs_taken=secs)
                self.saved_step, self.failure = global_step, ""
            except UnsavedError as error:
                self.failure, self.remedy = str(error), ""  # it says what to do itself
                raise
            except (tf.errors.OpError, ValueError) as error:  # a ValueError: the folder is gone
                self._remove_parts(global_step)
                why = reason(error) if isinstance(error, tf.errors.OpError) else str(error)
                if what := NOT_FINITE.search(why):
                    problem = f"global step {global_step} is not saved, since {what[0]}"
                    raise UnusableError(f"{problem}: {DIVERGED}") from error
                # It fails if a ps is lost; by name, since the graph may be another.
                session.run(self._scaffold.ready_op.name)
                self.failure, self.remedy = why, f"; {self._folder.remedy_for(why)}"
                where = f"global step {global_step} could not be saved in {self._folder.path}"
                raise UnsavedError(f"the model of {where}: {self.failure}") from error

    def _write(self, session: tf.Session, global_step: int) -> None:
        """Save, name the last checkpoints, and delete the others: all that are known, as of runs that have kept more.

        TensorFlow's saver would never delete one of them if a checkpoint could not be named.
        """
        saver = self._scaffold.saver
        num_kept = saver.saver_def.max_to_keep
        path = saver.save(session, self._folder.checkpoint, global_step, write_meta_graph=False, write_state=False)
        known = [*(other for other in saver.last_checkpoints if other != path), path]
        saver.recover_last_checkpoints(known)
        names = [os.path.basename(kept) for kept in known[-num_kept:]]
        tf.train.update_checkpoint_state(self._folder.path, names[-1], names)
        self._left = [old for old in known[:-num_kept] if not self._is_removed(old)]
        saver.recover_last_checkpoints([*self._left, *known[-num_kept:]])

    def _is_removed(self, path: str) -> bool:
        """Remove a checkpoint; return whether it is gone: another user may have written it, say."""
        try:
            tf.train.remove_checkpoint(path)
            return True
        except tf.errors.OpError as error:
            if path not in self._left:
                told = "%s cannot be deleted (%s): each save tries again"
                logging.warning(told, path, reason(error))
            return False

    def _remove_parts(self, global_step: int) -> None:
        """Remove what is left of a checkpoint, unless it is whole: then it is named, or deleted, with the next one."""
        remove_unfinished(self._folder)
        path = f"{self._folder.checkpoint}-{global_step}"
        if path not in self._scaffold.saver.last_checkpoints:
            self._is_removed(path)

    def _save_or_log(self, session: tf.Session, is_amid: bool = False) -> UnsavedError | None:
        """Save; return why that failed, if it did."""
        try:
            self.save(session, is_amid)
        except UnsavedError as error:
            logging.error("no checkpoint could be written: %s%s; the next save tries again", error, self.remedy)
            return error
        return None
