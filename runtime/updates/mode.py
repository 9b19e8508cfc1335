"""The mode of a run: how its workers update the parameters together."""

import functools
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from runtime.cluster.membership import Membership
from runtime.data.reader import Batches
from runtime.model.function import Model, Own
from runtime.model.roles import SET
from runtime.model.variables import Lookups
from runtime.process.errors import UnusableError
from runtime.updates.asynchronous import build_async_updates
from runtime.updates.exchange import GradientExchangeBuilder, Updates, Work, choose_devices
from runtime.updates.local_steps import Length, LocalStepsExchangeBuilder
from runtime.updates.meeting import Rule
from runtime.updates.optimizer import make_optimizer
from runtime.updates.packing import Packing
from runtime.updates.ps_shard import PsShard
from runtime.updates.schedule import Schedule
from runtime.updates.synchronous import build_sync_updates

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
