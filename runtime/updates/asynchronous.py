"""Asynchronous updates: each worker applies what it has as soon as it has it."""

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from runtime.cluster.task import Task
from runtime.updates.exchange import Exchange, ExchangeBuilder, Updates
from runtime.updates.holding import Gradient, Holding, make_updates
from runtime.updates.packing import Packing, Selection
from runtime.updates.staleness import Staleness

EXCHANGES_PER_RUN = 8  # they share the cost of a run, and within a run no exchange waits for Python


def build_async_updates(
    packing: Packing,
    selections: Sequence[Selection],
    holdings: Sequence[Holding],
    builder: ExchangeBuilder,
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
    staleness = Staleness(holdings, added)

    def apply(exchange: Exchange, vectors: Sequence[tf.Tensor]) -> None:
        # The next exchange takes this one for pending, so `vectors`, which it computes on, must be read before.
        for ps, (holding, vector) in enumerate(zip(holdings, vectors, strict=True)):
            with tf.name_scope("apply"):
                received, num_steps = exchange.receive(ps, holding.device, vector)
                gradient = holding.unpack(received, exchange.selection.places[ps])
                steps = holding.read_steps(after=[*added[ps][-1:], received])
                staleness.note_write(ps, steps)
                added[ps].append(_apply_if_it_fits(holding, gradient, num_steps, steps, train_steps))

    for number, selection in enumerate(selections):
        with tf.name_scope("exchange"):
            vectors = packing.read(selection, staleness.note_read())
            with tf.device(task.device):
                exchanges.append(builder.build_exchange(vectors, selection, pending, number))
                pending.append(exchanges[-1])
                if len(pending) > max_pending:
                    apply(pending.pop(0), vectors)
    with tf.name_scope("exchange"), tf.device(task.device):
        for exchange in pending:
            apply(exchange, vectors)
    # The first exchange is shown, since the last one may have no steps.
    return make_updates(holdings, added, exchanges[0])._replace(staleness=staleness.build_mean())


def _apply_if_it_fits(
    holding: Holding, gradient: Gradient, num_steps: tf.Tensor, steps: tf.Tensor, train_steps: int
) -> tf.Tensor:
    """Apply a gradient on its ps, which has `steps`, if it fits there; return the number of steps added."""
    with tf.device(holding.device):
        fits = steps + num_steps <= train_steps
        return tf.cond(fits, lambda: holding.apply(gradient, num_steps), lambda: tf.zeros([], tf.int64))
