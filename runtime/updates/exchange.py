"""The exchange: a worker reads the parameters, computes, and sends the ps tasks something to apply."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import tensorflow.compat.v1 as tf

from runtime.tables import Ids, Parameters, values_of
from runtime.updates.packing import Packing, Selection, append_count, remove_count, send
from runtime.updates.towers import Towers

# Builds the loss, float32 [], from the parameters and the inputs of a batch.
LossFunction = Callable[[Parameters, tf.Tensor], tf.Tensor]
# Builds the ids of the rows that a batch needs from its inputs.
IdsFunction = Callable[[tf.Tensor], Ids]


class Exchange(NamedTuple):
    """What a worker sends to the ps tasks."""

    gradients: list[tf.Tensor]  # packed, [size] for each ps, on the worker, of the type in which they travel
    num_steps: tf.Tensor | None  # int64 [], how many local steps the gradients stand for; None: always 1
    loss: tf.Tensor  # float32 [], of the last of these steps; 0 if there is none
    selection: Selection  # the rows of tables among the gradients

    def receive(self, ps: int, device: str, after: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Build, on a ps, its gradient, float32, and the number of steps, as they are once `after` is there."""
        gradient = self.gradients[ps]
        message = gradient if self.num_steps is None else append_count(gradient, self.num_steps)
        with tf.device(device):
            with tf.control_dependencies([after]):
                received = tf.cast(tf.identity(message), tf.float32)
            return (received, tf.constant(1, tf.int64)) if self.num_steps is None else remove_count(received)


class ExchangeBuilder(Protocol):
    """What a worker computes between reading the parameters and sending something back."""

    def build_exchange(
        self, vectors: Sequence[tf.Tensor], selection: Selection, pending: Sequence[Exchange], number: int
    ) -> Exchange:
        """Build one exchange.

        Args:
          vectors: the parameters, packed, on the ps tasks.
          selection: the rows of tables among them.
          pending: the exchanges of this worker that `vectors` do not have yet.
          number: of this exchange in the run, from 0.
        """


class GradientExchangeBuilder:
    """Builds exchanges of one batch each."""

    def __init__(
        self, packing: Packing, build_loss: LossFunction, inputs: tf.Tensor, dtype: tf.DType, towers: Towers
    ) -> None:
        """Prepare to build exchanges.

        Args:
          packing: of the parameters.
          build_loss: builds the loss of a batch.
          inputs: of the batches of a run, [batches in a run, b, ...]: that of an exchange has the exchange's number.
          dtype: in which parameters and gradients travel.
          towers: where the gradients are computed.
        """
        self._packing, self._build_loss, self._dtype, self._towers = packing, build_loss, dtype, towers
        # Unstack here, where nothing is waited for: inside an exchange it would run before the gradients are sent.
        self._batches = tf.unstack(inputs)
        self._last_gradients: list[tf.Tensor] = []

    def build_exchange(
        self, vectors: Sequence[tf.Tensor], selection: Selection, pending: Sequence[Exchange], number: int
    ) -> Exchange:
        """Build the exchange that sends the gradients of batch `number`: see `ExchangeBuilder`."""
        assert not pending, "a classic step reads everything that this worker has done before"
        # Gather a batch when its turn comes: the batches of a whole run would not stay in the cache.
        with tf.control_dependencies(self._last_gradients):
            inputs = tf.identity(self._batches[number])
        given = [*send(vectors, self._dtype), *selection.ids]
        loss, *gradients = self._towers.average(self._compute, given, inputs)
        self._last_gradients = [tf.cast(gradient, self._dtype) for gradient in gradients]
        # Of the ops that are ready, TensorFlow runs the cheap ones first. A reshape costs nothing, so the gradients
        # leave before the next batch is gathered, which becomes ready at the same moment.
        sent = [tf.reshape(gradient, [-1]) for gradient in self._last_gradients]
        return Exchange(sent, None, loss, selection)

    def _compute(self, given: Sequence[tf.Tensor], inputs: tf.Tensor) -> list[tf.Tensor]:
        """Build the loss of a batch, and the packed gradients, of messages and of the ids of each table's rows."""
        num_messages = len(self._packing.variables)
        vectors, ids = [tf.cast(message, tf.float32) for message in given[:num_messages]], given[num_messages:]
        parameters = self._packing.unpack(vectors, ids)
        loss = self._build_loss(parameters, inputs)
        gradients = tf.gradients(loss, list(values_of(parameters).values()))
        with tf.control_dependencies([loss]):  # a ps without parameters, too, counts the step when it is computed
            return [loss, *self._packing.pack(gradients, ids)]


class Updates(NamedTuple):
    """What a worker runs to take its steps, and what its sessions need for that."""

    train_op: list[tf.Operation]  # one for each ps: a common one would cost a message from each
    num_steps: tf.Tensor  # int64 [], local steps in one run of `train_op`
    loss: tf.Tensor  # float32 [], of one of these; 0 if there is none
    global_step: tf.Tensor  # int64 [], as it is after the run
    num_replicas: int  # local steps, of any worker, in one global step
    hooks: list[tf.train.SessionRunHook]
    unsaved_variables: list[tf.Variable]  # on the ps tasks: initialised once the model is, and never saved
    exchange: Exchange  # one of the run, to look at
    staleness: tf.Tensor | None  # float32 [], global steps of others between a read and its write; None: synchronous
