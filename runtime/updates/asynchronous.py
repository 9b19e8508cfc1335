"""Asynchronous updates: each worker changes the parameters by itself, when its exchange arrives."""

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from runtime.cluster.membership import Membership
from runtime.updates.exchange import Exchange, ExchangeFunction, Updates
from runtime.updates.lost_workers import watch
from runtime.updates.meeting import Pace, Rule
from runtime.updates.packing import Packing, Selection
from runtime.updates.ps_shard import Gradient, PsShard, make_updates


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
    return watch(make_updates(shards, added, exchanges)._replace(staleness=staleness), shards, paces, rule, membership)


def _apply_if_it_fits(shard: PsShard, gradient: Gradient, num_steps: tf.Tensor, steps: tf.Tensor) -> tf.Tensor:
    """Apply a gradient on its ps, which has `steps`, if it fits there; return the number of steps added."""
    with tf.device(shard.device):
        fits = (num_steps > 0) & (num_steps <= shard.count_steps_left(steps))
        return tf.cond(fits, lambda: shard.apply(gradient, num_steps), lambda: tf.zeros([], tf.int64))
