"""What a worker has around its training: how its sessions become ready, the hooks around each step, and the end."""

import contextlib
import functools
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from runtime import report
from runtime.cluster.agreement import USES
from runtime.data.reader import Batches, Columns
from runtime.model import user_dir
from runtime.model.computation import GLOBAL_STEP
from runtime.model.function import Model
from runtime.model.users_files import checksums
from runtime.model.variables import Lookups, Parameters, TableReader
from runtime.monitoring import summaries
from runtime.monitoring.classes import ClassesHook
from runtime.monitoring.evaluation import EvaluationHook, check_as_before, record_test
from runtime.monitoring.measures import Measures, check_finite
from runtime.monitoring.model_test import ModelTest, build_placeholders
from runtime.monitoring.profiling import ProfileHook
from runtime.monitoring.progress import ProgressHook
from runtime.monitoring.summaries import SummaryHook
from runtime.process.errors import UnusableError
from runtime.roles.member import Member
from runtime.saving.checkpoint_hook import CheckpointHook
from runtime.saving.checkpoints import find_last_step
from runtime.saving.export import export
from runtime.saving.result import evaluate_and_save, keep_trying, make_result
from runtime.session.attendance import AttendanceHook, WaitForWorkersHook
from runtime.session.probe import Probe
from runtime.session.scaffold import Job, TrainingScaffold
from runtime.session.steps import LongStepHook, StepsHook
from runtime.session.stopping import AbandonSessionHook, StopOnSignalHook
from runtime.updates import placement
from runtime.updates.exchange import Updates, choose_devices
from runtime.updates.packing import Packing


class TrainingGraph(NamedTuple):
    """The graph of a worker."""

    batches: Batches  # the input
    packing: Packing  # of the parameters
    updates: Updates  # what each step runs
    model: Model


