"""This process as a member of its cluster: its task, its folder, its settings, and the guards around its server."""

import dataclasses
import os
from typing import Any

import tensorflow.compat.v1 as tf
from absl import flags, logging
from absl.command_name import set_kernel_process_name

from runtime import events
from runtime.cluster import host_lists
from runtime.cluster.connection import Connection
from runtime.cluster.discovery import discover
from runtime.cluster.leaving import Departure
from runtime.cluster.task import Task
from runtime.cluster.waiting import Timeouts, Watch
from runtime.errors import UnusableError
from runtime.machine.port import check_address, wait_until_address_leads_here
from runtime.machine.priority import lower_priority
from runtime.machine.session_config import make_server_config, make_session_config
from runtime.session.checkpoints import make_train_dir
from runtime.session.evaluation import Evaluate
from runtime.session.evaluator import follow_checkpoints
from runtime.session.export import check_export_dir
from runtime.session.result import Goal
from runtime.updates.mode import Mode


class Member:
    """What this process is, before its server is there and after."""

    def __init__(self, values: flags.FlagValues):
        """Take what the command line or a cluster manager says, and make the train directory if this is the chief.

        Raises:
          UnusableError: it cannot be used: see `Task`, `Mode.check()`, `check_address()`, `make_train_dir()` and
            `check_export_dir()`.
        """
        self.flags = values
        self.task = dataclasses.replace(choose_task(values), replication=values.replication)
        self.is_evaluator = self.task.job_name == "evaluator"
        of_mode: dict[str, Any] = {name: values[name].value for name in Mode._fields}
        self.mode = Mode(**of_mode)
        self.goal = Goal(values.train_steps, values.stop_at_accuracy)
        self.timeouts = Timeouts(values.startup_timeout_secs, values.recovery_timeout_secs)
        if not self.is_evaluator:
            set_kernel_process_name(f"{self.task.job_name}-{self.task.index}")  # as `ps` and `pkill` show it
            self.mode.check(num_workers=len(self.task.worker_hosts))
            check_address(self.task)
        self.train_dir = make_train_dir(self.task, values.train_dir)
        if not self.is_evaluator:
            check_export_dir(self.task, values.export_dir)
            events.start_recording(self.task, self.train_dir)
            self.session_config = make_session_config(self.task, values.gpus)

    @property
    def server_config(self) -> tf.ConfigProto:
        """The settings of the server of this process."""
        return make_server_config(self.session_config)

    def guard(self, server: tf.train.Server) -> None:
        """Watch over the server of this process: its address, the host lists of the others, and whom it needs.

        Raises:
          TimeoutError: the address of this task does not lead here.
        """
        wait_until_address_leads_here(self.task, self.timeouts.startup_secs)
        self.connection = Connection(server.target, self.session_config)
        self.watch = Watch(self.task, self.timeouts)
        host_lists.start_watch(self.task)

    def leave_when_told(self) -> None:
        """End this process, which only serves, after the chief's last word, or when a signal says so."""
        Departure(self.task, self.connection)

    def yield_to_starts(self) -> None:
        """Let tasks that start on this machine go first, now that this one works."""
        lower_priority(self.task)

    def follow_checkpoints(self, evaluate: Evaluate) -> None:
        """Evaluate the checkpoints of a run that others train, as the evaluator: see `follow_checkpoints()`."""
        startup_secs, recovery_secs = self.timeouts
        timeouts = Timeouts(startup_secs, recovery_secs + self.flags.save_checkpoint_secs)
        follow_checkpoints(self.task, evaluate, self.train_dir, self.goal, timeouts)

    @property
    def agreed_flags(self) -> dict[str, object]:
        """The flags that all workers must be given alike."""
        names = ["model", "hidden_units", "batch_size", "ps_strategy", "partition_bytes", "seed", "stop_at_accuracy"]
        return {name: self.flags[name].value for name in (*Mode._fields, *names, "sharding")}


def choose_task(values: flags.FlagValues) -> Task:
    """Return this task as the flags give it, or as a cluster manager does where no flag describes the cluster.

    Raises:
      UnusableError: nothing says which task this is, or what says so is wrong.
    """
    if not any(values[name].present for name in ("job_name", "task_index", "ps_hosts", "worker_hosts")):
        if discovery := discover(os.environ):
            values.set_default("train_dir", discovery.model_dir)
            return discovery.task
    elif "TF_CONFIG" in os.environ:
        logging.info("TF_CONFIG is ignored, since flags describe the cluster")
    if values.job_name is None or (values.task_index is None and values.job_name != "evaluator"):
        raise UnusableError("--job_name (ps, worker or evaluator) and --task_index are required")
    return Task(values.job_name, values.task_index or 0, tuple(values.ps_hosts), tuple(values.worker_hosts))
