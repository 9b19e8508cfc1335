"""Adam whose state is all in its slots: how far its averages have grown follows from the number of updates."""

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8


class CountedAdamOptimizer(tf.train.Optimizer):
    """Adam; of a table it leaves all rows alone that a gradient does not have, where Adam would move them on.

    It computes the powers of beta from a counter, where TensorFlow's Adam keeps two variables for all its parameters.

    These would lie on one ps, and each step would send them to the others. Checkpoints hold the slots under the names
    that TensorFlow's Adam gives them. The methods are those that `tf.train.Optimizer` asks its subclasses for.
    """

    def __init__(self, learning_rate: tf.Tensor, num_updates: tf.Variable):
        """Take `num_updates`, int64 [], for the number of updates so far; the caller advances it after each."""
        super().__init__(use_locking=False, name="Adam")
        self._learning_rate, self._num_updates = learning_rate, num_updates

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        for variable in var_list:
            self._zeros_slot(variable, "m", self.get_name())
            self._zeros_slot(variable, "v", self.get_name())

    def _prepare(self) -> None:
        number = tf.cast(self._num_updates.read_value() + 1, tf.float32)
        self._powers = {"beta1_power": BETA_1**number, "beta2_power": BETA_2**number}

    def _resource_apply_dense(self, grad: tf.Tensor, handle: tf.Variable) -> tf.Operation:
        return tf.raw_ops.ResourceApplyAdam(
            var=handle.handle,
            m=self.get_slot(handle, "m").handle,
            v=self.get_slot(handle, "v").handle,
            **self._powers,
            lr=self._learning_rate,
            beta1=BETA_1,
            beta2=BETA_2,
            epsilon=EPSILON,
            grad=grad,
        )

    def _resource_apply_sparse(self, grad: tf.Tensor, handle: tf.Variable, indices: tf.Tensor) -> tf.Operation:
        m, v = self.get_slot(handle, "m"), self.get_slot(handle, "v")
        mean = BETA_1 * m.sparse_read(indices) + (1 - BETA_1) * grad
        variance = BETA_2 * v.sparse_read(indices) + (1 - BETA_2) * grad**2
        rate = self._learning_rate * tf.sqrt(1 - self._powers["beta2_power"]) / (1 - self._powers["beta1_power"])
        change = rate * mean / (tf.sqrt(variance) + EPSILON)
        with tf.control_dependencies([change]):
            return tf.group(
                m.scatter_update(tf.IndexedSlices(mean, indices)),
                v.scatter_update(tf.IndexedSlices(variance, indices)),
                handle.scatter_sub(tf.IndexedSlices(change, indices)),
            )
