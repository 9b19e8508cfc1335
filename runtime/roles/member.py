"""This process as a member of its cluster: its task, its folder, its settings, and the guards around its server."""

import contextlib
import dataclasses
import functools
import os
import threading
from typing import Any

import tensorflow.compat.v1 as tf
from absl import flags, logging
from absl.command_name import set_kernel_process_name

from runtime.cluster.departure import Departure
from runtime.cluster.discovery import MANAGERS, discover
from runtime.cluster.holdings import Holding
from runtime.cluster.membership import start_membership
from runtime.cluster.task import Task
from runtime.cluster.waiting import Timeouts
from runtime.data.sources import Source, load
from runtime.machine.port import check_address, wait_until_address_leads_here
from runtime.machine.session_config import Connection, make_server_config, make_session_config
from runtime.model.files import Files
from runtime.model.function import Model
from runtime.model.trace import without_foreign_values
from runtime.model.users_files import users_flags
from runtime.model.variables import check_size, make_variables, slices_of
from runtime.monitoring.measures import Target
from runtime.monitoring.model_test import ModelTest, build_placeholders
from runtime.process import limits
from runtime.process.end import end_process
from runtime.process.errors import UnusableError
from runtime.process.phases import preparing
from runtime.process.threads import start_guard
from runtime.records import events
from runtime.records.folder import RunFolder
from runtime.roles.evaluator import follow_checkpoints
from runtime.saving.checkpoints import find_last_step
from runtime.saving.export import check_export_dir, check_serving
from runtime.saving.result import Goal, describe_result
from runtime.saving.train_dir import open_train_dir
from runtime.updates import placement
from runtime.updates.mode import Mode
from runtime.updates.packing import Packing

# Functions of a user's model, and the flags in whose place they are.
USERS = {
    "build_optimizer": ["optimizer"],
    "build_learning_rate": ["learning_rate", "lr_schedule", "warmup_steps"],
}


STARTING_SECS = 5.0  # how much longer than a wait for others the start of a server may take


