"""Asynchronous updates: each worker applies what it has as soon as it has it."""

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from runtime.cluster.task import Task
from runtime.updates.exchange import Exchange, ExchangeFunction, Updates
from runtime.updates.packing import Packing, Selection
from runtime.updates.ps_shard import Gradient, PsShard, make_updates

EXCHANGES_PER_RUN = 8  # they share the cost of a run, and within a run no exchange waits for Python


def build_async_updates(
    packing: Packing,
    selections: Sequence[Selection],
    shards: Sequence[PsShard],
    build_exchange: ExchangeFunction,
    max_pending: int,
    train_steps: int,
    task: Task,
) -> Updates:
    """Build a run of several exchanges, one after the other, on parameters that other workers may change meanwhile.

    It has one for each of `selections`. An exchange begins when all but the last `max_pending` of those before it are
    applied: with 0 a worker knows all that it has done before; with 1 it computes while the exchange before is on its
    way. A ps does not apply an exchange that has more steps than are left of `train_steps` there when it arrives.
    """
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
                added[ps].append(_apply_if_it_fits(shard, gradient, num_steps, steps, train_steps))

    for number, selection in enumerate(selections):
        with tf.name_scope("exchange"):
            after = [of_ps[-1:] for of_ps in added]
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
    return make_updates(shards, added, exchanges)._replace(staleness=staleness)


def _apply_if_it_fits(
    shard: PsShard, gradient: Gradient, num_steps: tf.Tensor, steps: tf.Tensor, train_steps: int
) -> tf.Tensor:
    """Apply a gradient on its ps, which has `steps`, if it fits there; return the number of steps added."""
    with tf.device(shard.device):
        fits = (num_steps > 0) & (steps + num_steps <= train_steps)
        return tf.cond(fits, lambda: shard.apply(gradient, num_steps), lambda: tf.zeros([], tf.int64))
