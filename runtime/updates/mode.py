"""The mode of a run: how its workers update the parameters together."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from runtime.cluster.membership import Membership
from runtime.data.reader import Batches
from runtime.model.function import Own
from runtime.model.state import SET
from runtime.model.tables import Lookups
from runtime.process.errors import UnusableError
from runtime.updates.adam import CountedAdamOptimizer
from runtime.updates.aggregation import Rule
from runtime.updates.asynchronous import EXCHANGES_PER_RUN, build_async_updates
from runtime.updates.exchange import GradientExchangeBuilder, GradientsFunction, LookupsFunction, Updates, Work
from runtime.updates.local_steps import Length, LocalStepsExchangeBuilder
from runtime.updates.packing import Packing
from runtime.updates.ps_shard import PsShard
from runtime.updates.schedule import Schedule
from runtime.updates.synchronous import build_sync_updates
from runtime.updates.towers import choose_devices

OPTIMIZERS = ("adam", "adagrad", "momentum", "nesterov", "sgd")
EXCHANGE_DTYPES = ("float32", "bfloat16")
MOMENTUM = 0.9
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


class ScopedOptimizers:
    """Several optimizers, each for the variables of a scope."""

    def __init__(self, by_scope: Mapping[str, tf.train.Optimizer]):
        """Take the optimizers; of two scopes that a variable is in, the longer one counts."""
        self._by_scope = by_scope

    def apply_gradients(self, pairs: Sequence[tuple[Any, tf.Variable]]) -> tf.Operation:
        """Build what applies each gradient to its variable.

        Raises:
          UnusableError: a variable is in no scope.
        """
        groups: dict[str, list[tuple[Any, tf.Variable]]] = {}
        for gradient, variable in pairs:
            name = variable.op.name
            scopes = [scope for scope in self._by_scope if f"{name}/".startswith(f"{scope}/" if scope else "")]
            if not scopes:
                raise UnusableError(
                    f"model.py: build_optimizer() returns no optimizer for {name}: add one for the scope ''"
                )
            groups.setdefault(max(scopes, key=len), []).append((gradient, variable))
        return tf.group(*(self._by_scope[scope].apply_gradients(of_scope) for scope, of_scope in groups.items()))


def make_optimizer(learning_rate: tf.Tensor, name: str, own: Own, num_updates: tf.Variable | None = None) -> Any:
    """Return an optimizer.

    Args:
      learning_rate: float32 [].
      name: one of `OPTIMIZERS`.
      own: the user's, which comes before `name`.
      num_updates: int64 [], counts the updates; or None, and Adam counts them itself.

    Raises:
      UnusableError: the user's function returns something else.
    """
    if own.build_optimizer:
        found = own.build_optimizer(learning_rate)
        by_scope = found if isinstance(found, Mapping) else {"": found}
        for optimizer in by_scope.values():
            if not isinstance(optimizer, tf.train.Optimizer):
                raise UnusableError(
                    "model.py: build_optimizer() must return a tf.train.Optimizer, or a dict of them by variable scope,"
                    f" found {type(optimizer).__name__}"
                )
            for method in ("compute_gradients", "minimize"):
                if getattr(type(optimizer), method) is not getattr(tf.train.Optimizer, method):
                    raise UnusableError(
                        f"model.py: this program does not call {method}() of the {type(optimizer).__name__} of"
                        " build_optimizer(): let its apply_gradients() do all that it does to gradients"
                    )
        return ScopedOptimizers(by_scope)
    if name == "adam" and num_updates is not None:
        return CountedAdamOptimizer(learning_rate, num_updates)
    if name == "adam":
        return tf.train.AdamOptimizer(learning_rate)
    if name == "adagrad":
        return tf.train.AdagradOptimizer(learning_rate)
    if name in ("momentum", "nesterov"):
        return tf.train.MomentumOptimizer(learning_rate, MOMENTUM, use_nesterov=name == "nesterov")
    return tf.train.GradientDescentOptimizer(learning_rate)


def build_updates(
    packing: Packing,
    build_gradients: GradientsFunction,
    build_lookups: LookupsFunction,
    batches: Batches,
    mode: Mode,
    membership: Membership,
    config: tf.ConfigProto,
    own: Own = Own(),  # noqa: B008  # it never changes
) -> Updates:
    """Build what a worker runs to take its steps.

    Args:
      packing: of the parameters.
      build_gradients: builds the loss of a batch, and the gradients.
      build_lookups: builds which rows some examples need.
      batches: of a run, `mode.num_batches`.
      mode: how the workers update the parameters.
      membership: of this worker.
      config: of its sessions.
      own: what the user's model says of its training.
    """
    task, num_workers = membership.task, len(membership.task.worker_hosts)
    schedule = mode.make_schedule(own)

    def make_optimizer_of_ps(rate: tf.Tensor) -> Any:
        if mode.local_steps > 1:
            return tf.train.GradientDescentOptimizer(learning_rate=1.0)  # it gets changes in the place of gradients
        return make_optimizer(rate, mode.optimizer, own, tf.train.get_global_step())

    shards = [
        PsShard(packing, device, make_optimizer_of_ps, schedule.build, mode.ema_decay) for device in packing.variables
    ]
    with tf.device(task.device):
        wanted = [Lookups({}, [])] * mode.exchanges_per_run
        if packing.tables:  # else no batch need be built for its lookups
            of_exchanges = tf.reshape(batches.inputs, [mode.exchanges_per_run, -1, *batches.inputs.shape[2:]])
            wanted = [build_lookups(batches.columns(of_exchange)) for of_exchange in tf.unstack(of_exchanges)]
        selections = packing.select(wanted)
        dtype, devices = tf.as_dtype(mode.exchange_dtype), choose_devices(task, config)
        if len(devices) > 1 and any(lookups.samples for lookups in wanted):
            raise UnusableError(
                f"{', '.join(packing.tables)}: rows are chosen at random, for a whole batch, which the GPUs of a worker"
                " would divide: give each GPU a worker of its own, with --gpus"
            )
        assigned = [name for name, kind in packing.state.items() if kind == SET]
        if assigned and dtype != tf.float32:
            raise UnusableError(
                f"--exchange_dtype={dtype.name} would round what model.py assigns to {', '.join(assigned)}: change it"
                " with assign_add or assign_sub, or leave the flag out"
            )
        work = Work(packing, build_gradients, batches, dtype, devices, mode.clip_norm)
        if mode.local_steps == 1:
            build_exchange = GradientExchangeBuilder(work).build_exchange
        else:
            pace = 1 if mode.sync_replicas else num_workers
            num_shares = 1 if mode.sync_replicas else SHARES_OF_WORKER * num_workers
            length = Length(mode.local_steps, mode.train_steps, num_shares, pace)
            make = functools.partial(make_optimizer, name=mode.optimizer, own=own)
            build_exchange = LocalStepsExchangeBuilder(work, make, schedule, length).build_exchange
    if mode.sync_replicas:
        rule = Rule(num_workers, mode.replicas_to_aggregate or num_workers, mode.local_steps, mode.train_steps)
        return build_sync_updates(packing, selections, shards, build_exchange, rule, membership)
    # A classic step must know all that its worker has done before. Local steps are worth computing ahead, unless the
    # next exchange has other rows of a table.
    max_pending = 0 if mode.local_steps == 1 or packing.tables else 1
    return build_async_updates(packing, selections, shards, build_exchange, max_pending, mode.train_steps, task)
