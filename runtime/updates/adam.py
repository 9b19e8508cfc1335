"""Adam whose state is all in its slots: how far its averages have grown follows from the number of updates."""

from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf


class CountedAdamOptimizer(tf.train.AdamOptimizer):
    """Adam; of a table it leaves all rows alone that a gradient does not have, where Adam would move them on.

    It computes the powers of beta from a counter, where TensorFlow's Adam keeps two variables for all its parameters.
    These would lie on one ps, and each step would send them to the others.
    """

    def __init__(self, learning_rate: Callable[[], tf.Tensor], num_updates: tf.Variable):
        """Take `num_updates`, int64 [], for the number of updates so far; whoever applies one then advances it."""
        super().__init__(learning_rate)
        self._num_updates = num_updates

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        for variable in var_list:
            self._zeros_slot(variable, "m", self.get_name())
            self._zeros_slot(variable, "v", self.get_name())

    def _prepare(self) -> None:
        super()._prepare()
        number = tf.cast(self._num_updates.read_value() + 1, tf.float32)
        self._powers = self._beta1_t**number, self._beta2_t**number

    def _get_beta_accumulators(self) -> tuple[tf.Tensor, tf.Tensor]:
        return self._powers

    def _finish(self, update_ops: Sequence[tf.Operation], name_scope: str) -> tf.Operation:
        return tf.group(*update_ops, name=name_scope)  # there are no powers to advance

    def _resource_apply_sparse(self, grad: tf.Tensor, handle: tf.Variable, indices: tf.Tensor) -> tf.Operation:
        m, v = self.get_slot(handle, "m"), self.get_slot(handle, "v")
        mean = self._beta1_t * m.sparse_read(indices) + (1 - self._beta1_t) * grad
        variance = self._beta2_t * v.sparse_read(indices) + (1 - self._beta2_t) * grad**2
        beta1_power, beta2_power = self._powers
        rate = self._lr_t * tf.sqrt(1 - beta2_power) / (1 - beta1_power)
        change = rate * mean / (tf.sqrt(variance) + self._epsilon_t)
        with tf.control_dependencies([change]):
            return tf.group(
                m.scatter_update(tf.IndexedSlices(mean, indices)),
                v.scatter_update(tf.IndexedSlices(variance, indices)),
                handle.scatter_sub(tf.IndexedSlices(change, indices)),
            )
