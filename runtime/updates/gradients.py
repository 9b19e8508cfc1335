"""The classic step: the gradients of one batch, which the ps tasks apply."""

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from runtime.updates.exchange import Exchange, LossFunction
from runtime.updates.packing import Packing


class GradientExchangeBuilder:
    """Builds exchanges of one batch each."""

    def __init__(
        self, packing: Packing, build_loss: LossFunction, indices: tf.Tensor, optimizer: tf.train.Optimizer
    ) -> None:
        """Prepare to build exchanges.

        Args:
          packing: of the parameters.
          build_loss: builds the loss of a batch.
          indices: of the batches of a run, int32 [batches in a run, b]: that of an exchange has the exchange's number.
          optimizer: applies the gradients on the ps tasks.
        """
        self._packing, self._build_loss, self._optimizer = packing, build_loss, optimizer
        # Unstack here, where nothing is waited for: inside an exchange it would run before the gradients are sent.
        self._batches = tf.unstack(indices)
        self._global_step = tf.train.get_global_step()
        with tf.device(self._global_step.device):
            self._num_steps = tf.constant(1, tf.int64)
        self._last_gradients: list[tf.Tensor] = []

    def build_exchange(self, vectors: Sequence[tf.Tensor], pending: Sequence[Exchange], number: int) -> Exchange:
        """Build the exchange that sends the gradients of batch `number`: see `ExchangeBuilder`."""
        assert not pending, "a classic step reads everything that this worker has done before"
        parameters = self._packing.split(vectors)
        # Gather a batch when its turn comes: the batches of a whole run would not stay in the cache.
        with tf.control_dependencies(self._last_gradients):
            loss = self._build_loss(parameters, self._batches[number])
        self._last_gradients = self._packing.pack(tf.gradients(loss, parameters))
        # Of the ops that are ready, TensorFlow runs the cheap ones first. A reshape costs nothing, so the gradients
        # leave before the next batch is gathered, which becomes ready at the same moment.
        sent = [tf.reshape(gradient, [-1]) for gradient in self._last_gradients]
        return Exchange(sent, self._optimizer, self._global_step, self._num_steps, loss)