class Member:
    """What this process is, before its server is there and after."""

    def __init__(self, values: flags.FlagValues, task: Task, folder: RunFolder, session_config: tf.ConfigProto):
        """Be `task` of a cluster, with these flags."""
        self.flags, self.task, self.folder, self.session_config = values, task, folder, session_config
        self.server_config = make_server_config(session_config)
        self.is_evaluator = task.job_name == "evaluator"
        self.batch_size = values.batch_size * task.batches_per_step  # examples in a batch of this worker's graph
        max_bytes, num_ps = values.partition_bytes, len(task.ps_hosts)
        # How the variables are spread over the ps tasks, as `tf.train.replica_device_setter` takes it, and how large
        # ones are split by rows, as `tf.variable_scope` does.
        self.ps_strategy = placement.make_strategy(values.ps_strategy, num_ps)
        self.partitioner = tf.variable_axis_size_partitioner(max_bytes, max_shards=num_ps) if max_bytes else None
        of_mode: dict[str, Any] = {name: values[name].value for name in Mode._fields}
        self.mode = Mode(**of_mode)
        self.target = Target.parse(values.stop_at) if values.stop_at else None
        if values.stop_at_accuracy is not None:
            self.target = Target("accuracy", values.stop_at_accuracy)
        self.goal = Goal(values.train_steps, self.target)
        self.timeouts = Timeouts(values.startup_timeout_secs, values.recovery_timeout_secs)
        self._has_started = threading.Event()

    @classmethod
    def from_flags(cls, values: flags.FlagValues) -> "Member":
        """Take what the command line or a cluster manager says, and make the train directory if this is the chief.

        Raises:
          UnusableError: it cannot be used.
        """
        task = dataclasses.replace(choose_task(values), replication=values.replication)
        if task.job_name == "evaluator":
            folder = open_train_dir(task, values.train_dir)
            events.start_recording(task, folder)
            return cls(values, task, folder, tf.ConfigProto())
        set_kernel_process_name(f"{task.job_name}-{task.index}")  # as `ps` and `pkill` show it
        if why := limits.why_too_low(num_others=task.num_tasks_on_host - 1):  # unless each has a cgroup of its own
            logging.warning("%s: %d tasks are to run here, but %s", task, task.num_tasks_on_host, why)
        replicas, num_workers = values.replicas_to_aggregate, len(task.worker_hosts)
        if (replicas or 1) > num_workers:
            raise UnusableError(
                f"--replicas_to_aggregate is {replicas}, expected at most {num_workers}, the number of workers"
            )
        check_address(task)
        folder = open_train_dir(task, values.train_dir)
        check_export_dir(task, values.export_dir)
        if values.export_dir:
            values.export_dir = os.path.abspath(values.export_dir)  # a user's file may go to another folder
        events.start_recording(task, folder)
        me = cls(values, task, folder, make_session_config(task, values.gpus))
        start_guard("start", me._end_unless_started)
        return me

    def _end_unless_started(self) -> None:
        """End this process if its server takes longer than any wait at the start: it may lack threads, say."""
        secs = self.timeouts.startup_secs + STARTING_SECS
        if not self._has_started.wait(secs):
            remedy = "raise the limits of this process, such as ulimit -u, and start this task again"
            end_process(1, f"{self.task}: its server has not started within {secs:g} s: {remedy}")

    def guard(self, server: tf.train.Server) -> None:
        """Watch over the server of this process: its address, the host lists of the others, and whom it needs.

        Raises:
          AwayError: the address of this task does not lead here.
        """
        wait_until_address_leads_here(self.task, self.timeouts.startup_secs)
        self.connection = Connection(server.target, self.session_config)
        self.membership = start_membership(self.task, self.timeouts)
        self._has_started.set()
        self.membership.describe_result = functools.partial(describe_result, self.folder, self.goal)
        if not self.task.only_serves:
            logging.info("%s: building its graph", self.task)  # which takes a busy machine some time

    def leave_when_told(self) -> None:
        """End this process, which only serves, once the chief has evaluated the model, or after a signal."""
        Departure(self.membership, self.flags.stop_timeout_secs).start()

    def follow_checkpoints(self, files: Files, source: Source) -> None:
        """Evaluate the checkpoints of a run that others train, as the evaluator: see `follow_checkpoints()`."""
        tf.train.create_global_step()
        with preparing():
            test_examples = source.load()
        model = self.trace(files, source.signature)
        variables = make_variables(model.test)
        model.build_lookup_tables()
        columns = build_placeholders(test_examples)
        parameters = {name: tf.convert_to_tensor(variable) for name, variable in variables.items()}
        startup_secs, recovery_secs = self.timeouts
        timeouts = Timeouts(startup_secs, recovery_secs + self.flags.save_checkpoint_secs)
        test = ModelTest(model, {}, parameters, columns, test_examples, self.flags.batch_size)
        load_again, names = lambda: load(self.flags.data_dir, "t10k", files.reader), model.training.variables.keys()
        follow_checkpoints(self.task, test, self.folder, self.goal, timeouts, load_again, names)

    def share_of(self, source: Source) -> Source:
        """Return the examples of `source` that this worker trains on."""
        hold = Holding(self.task) if self.flags.sharding == "dynamic" else None
        return source.share(self.task.index, self.task.num_clients, hold)

    def trace(self, files: Files, signature: Any) -> Model:
        """Take the functions of a user's files for a model.

        Raises:
          UnusableError: it cannot be trained, or exported, as the flags say.
        """
        # A run that goes on draws other random numbers than it did before.
        mode, last_step = self.mode, find_last_step(self.folder)
        stream = f"{self.task.index} {last_step}"
        is_stepwise = mode.local_steps == self.task.batches_per_step == 1
        begins = self.task.is_chief and not last_step
        with contextlib.nullcontext() if begins else without_foreign_values():
            model = Model(files, signature, self.flags.seed, stream, mode.may_have_tables, is_stepwise)
        if self.target and self.target.name not in (*model.test.metrics, "loss"):
            found = ", ".join([*model.test.metrics, "loss"])
            raise UnusableError(
                f"training cannot stop at {self.target}: the model has no metric {self.target.name}, only {found}"
            )
        if self.is_evaluator:
            return model
        for function, names in USERS.items():
            given = [name for name in names if self.flags[name].present]
            if given and getattr(model.own, function):
                raise UnusableError(f"--{given[0]} has no effect, since model.py has {function}(): remove one of them")
        if self.task.batches_per_step > 1:
            model.in_training.check_python(
                "--replication=in_graph copies it to other workers: call it in tf.data, or use TensorFlow's ops"
            )
        if self.flags.export_dir and self.task.is_chief:
            check_serving(model)
        for kind in ("tables", "state", "frozen"):
            if self.task.is_chief and (names := getattr(model, kind)):
                logging.info("%s: %s of the model: %s", self.task, kind, ", ".join(names))
        return model

    def make_variables(self, model: Model) -> Packing:
        """Make the variables of a model on the ps tasks; return those that travel; a session reads the others once."""
        variables = make_variables(model.training, model.tables, len(self.task.ps_hosts))
        for name in model.tables:
            check_size(name, variables[name], self.flags.checkpoints)
        for name in model.state:
            for variable in slices_of(variables[name]):
                tf.add_to_collection(tf.GraphKeys.MODEL_VARIABLES, variable)  # see `make_saver()`
        with tf.device(self.task.device):
            model.make_constants({name: variables.pop(name) for name in model.frozen})
        return Packing(variables, model.state)

    @property
    def agreed_flags(self) -> dict[str, object]:
        """The flags that all workers must be given alike."""
        names = ["batch_size", "ps_strategy", "partition_bytes", "seed", "replication", "sharding"]
        values = {name: self.flags[name].value for name in (*users_flags(), *Mode._fields, *names)}
        return {**values, "stop_at": self.target and str(self.target)}


def choose_task(values: flags.FlagValues) -> Task:
    """Return this task as the flags give it, or as a cluster manager does where no flag describes the cluster.

    Raises:
      UnusableError: nothing says which task this is, or what says so is wrong.
    """
    are_given = any(values[name].present for name in ("job_name", "task_index", "ps_hosts", "worker_hosts"))
    if not are_given:
        if discovery := discover(os.environ):
            try:
                values.set_default("train_dir", discovery.model_dir)
            except flags.Error as error:
                raise UnusableError(f"model_dir in TF_CONFIG: {error}") from error
            return discovery.task
    elif "TF_CONFIG" in os.environ:
        logging.info("TF_CONFIG is ignored, since flags describe the cluster")
    if values.job_name is None or (values.task_index is None and values.job_name != "evaluator"):
        why = " with other flags of the cluster, since these override TF_CONFIG" * ("TF_CONFIG" in os.environ)
        if not are_given:
            found = {name: os.environ[name] for name in MANAGERS if name in os.environ}
            why = "".join(f', since {name} has no "cluster": {text[:200]}' for name, text in found.items())
        raise UnusableError(f"--job_name (ps, worker or evaluator) and --task_index are required{why}")
    return Task(values.job_name, values.task_index or 0, tuple(values.ps_hosts), tuple(values.worker_hosts))
