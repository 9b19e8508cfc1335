"""Asynchronous updates: each worker applies what it has as soon as it has it."""

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from runtime.cluster.task import Task
from runtime.updates.exchange import Exchange, ExchangeFunction, Updates
from runtime.updates.holding import Gradient, Holding, make_updates
from runtime.updates.packing import Packing, Selection

EXCHANGES_PER_RUN = 8  # they share the cost of a run, and within a run no exchange waits for Python


def build_async_updates(
    packing: Packing,
    selections: Sequence[Selection],
    holdings: Sequence[Holding],
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
    added: list[list[tf.Tensor]] = [[] for _ in holdings]  # the steps that each exchange has added, on each ps
    # Staleness, in steps of others, is asked of the ps with the most parameters: that of the global step may have none,
    # and then it counts before the worker has computed. No exchange sends more for that.
    asked = max(holdings, key=lambda holding: holding.num_parameters)
    steps_at_reads: list[tf.Tensor] = []  # of each exchange, as what follows
    steps_at_writes: list[tf.Tensor] = []

    def apply(exchange: Exchange, vectors: Sequence[tf.Tensor]) -> None:
        # The next exchange takes this one for pending, so `vectors`, which it computes on, must be read before.
        for ps, (holding, vector) in enumerate(zip(holdings, vectors, strict=True)):
            with tf.name_scope("apply"):
                received, num_steps = exchange.receive(ps, holding.device, vector)
                gradient = holding.unpack(received, exchange.selection.places[ps])
                steps = holding.read_steps(after=[*added[ps][-1:], received])
                if holding is asked:
                    steps_at_writes.append(_count_steps_of_others(holding, steps, added[ps]))
                added[ps].append(_apply_if_it_fits(holding, gradient, num_steps, steps, train_steps))

    for number, selection in enumerate(selections):
        with tf.name_scope("exchange"):
            after = [of_ps[-1:] for of_ps in added]
            ps = holdings.index(asked)
            steps = asked.read_steps(after[ps])
            steps_at_reads.append(_count_steps_of_others(asked, steps, added[ps]))
            after[ps] = [steps]
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
        staleness = tf.reduce_mean(tf.cast(tf.stack(steps_at_writes) - tf.stack(steps_at_reads), tf.float32))
    # The first exchange is shown, since the last one may have no steps.
    return make_updates(holdings, added, exchanges[0])._replace(staleness=staleness)


def _count_steps_of_others(holding: Holding, steps: tf.Tensor, own: Sequence[tf.Tensor]) -> tf.Tensor:
    """Build how many of the steps on a ps, int64 [], are not this worker's own; a run that fetches none counts none."""
    with tf.device(holding.device), tf.name_scope("staleness"):
        return steps - tf.add_n(own) if own else tf.identity(steps)


def _apply_if_it_fits(
    holding: Holding, gradient: Gradient, num_steps: tf.Tensor, steps: tf.Tensor, train_steps: int
) -> tf.Tensor:
    """Apply a gradient on its ps, which has `steps`, if it fits there; return the number of steps added."""
    with tf.device(holding.device):
        fits = steps + num_steps <= train_steps
        return tf.cond(fits, lambda: holding.apply(gradient, num_steps), lambda: tf.zeros([], tf.int64))
