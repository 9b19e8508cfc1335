"""Adam whose state is all in its slots: how far its averages have grown follows from the number of updates."""

from collections.abc import Callable

import tensorflow.compat.v1 as tf


class CountedAdamOptimizer(tf.train.AdamOptimizer):
    """Computes the powers of beta from a counter, where TensorFlow's Adam keeps two variables for all its parameters.

    These would lie on one ps, and each step would send them to the others.
    """

    def __init__(self, learning_rate: Callable[[], tf.Tensor], num_updates: tf.Variable):
        """Take `num_updates`, int64 [], for the number of updates so far; whoever applies one then advances it."""
        super().__init__(learning_rate)
        self._num_updates = num_updates

    def _create_slots(self, var_list: list[tf.Variable]) -> None:
        for variable in var_list:
            self._zeros_slot(variable, "m", self._name)
            self._zeros_slot(variable, "v", self._name)

    def _prepare(self) -> None:
        super()._prepare()
        num_updates = tf.cast(self._num_updates.read_value() + 1, tf.float32)
        self._powers = self._beta1_t**num_updates, self._beta2_t**num_updates

    def _get_beta_accumulators(self) -> tuple[tf.Tensor, tf.Tensor]:
        return self._powers

    def _finish(self, update_ops: list[tf.Operation], name_scope: str) -> tf.Operation:
        return tf.group(*update_ops, name=name_scope)
