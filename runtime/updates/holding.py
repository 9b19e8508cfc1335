"""What one ps holds of the model, and how it applies what arrives there: no ps waits for another."""

from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from runtime.updates.exchange import Exchange, Updates
from runtime.updates.packing import Packing, split_vector

# Returns the optimizer of a ps, given the variable, int64 [], that counts the steps that this ps has applied.
OptimizerMaker = Callable[[tf.Variable], tf.train.Optimizer]


class Holding:
    """The parameters on one ps, the optimizer of its own that changes them, and the steps that they have."""

    def __init__(self, device: str, variables: Sequence[tf.Variable], make_optimizer: OptimizerMaker):
        """Take `variables`, all of those on `device`."""
        self.device, self._variables = device, variables
        global_step = tf.train.get_global_step()
        if device == global_step.device:
            self.steps, self._unsaved = global_step, self._make_mark()
        else:
            self.steps = self._unsaved = self._make_counter(global_step)
        self._optimizer = make_optimizer(self.steps)

    @property
    def size(self) -> int:
        """How many numbers the parameters have."""
        return sum(variable.shape.num_elements() for variable in self._variables)

    def _make_mark(self) -> tf.Variable:
        """Make what a ps has while its part of the model belongs to those of the others: it is initialised last."""
        with tf.device(self.device):
            return tf.Variable(True, trainable=False, collections=[], name="is_whole")

    def _make_counter(self, global_step: tf.Variable) -> tf.Variable:
        """Make a counter that begins at the global step; it is not saved, so that the number of ps tasks may change."""
        with tf.device(global_step.device):
            step = global_step.read_value()
        name = f"steps_of_ps_{tf.DeviceSpec.from_string(self.device).task}"
        with tf.device(self.device):
            return tf.Variable(step, trainable=False, collections=[], name=name)

    @property
    def unsaved_variables(self) -> list[tf.Variable]:
        """The variables that are initialised once the model is, and never saved."""
        return [self._unsaved]

    def read_steps(self, after: Sequence[tf.Tensor]) -> tf.Tensor:
        """Build the steps that the parameters have, int64 [], after something on this ps."""
        with tf.device(self.device), tf.control_dependencies(after):
            return self.steps.read_value()

    def apply(self, vector: tf.Tensor, num_steps: tf.Tensor) -> tf.Tensor:
        """Apply a packed gradient, float32 [size] on this ps, and count its steps; return `num_steps` after that."""
        pairs = list(zip(split_vector(vector, self._variables), self._variables, strict=True))
        changes = [self._optimizer.apply_gradients(pairs)] if pairs else []
        with tf.control_dependencies([vector, *changes]):
            count = self.steps.assign_add(num_steps, read_value=False)
        with tf.control_dependencies([count]):
            return tf.identity(num_steps)


def make_holdings(packing: Packing, make_optimizer: OptimizerMaker) -> list[Holding]:
    """Return what each ps holds, in the order of the vectors of `packing`."""
    return [Holding(device, variables, make_optimizer) for device, variables in packing.variables.items()]


def make_updates(holdings: Sequence[Holding], added: Sequence[Sequence[tf.Tensor]], exchange: Exchange) -> Updates:
    """Return a run in which each ps does what `added` needs: the steps, int64 [], that each exchange adds there.

    The loss and the gradients that are shown are those of one `exchange`.
    """
    sums = []
    for holding, of_ps in zip(holdings, added, strict=True):
        with tf.device(holding.device), tf.name_scope("steps"):
            sums.append(tf.add_n(of_ps))
            if holding.steps is tf.train.get_global_step():
                num_steps = sums[-1]
                global_step = holding.read_steps(after=[num_steps])  # the variable, fetched beside, may be older
    return Updates(
        train_op=[tensor.op for tensor in sums],
        num_steps=num_steps,
        loss=exchange.loss,
        global_step=global_step,
        num_replicas=1,
        hooks=[],
        unsaved_variables=[variable for holding in holdings for variable in holding.unsaved_variables],
        gradients=exchange.gradients,
        staleness=None,
    )
