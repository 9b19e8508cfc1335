"""The mode of a run: how its workers update the parameters together."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from runtime.cluster.membership import Membership
from runtime.data.reader import Batches
from runtime.model.function import Model, Own
from runtime.model.roles import SET
from runtime.model.variables import Lookups
from runtime.process.errors import UnusableError
from runtime.process.threads import SessionThread
from runtime.updates import lost_workers
from runtime.updates.aggregation import Aggregation
from runtime.updates.exchange import (
    Exchange,
    ExchangeFunction,
    GradientExchangeBuilder,
    Updates,
    Work,
    choose_devices,
)
from runtime.updates.local_steps import Length, LocalStepsExchangeBuilder
from runtime.updates.meeting import Meeting, Pace, Rule
from runtime.updates.optimizer import make_optimizer
from runtime.updates.packing import Packing, Selection
from runtime.updates.ps_shard import Gradient, PsShard, make_updates
from runtime.updates.schedule import Schedule

EXCHANGE_DTYPES = ("float32", "bfloat16")
EXCHANGES_PER_RUN = 8  # they share the cost of a run, and within a run no exchange waits for Python
SHARES_OF_WORKER = 16  # an asynchronous exchange takes at most one share of the steps that are left: see `Length`


class Mode(NamedTuple):
    """The flags of the same names."""

    optimizer: str
    learning_rate: float
    lr_schedule: str
    warmup_steps: int | None  # None: see `Schedule`
    train_steps: int
    local_steps: int
    sync_replicas: bool
    replicas_to_aggregate: int | None  # None: as many as there are workers
    max_staleness: int | None  # exchanges that an asynchronous worker may be ahead of the slowest; None: any number
    exchange_dtype: str  # one of EXCHANGE_DTYPES
    clip_norm: float | None
    ema_decay: float | None

    def may_have_tables(self, own: Own) -> bool:
        """Whether workers can train rows: with local steps, none has the state of rows that other exchanges need."""
        return self.local_steps == 1 or (self.optimizer == "sgd" and not own.build_optimizer)

    def make_schedule(self, own: Own) -> Schedule:
        """Return the learning rate."""
        return Schedule(
            self.lr_schedule, self.learning_rate, self.warmup_steps, self.train_steps, own.build_learning_rate
        )

    @property
    def exchanges_per_run(self) -> int:
        """How many exchanges share the cost of a run: one where the next must know how many local steps are left."""
        return 1 if self.sync_replicas and self.local_steps > 1 else EXCHANGES_PER_RUN

    @property
    def num_batches(self) -> int:
        """How many batches one run of a worker's graph may use."""
        return self.local_steps * self.exchanges_per_run


def build_updates(
    packing: Packing, model: Model, batches: Batches, mode: Mode, membership: Membership, config: tf.ConfigProto
) -> Updates:
    """Build what a worker runs to take its steps.

    Args:
      packing: of the parameters.
      model: builds which rows some examples need, and the loss of a batch with the gradients; how it is trained.
      batches: of a run, `mode.num_batches`.
      mode: how the workers update the parameters.
      membership: of this worker.
      config: of its sessions.
    """
    task, own, num_workers = membership.task, model.own, len(membership.task.worker_hosts)
    schedule = mode.make_schedule(own)

    make_own = functools.partial(make_optimizer, name=mode.optimizer, own=own)

    def make_of_ps(rate: tf.Tensor) -> Any:
        if mode.local_steps > 1:  # it gets changes in the place of gradients
            return tf.train.GradientDescentOptimizer(rate)
        return make_own(rate, num_updates=tf.train.get_global_step())

    build_rate = schedule.build if mode.local_steps == 1 else lambda steps: tf.ones([])
    of_ps = make_of_ps, build_rate, mode.train_steps, mode.ema_decay
    shards = [PsShard(packing, device, *of_ps) for device in packing.variables]
    with tf.device(task.device):
        wanted = [Lookups({}, [])] * mode.exchanges_per_run
        if packing.tables:  # else no batch need be built for its lookups
            of_exchanges = tf.reshape(batches.inputs, [mode.exchanges_per_run, -1, *batches.inputs.shape[2:]])
            wanted = [
                model.in_training.build_lookups(batches.columns(of_exchange))
                for of_exchange in tf.unstack(of_exchanges)
            ]
        selections = packing.select(wanted)
        dtype, devices = tf.as_dtype(mode.exchange_dtype), choose_devices(task, config)
        if len(devices) > 1 and any(lookups.samples for lookups in wanted):
            raise UnusableError(
                f"{', '.join(packing.tables)}: rows are drawn at random for a whole batch, but the GPUs of a worker"
                " split it: run one worker for each GPU, with --gpus"
            )
        assigned = [name for name, kind in packing.state.items() if kind == SET]
        if assigned and dtype != tf.float32:
            raise UnusableError(
                f"--exchange_dtype={dtype.name} would round what model.py assigns to {', '.join(assigned)}: update it"
                " with assign_add or assign_sub, or omit the flag"
            )
        work = Work(packing, model.build_gradients, batches, dtype, devices, mode.clip_norm)
        if mode.local_steps == 1:
            build_exchange = GradientExchangeBuilder(work).build_exchange
        else:
            pace = 1 if mode.sync_replicas else num_workers
            num_shares = 1 if mode.sync_replicas else SHARES_OF_WORKER * num_workers
            length = Length(mode.local_steps, mode.train_steps, num_shares, pace)
            build_exchange = LocalStepsExchangeBuilder(work, make_own, schedule, length).build_exchange
    rule = Rule(num_workers, mode.replicas_to_aggregate or num_workers, mode.local_steps)
    if mode.sync_replicas:
        return build_sync_updates(packing, selections, shards, build_exchange, rule, membership)
    # A classic step must know all that its worker has done before. Local steps are worth computing ahead, unless the
    # next exchange has other rows of a table.
    max_pending = 0 if mode.local_steps == 1 or packing.tables else 1
    how = max_pending, rule, membership, mode.max_staleness
    return build_async_updates(packing, selections, shards, build_exchange, *how)


