"""What one ps holds of the model, and how it applies what arrives there: no ps waits for another."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow.compat.v1 as tf

from runtime.model.roles import build_change
from runtime.updates.exchange import Exchange, Updates
from runtime.updates.optimizer import Optimizer, OptimizerMaker
from runtime.updates.packing import Packing, read, split_vector


class Gradient(NamedTuple):
    """What changes the parameters on one ps; all of it is there."""

    vector: tf.Tensor  # float32 [size], packed, of the variables
    of_slices: list[tf.IndexedSlices]  # of each slice of a table: float32 [n, dim], each row once


class PsShard:
    """The parameters on one ps, the optimizer of its own that changes them, the steps that they have, and the end."""

    def __init__(
        self,
        packing: Packing,
        device: str,
        make_optimizer: OptimizerMaker,
        build_rate: Callable[[tf.Tensor], tf.Tensor],
        train_steps: int,
        ema_decay: float | None = None,
    ):
        """Take what `packing` has on a ps.

        Args:
          packing: of the parameters.
          device: of the ps.
          make_optimizer: makes what changes them.
          build_rate: builds its learning rate, float32 [], from the number of steps that the ps has applied, int64 [].
          train_steps: after which nothing is applied, unless the end comes before.
          ema_decay: keep averages of the parameters, but for tables.
        """
        self.device = device
        self._variables, self.table_slices = packing.variables[device], packing.table_slices[device]
        self._kinds = packing.kinds[device]
        # How many numbers the variables have, and how many all parameters: with tables.
        self.size = sum(variable.shape.num_elements() for variable in self._variables)
        self.num_parameters = self.size + sum(variable.shape.num_elements() for variable in self.table_slices)
        self.steps = global_step = tf.train.get_global_step()
        # A ps has this while its part of the model belongs to those of the others: it is initialised once the model is,
        # and never saved.
        if device == global_step.device:
            self.ready_marker = self._make_variable("is_whole", True)
        else:
            with tf.device(global_step.device):
                step = read(global_step)
            name = f"steps_of_ps_{tf.DeviceSpec.from_string(device).task}"
            # Unsaved, so that the number of ps tasks may change.
            self.steps = self.ready_marker = self._make_variable(name, step)
        # 0 once the model is good enough; one that was restored may be so.
        with tf.device(device):
            self.is_finished = tf.placeholder_with_default(False, [], "is_finished")
            last_step = tf.where(self.is_finished, tf.zeros([], tf.int64), tf.constant(train_steps, tf.int64))
        self.last_step = self._make_variable(f"last_step_of_ps_{tf.DeviceSpec.from_string(device).task}", last_step)
        self._build_rate, self._ema_decay = build_rate, ema_decay
        trained = [v for v, kind in zip(self._variables, self._kinds, strict=True) if kind is None]
        self._averages = packing.make_averages(trained, ema_decay) if ema_decay else []
        named = {variable.op.name: variable for variable in [*trained, *self.table_slices]}
        is_part = sum(bool(packing.variables[of] or packing.table_slices[of]) for of in packing.variables) > 1
        how = make_optimizer, named, len(self.table_slices)
        with tf.device(device):
            self._optimizer = Optimizer(*how, is_of_part=is_part) if named else None

    def _make_variable(self, name: str, value: Any) -> tf.Variable:
        with tf.device(self.device):
            return tf.Variable(value, trainable=False, collections=[], name=name)

    def find(self, kind: str) -> npt.NDArray[np.bool_] | None:
        """Return where a packed vector has what arrives for state of this kind, bool [size]; None: nowhere."""
        marks = [
            np.full(v.shape.num_elements(), of == kind) for v, of in zip(self._variables, self._kinds, strict=True)
        ]
        return np.concatenate(marks) if kind in self._kinds else None

    def read_steps(self, after: Sequence[tf.Tensor]) -> tf.Tensor:
        """Build the steps that the parameters have, int64 [], after something on this ps."""
        with tf.device(self.device), tf.control_dependencies(after):
            return read(self.steps)

    def count_steps_left(self, steps: tf.Tensor) -> tf.Tensor:
        """Build how many steps, int64 [], may be applied to parameters that have `steps`, int64 [], as it was read."""
        with tf.control_dependencies([steps]):
            return read(self.last_step) - steps

    def unpack(self, vector: tf.Tensor, places: Sequence[tf.Tensor]) -> Gradient:
        """Build the gradient that has arrived in a vector, float32 [n] on this ps.

        Args:
          vector: has the gradients of the variables, and those of some rows of each slice.
          places: where these rows are in their slices: int32 [n] each, on this ps.
        """
        if not self.table_slices:
            return Gradient(vector, [])
        with tf.device(self.device):
            of_variables, of_rows = vector[: self.size], vector[self.size :]
            values = split_vector(of_rows, self.table_slices, [tf.size(of_slice) for of_slice in places])
            return Gradient(of_variables, [tf.IndexedSlices(*pair) for pair in zip(values, places, strict=True)])

    def apply(self, gradient: Gradient, num_steps: tf.Tensor) -> tf.Tensor:
        """Apply a gradient, and count its steps; return `num_steps` after that."""
        parts = split_vector(gradient.vector, self._variables)
        changes, gradients = [], list[Any]()
        for part, variable, kind in zip(parts, self._variables, self._kinds, strict=True):
            if kind is None:
                gradients.append(part)
            else:
                changes.append(build_change(variable, kind, part))
        if self._optimizer:
            steps = read(self.steps)
            changes.append(self._optimizer.apply([*gradients, *gradient.of_slices], self._build_rate(steps), steps))
        with tf.control_dependencies(changes):
            averagings = [self._average(variable, average, num_steps) for variable, average in self._averages]
        with tf.control_dependencies([gradient.vector, *changes, *averagings]):
            count = self.steps.assign_add(num_steps, read_value=False)
        with tf.control_dependencies([count]):
            return tf.identity(num_steps)

    def _average(self, variable: tf.Variable, average: tf.Variable, num_steps: tf.Tensor) -> tf.Operation:
        """Move an average towards its variable, by as much as so many steps are worth."""
        weight = 1 - tf.constant(self._ema_decay) ** tf.cast(num_steps, tf.float32)
        return average.assign_sub(weight * (read(average) - read(variable)), read_value=False)


def make_updates(
    shards: Sequence[PsShard], added: Sequence[Sequence[tf.Tensor]], exchanges: Sequence[Exchange]
) -> Updates:
    """Return a run in which each ps does what `added` needs: the steps, int64 [], that each exchange adds there.

    The first of the `exchanges` is shown, since the last one may have no steps. Its loss is not a number where that of
    any is not.
    """
    sums = []
    with tf.device(exchanges[0].loss.device), tf.name_scope("shown_loss"):
        loss = exchanges[0].loss + 0.0 * tf.add_n([exchange.loss for exchange in exchanges])
    for shard, of_ps in zip(shards, added, strict=True):
        with tf.device(shard.device), tf.name_scope("steps"):
            sums.append(tf.add_n(of_ps))
            if shard.steps is tf.train.get_global_step():
                num_steps, of_model = sums[-1], shard
                # The variables, fetched beside, may be older. Together, the two travel in one message.
                with tf.control_dependencies([num_steps]):
                    ends = tf.stack([read(shard.steps), read(shard.last_step)])
    with tf.device(loss.device), tf.name_scope("steps"):
        global_step, last_step = tf.unstack(ends)
    return Updates(
        train_op=[tensor.op for tensor in sums],
        num_steps=num_steps,
        loss=loss,
        global_step=global_step,
        last_step=last_step,
        last_step_now=of_model.last_step,
        unsaved_variables=[variable for shard in shards for variable in (shard.ready_marker, shard.last_step)],
        are_finished=[shard.is_finished for shard in shards],
        exchange=exchanges[0],
        pushes=[of_ps[0] for of_ps in added],
    )