class Training:
    """What `MonitoredTrainingSession` is given, and what comes after it."""

    def __init__(self, me: Member, graph: TrainingGraph, data: str, load_examples: Callable[[], Columns]):
        """Prepare to train, and add to the graph what that needs.

        Args:
          me: this process.
          graph: its own.
          data: tells the examples from others, which another worker may have been given.
          load_examples: loads those to test with, which only the chief needs.

        Raises:
          UnusableError: the last checkpoint is not one of this model, or had other test examples; or a trace cannot be
            written.
        """
        task, flags, updates = me.task, me.flags, graph.updates
        self._me, self._graph = me, graph
        for device in choose_devices(task, me.session_config):
            with tf.device(device):
                graph.model.build_lookup_tables()
        with tf.device(task.device):
            summaries.build_staleness(updates)
            if task.is_chief:  # the others need neither
                examples = load_examples()
                graph.model.name_classes(flags.data_dir)
                with tf.name_scope("evaluation"):
                    self._test = self._build_test(examples)
                if find_last_step(me.folder):
                    check_as_before(me.folder, self._test, load_examples)
                with tf.name_scope("summaries"):
                    self._build_summaries()
        placement.log_placement(task)
        agreed = {**me.agreed_flags, **checksums(), "data_dir": data, USES: json.dumps(graph.model.uses)}
        job = Job(agreed, updates, me.folder, flags.checkpoints, flags.keep_checkpoints, me.goal, graph.model.kept_uses)
        self.scaffold = TrainingScaffold(me.membership, me.connection, job)
        looking = Probe(task, me.connection), graph.batches.num_drawn, me.mode.exchanges_per_run
        saving = flags.save_checkpoint_secs, flags.train_steps
        self._checkpoints = CheckpointHook(task, me.folder, self.scaffold, *saving)
        self._progress = ProgressHook(task, updates, flags.train_steps, me.batch_size, flags.log_every_secs)
        evaluation = EvaluationHook(task, self._test, me.target, updates.end) if task.is_chief else None
        # TensorFlow calls them in this order: for each new session, around each step, and at the end.
        hooks = [
            # First: its input is read while others wait, and no checkpoint has a model whose loss is not a number.
            StepsHook(task, self.scaffold, updates, graph.batches),
            LongStepHook(task, *looking, me.timeouts.recovery_secs),
            ClassesHook(task, graph.batches, graph.model.test),
            evaluation and evaluation.repeating(flags.eval_every_secs),  # first: no test goes on while another is tried
            evaluation,
            # Then the model that is saved no longer changes.
            WaitForWorkersHook(me.membership) if task.is_chief else None,
            self._checkpoints if task.is_chief else None,
            # What sees each step, in any order.
            *updates.hooks,
            ProfileHook(task, updates.global_step, flags.profile_steps, me.folder) if flags.profile_steps else None,
            self._progress,
            SummaryHook(task, updates, graph.batches.drawn, me.folder, flags.log_every_secs),
            # What may stop the worker, once the others have seen its step.
            AbandonSessionHook(me.membership, self.scaffold),
            StopOnSignalHook(me.membership, self.scaffold, self._checkpoints, flags.stop_timeout_secs),
            # Last: it waits for the other workers before the first step, and says that this one has taken its last.
            AttendanceHook(me.membership, flags.sync_replicas or flags.max_staleness is not None),
        ]
        self.hooks = [hook for hook in hooks if hook]

    def _build_test(self, examples: Columns) -> ModelTest:
        """Build what measures the model as it is on the ps tasks, and what reads all of it."""
        model, packing = self._graph.model, self._graph.packing
        columns = build_placeholders(examples)
        dense = packing.evaluated.fetch(Lookups({}, []))
        lookups = model.in_tests.build_lookups(columns)
        self._readers = {name: TableReader(table) for name, table in packing.tables.items()}
        rows, batch_size = self._fetch_rows(lookups), self._me.batch_size
        return ModelTest(model, dense, rows, columns, examples, batch_size, lookups.samples)

    def _build_summaries(self) -> None:
        """Build the chief's summaries, of one batch of each run in which they are written."""
        graph, model = self._graph, self._graph.model
        columns = graph.batches.columns(graph.batches.inputs[-1])
        fetched = graph.packing.fetch(model.in_training.build_lookups(columns))
        tested, shown = (part.build_lookups(columns) for part in (model.in_tests, model.in_summaries))
        means = model.build_measures({**fetched, **self._fetch_rows(tested)}, columns, tested.samples).means
        users = model.build_summaries({**fetched, **self._fetch_rows(shown)}, columns, shown.samples)
        schedule = self._me.mode.make_schedule(model.own)
        summaries.build(graph.updates, graph.packing, fetched, means, users, schedule)

    def _fetch_rows(self, lookups: Lookups) -> Parameters:
        """Build the rows of tables, as they are now, that something else than training needs."""
        return self._graph.packing.of_tables.fetch(lookups) if lookups.ids else {}

    def _read_model(self, session: tf.Session, measures: Measures) -> dict[str, Any]:
        """Return the values of all variables of the model, by name, and the global step."""
        tables = {name: reader.read(session) for name, reader in self._readers.items()}
        check_finite(tables)
        values = {**session.run(self._graph.model.constants), **measures.parameters, **tables}
        return values | {GLOBAL_STEP: measures.global_step}

    def finish(self) -> None:
        """Test the finished model, save what came of it, report, and let the ps tasks go, which keep it until then.

        Only the chief does so.
        """
        me = self._me
        if not me.task.is_chief:
            return
        session = me.connection.session()
        try:
            measures = evaluate_and_save(session, self._test, self._checkpoints)
        except UnusableError as error:  # of a metric, say: it comes again, and the model stays
            self._checkpoints.end(session)
            where = f", and {me.folder.path} has that of global step {self._checkpoints.saved_step}"
            kept = f"the ps tasks keep the model{where if self._checkpoints.saved_step else ''}"
            raise UnusableError(f"{error}; {kept}: restart this task, or all tasks, to test it again") from error
        own = {"user_dir": user_dir.find()}
        own |= {"optimizer": "build_optimizer"} if self._graph.model.own.build_optimizer else {}
        result = make_result(
            me.task, {**me.agreed_flags, **own}, measures, self._progress, self._graph.model.class_names
        )
        print(result)
        read_model = functools.cache(lambda: self._read_model(session, measures))
        steps = [
            lambda: self._checkpoints.save(session),
            lambda: export(me.flags.export_dir, self._graph.model, read_model),
            lambda: result.write(me.folder),
        ]
        keep_trying(me.task, steps, me.timeouts.recovery_secs)
        record_test(measures, self._graph.model.input_spec)
        report.write(me.folder)
        with contextlib.suppress(tf.errors.OpError):  # a ps does not answer: then this waits for it below
            session.close()
        me.membership.dismiss_servers()  # last: a chief that is killed before finds the model, and does it all again
