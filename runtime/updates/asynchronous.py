"""Asynchronous updates: each worker applies what it has as soon as it has it."""

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from runtime.cluster.task import Task
from runtime.updates.exchange import Exchange, ExchangeBuilder, Updates, read_global_step_after
from runtime.updates.packing import Packing

EXCHANGES_PER_RUN = 8  # they share the cost of a run, and within a run no exchange waits for Python


def build_async_updates(
    packing: Packing, builder: ExchangeBuilder, max_pending: int, train_steps: int, task: Task
) -> Updates:
    """Build a run of several exchanges, one after the other, on parameters that other workers may change meanwhile.

    An exchange begins when all but the last `max_pending` of those before it are applied: with 0 a worker knows all
    that it has done before; with 1 it computes while the exchange before is on its way. The ps tasks do not apply an
    exchange that has more steps than are left of `train_steps` when it arrives.
    """
    global_step = tf.train.get_global_step()
    pending: list[Exchange] = []
    losses: list[tf.Tensor] = []
    steps_added: list[tf.Tensor] = []  # by each exchange

    for number in range(EXCHANGES_PER_RUN):
        with tf.control_dependencies(steps_added[-1:]):
            vectors = packing.read()
        with tf.device(task.device):
            exchange = builder.build_exchange(vectors, pending, number)
        losses.append(exchange.loss)
        pending.append(exchange)
        if len(pending) > max_pending:
            steps_added.append(_apply(packing, pending.pop(0), vectors, steps_added[-1:], train_steps))
    for exchange in pending:
        steps_added.append(_apply(packing, exchange, vectors, steps_added[-1:], train_steps))
    with tf.device(global_step.device):
        num_steps = tf.add_n(steps_added)
    return Updates(
        train_op=num_steps.op,
        num_steps=num_steps,
        loss=losses[0],  # the last exchange may have no steps
        global_step=read_global_step_after(num_steps.op),
        num_replicas=1,
        hooks=[],
        unsaved_variables=[],
    )


def _apply(
    packing: Packing, exchange: Exchange, vectors: Sequence[tf.Tensor], previous: list[tf.Tensor], train_steps: int
) -> tf.Tensor:
    """Apply an exchange after the `previous` one, if it fits into `train_steps`; return the number of steps added.

    The next exchange takes this one for pending, so `vectors`, which it computes on, must be read before.
    """
    global_step = tf.train.get_global_step()
    pairs = packing.unpack(_after(exchange.gradients, vectors))
    arrived = [part for part, variable in pairs if variable.device == global_step.device]

    def apply() -> tf.Tensor:
        with tf.name_scope(None):  # the optimizer's own variables must not be named after the condition
            train_op = exchange.optimizer.apply_gradients(pairs, exchange.counter)
        with tf.control_dependencies([train_op]):
            return tf.identity(exchange.num_steps)

    with tf.device(global_step.device):  # constants too: elsewhere, every step would send them
        with tf.control_dependencies([*previous, *arrived]):
            fits = global_step.read_value() + exchange.num_steps <= train_steps
        return tf.cond(fits, apply, lambda: tf.zeros([], tf.int64))


def _after(gradients: Sequence[tf.Tensor], vectors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Build the gradients for each ps, on that ps, as they are once its vector has been read."""
    delayed = []
    for gradient, vector in zip(gradients, vectors, strict=True):
        with tf.device(vector.device), tf.control_dependencies([vector]):
            delayed.append(tf.identity(gradient))
    return delayed