def build_async_updates(
    packing: Packing,
    selections: Sequence[Selection],
    shards: Sequence[PsShard],
    build_exchange: ExchangeFunction,
    max_pending: int,
    rule: Rule,
    membership: Membership,
    max_staleness: int | None = None,
) -> Updates:
    """Build a run of several exchanges, one after the other, on parameters that other workers may change meanwhile.

    It has one for each of `selections`. An exchange begins when all but the last `max_pending` of those before it are
    applied: with 0 a worker knows all that it has done before; with 1 it computes while the exchange before is on its
    way. A ps does not apply an exchange that has more steps than are left there when it arrives.

    With `max_staleness`, an exchange waits until its worker is at most so many exchanges ahead of the slowest one.
    """
    task, paces = membership.task, list[Pace]()
    if max_staleness is not None:
        paces = [Pace(shard, rule, max_staleness) for shard in shards if shard.steps is tf.train.get_global_step()]
    pending: list[Exchange] = []
    exchanges: list[Exchange] = []
    added: list[list[tf.Tensor]] = [[] for _ in shards]  # the steps that each exchange has added, on each ps
    # Staleness, in steps of others, is asked of the ps with the most parameters: that of the global step may have none,
    # and then it counts before the worker has computed. No exchange sends more for that.
    asked = max(shards, key=lambda shard: shard.num_parameters)
    steps_at_reads: list[tf.Tensor] = []  # of each exchange, as what follows
    steps_at_writes: list[tf.Tensor] = []

    def apply(exchange: Exchange, vectors: Sequence[tf.Tensor]) -> None:
        # The next exchange takes this one for pending, so `vectors`, which it computes on, must be read before.
        for ps, (shard, vector) in enumerate(zip(shards, vectors, strict=True)):
            with tf.name_scope("apply"):
                received, num_steps = exchange.receive(ps, shard.device, vector)
                gradient = shard.unpack(received, exchange.selection.places[ps])
                steps = shard.read_steps(after=[*added[ps][-1:], received])
                if shard is asked:
                    steps_at_writes.append(steps)
                added[ps].append(_apply_if_it_fits(shard, gradient, num_steps, steps))
        for pace in paces:
            with tf.name_scope("pace"):
                of_pace = added[shards.index(pace.shard)]
                of_pace[-1] = pace.end(task.index, [of_ps[-1] for of_ps in added], of_pace[-1])

    for number, selection in enumerate(selections):
        with tf.name_scope("exchange"):
            after = [of_ps[-1:] for of_ps in added]
            for pace in paces:
                begun = pace.begin(task.index, after[shards.index(pace.shard)])
                after = [[*of_ps, begun] for of_ps in after]
            ps = shards.index(asked)
            steps_at_reads.append(asked.read_steps(after[ps]))
            after[ps] = steps_at_reads[-1:]
            vectors = packing.read(selection, after)
            with tf.device(task.device):
                exchanges.append(build_exchange(vectors, selection, pending, number))
                pending.append(exchanges[-1])
                if len(pending) > max_pending:
                    apply(pending.pop(0), vectors)
    with tf.name_scope("exchange"), tf.device(task.device):
        for exchange in pending:
            apply(exchange, vectors)
    with tf.device(asked.device), tf.name_scope("staleness"):
        # What was computed while the exchange before was on its way finds the steps of that one, its worker's own.
        own_steps = added[shards.index(asked)][:-1] if max_pending else []
        steps_between = tf.reduce_sum(tf.stack(steps_at_writes) - tf.stack(steps_at_reads))
        staleness = tf.cast(steps_between - sum(own_steps), tf.float32) / len(selections)
    return _watch(make_updates(shards, added, exchanges)._replace(staleness=staleness), shards, paces, rule, membership)


