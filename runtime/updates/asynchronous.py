"""Asynchronous updates: each worker applies what it has as soon as it has it."""

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from runtime.cluster.task import Task
from runtime.updates.exchange import Exchange, ExchangeBuilder, Updates
from runtime.updates.holding import Holding, make_updates
from runtime.updates.packing import Packing

EXCHANGES_PER_RUN = 8  # they share the cost of a run, and within a run no exchange waits for Python


def build_async_updates(
    packing: Packing,
    holdings: Sequence[Holding],
    builder: ExchangeBuilder,
    max_pending: int,
    train_steps: int,
    task: Task,
) -> Updates:
    """Build a run of several exchanges, one after the other, on parameters that other workers may change meanwhile.

    An exchange begins when all but the last `max_pending` of those before it are applied: with 0 a worker knows all
    that it has done before; with 1 it computes while the exchange before is on its way. A ps does not apply an
    exchange that has more steps than are left of `train_steps` there when it arrives.
    """
    pending: list[Exchange] = []
    losses: list[tf.Tensor] = []
    added: list[list[tf.Tensor]] = [[] for _ in holdings]  # the steps that each exchange has added, on each ps

    def apply(exchange: Exchange, vectors: Sequence[tf.Tensor]) -> None:
        # The next exchange takes this one for pending, so `vectors`, which it computes on, must be read before.
        for ps, (holding, vector) in enumerate(zip(holdings, vectors, strict=True)):
            gradient, num_steps = exchange.receive(ps, holding.device, vector)
            added[ps].append(_apply_if_it_fits(holding, gradient, num_steps, added[ps][-1:], train_steps))

    for number in range(EXCHANGES_PER_RUN):
        vectors = packing.read([of_ps[-1:] for of_ps in added])
        with tf.device(task.device):
            exchange = builder.build_exchange(vectors, pending, number)
            losses.append(exchange.loss)
            pending.append(exchange)
            if len(pending) > max_pending:
                apply(pending.pop(0), vectors)
    with tf.device(task.device):
        for exchange in pending:
            apply(exchange, vectors)
    return make_updates(holdings, added, losses[0])  # the last exchange may have no steps


def _apply_if_it_fits(
    holding: Holding, gradient: tf.Tensor, num_steps: tf.Tensor, previous: list[tf.Tensor], train_steps: int
) -> tf.Tensor:
    """Apply a gradient on its ps, after the `previous` one, if it fits there; return the number of steps added."""
    with tf.device(holding.device):
        with tf.control_dependencies([*previous, gradient]):
            fits = holding.steps.read_value() + num_steps <= train_steps
        return tf.cond(fits, lambda: holding.apply(gradient, num_steps), lambda: tf.zeros([], tf.int64))