def _apply_if_it_fits(shard: PsShard, gradient: Gradient, num_steps: tf.Tensor, steps: tf.Tensor) -> tf.Tensor:
    """Apply a gradient on its ps, which has `steps`, if it fits there; return the number of steps added."""
    with tf.device(shard.device):
        fits = (num_steps > 0) & (num_steps <= shard.count_steps_left(steps))
        return tf.cond(fits, lambda: shard.apply(gradient, num_steps), lambda: tf.zeros([], tf.int64))


def build_sync_updates(
    packing: Packing,
    selections: Sequence[Selection],
    shards: Sequence[PsShard],
    build_exchange: ExchangeFunction,
    rule: Rule,
    membership: Membership,
) -> Updates:
    """Build a run of exchanges, one for each selection, of which each waits for the update that it is a part of.

    An update averages the gradients of several exchanges (Chen et al. 2016, arXiv:1604.00981).
    With fewer gradients in an update than there are workers, the slowest ones are dropped: these come from the backup
    workers.
    """
    task, aggregations = membership.task, [Aggregation(shard, rule) for shard in shards]
    exchanges: list[Exchange] = []
    taken: list[list[tf.Tensor]] = [[] for _ in shards]  # the steps that each exchange has taken, on each ps
    for number, selection in enumerate(selections):
        with tf.name_scope("exchange"):
            if not number:
                nums_updates = [aggregation.join(task.index, []) for aggregation in aggregations]
            else:  # the others wait for this worker, unless it was found lost: then they do again in its next run
                nums_updates = [a.read(after=of_ps[-1:]) for a, of_ps in zip(aggregations, taken, strict=True)]
            vectors = packing.read(selection, after=[[num_updates] for num_updates in nums_updates])
            with tf.device(task.device):
                exchanges.append(build_exchange(vectors, selection, [], number))
            for ps, aggregation in enumerate(aggregations):
                with tf.name_scope("aggregate"):
                    vector, places = exchanges[-1].gradients[ps], selection.places[ps]
                    taken[ps].append(aggregation.add(vector, places, nums_updates[ps], task.index))
    updates = make_updates(shards, taken, exchanges)
    if not rule.is_strict:  # each ps has dropped other gradients, so each may reach the end at another time
        with tf.device(task.device):
            steps = [shard.read_steps(after=of_ps) for shard, of_ps in zip(shards, taken, strict=True)]
            updates = updates._replace(global_step=tf.reduce_min(tf.stack(steps)))
    return _watch(updates._replace(num_replicas=rule.num_gradients), shards, aggregations, rule, membership)


def _watch(
    updates: Updates, shards: Sequence[PsShard], meetings: Sequence[Meeting], rule: Rule, membership: Membership
) -> Updates:
    """Let the chief watch over those that wait for each other, and end training."""
    hooks, ends = list[tf.train.SessionRunHook](), list[tf.Operation]()
    if membership.task.is_chief:
        # First where the global step is, which tells the workers: one that is cut off then ends none of it, or all.
        for shard in sorted(shards, key=lambda shard: shard.steps is not tf.train.get_global_step()):
            with tf.device(shard.device), tf.control_dependencies(ends):
                ends.append(shard.last_step.assign(0, read_value=False))
        with tf.control_dependencies(ends):  # wake who waits
            ends += [meeting.build_forget(tf.fill([rule.num_workers], False)) for meeting in meetings]
    if ends and meetings:
        lost = lost_workers.LostWorkersHook(meetings, rule, membership)
        what = f"{membership.task} could not check which workers are lost"
        hooks = [lost, SessionThread("look", lost.look, lost_workers.LOOK_SECS, what)]
    unsaved = [*updates.unsaved_variables, *(variable for meeting in meetings for variable in meeting.variables)]
    return updates._replace(hooks=hooks, unsaved_variables=unsaved, end=tf.group(*ends))
