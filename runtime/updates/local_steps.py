"""Local steps: a worker takes several steps on a copy of the parameters, and sends what has changed.

Asynchronous, this is Downpour SGD with n_push = n_fetch (Dean et al. 2012). Synchronous, it is local SGD, also called
federated averaging (McMahan et al. 2017, arXiv:1602.05629).
"""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from runtime.model.roles import AVERAGE, SET, build_change
from runtime.model.variables import values_of
from runtime.updates.exchange import Exchange, Work, add_up
from runtime.updates.optimizer import COPIES, Optimizer, OptimizerMaker
from runtime.updates.packing import Selection
from runtime.updates.schedule import Schedule


class Length(NamedTuple):
    """How many local steps an exchange has.

    It has `max_steps`, but never more than one of `num_shares` shares of the steps that are left when the run begins
    (guided self-scheduling, Polychronopoulos and Kuck 1987). Where the changes of all workers add up, they go too far
    together; in the short exchanges at the end, the noise of that fades.
    """

    max_steps: int
    train_steps: int  # the global step at which training ends
    num_shares: int
    pace: int  # how far the global step gets while each worker takes one step

    def build(self, global_step: tf.Tensor) -> tf.Tensor:
        """Build the number of local steps, int64 [], of each exchange of a run that begins at `global_step`."""
        share = -((global_step - self.train_steps) // self.num_shares)  # rounded up
        return tf.clip_by_value(share, 0, self.max_steps)


class LocalStepsExchangeBuilder:
    """Builds exchanges of several local steps each; the copy and the optimizer's state stay on the worker."""

    def __init__(
        self,
        work: Work,
        make_optimizer: OptimizerMaker,
        schedule: Schedule,
        length: Length,
    ):
        """Prepare to build exchanges, for each of which `work` has `length.max_steps` batches.

        Args:
          work: what the worker computes.
          make_optimizer: makes what takes the local steps.
          schedule: of the learning rate.
          length: how many local steps an exchange has.
        """
        self._work, self._make_optimizer, self._schedule, self._length = work, make_optimizer, schedule, length
        global_step = tf.train.get_global_step()
        with tf.device(global_step.device), tf.name_scope("num_local_steps"):
            self._first_step = global_step.read_value()
        self._num_steps = length.build(self._first_step)
        self._copies: dict[str, tf.Variable] = {}  # those of the first exchange serve all

    def build_exchange(
        self, vectors: Sequence[tf.Tensor], selection: Selection, pending: Sequence[Exchange], number: int
    ) -> Exchange:
        """Build the exchange that sends the change of several local steps: see `GradientExchangeBuilder`."""
        kinds = self._work.packing.state
        # Exact: many steps would begin with the errors of rounded parameters.
        values = values_of(self._work.packing.unpack(vectors, selection.ids))
        for exchange in pending:
            sent = self._work.packing.unpack([tf.cast(change, tf.float32) for change in exchange.gradients])
            values = {n: sent[n] if kinds.get(n) == SET else value - sent[n] for n, value in values.items()}
        if not self._copies:
            with tf.name_scope(COPIES):
                self._copies = {name: _make_copy(name, value.shape) for name, value in values.items()}
            trained = {name: copy for name, copy in self._copies.items() if name not in kinds}
            build_value = self._work.packing.build_value
            self._optimizer = Optimizer(self._make_optimizer, trained, build_value=build_value) if trained else None
        assignments = [self._copies[name].assign(value) for name, value in values.items()]
        with tf.control_dependencies(assignments):
            first_step = tf.zeros([], tf.int64)

        def take_step(step: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            reads = [copy.read_value() for copy in self._copies.values()]
            given = self._work.packing.by_name(reads, selection.ids)
            inputs = tf.gather(self._work.batches.inputs, number * self._length.max_steps + step)
            loss, *gradients = add_up(self._work.devices, self._work.build_gradients, given, inputs)
            global_step = self._count(number, step)
            lowers = dict(zip(self._copies, gradients, strict=True))
            with tf.control_dependencies([loss, *reads]):  # which need the old values
                changes = [build_change(self._copies[name], kind, lowers.pop(name)) for name, kind in kinds.items()]
                rate = self._schedule.build(global_step)
                if self._optimizer:
                    changes.append(self._optimizer.apply([*lowers.values()], rate, global_step))
            with tf.control_dependencies(changes):
                return step + 1, loss

        last_step, loss = tf.while_loop(
            lambda step, _: step < self._num_steps,
            take_step,
            (first_step, tf.zeros([])),
            parallel_iterations=1,
            name="local_steps",
        )
        with tf.control_dependencies([last_step]):
            ends = [copy.read_value() for copy in self._copies.values()]
            pairs = zip(values.items(), ends, strict=True)
            changes = [self._describe_change(kinds.get(name), start, end) for (name, start), end in pairs]
            packed = self._work.packing.pack(changes, selection.ids)
        return Exchange([tf.cast(vector, self._work.dtype) for vector in packed], self._num_steps, loss, selection)

    def _describe_change(self, kind: str | None, start: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
        """Build what is sent of a parameter, or of state of a kind, that has changed."""
        if kind == SET:
            return end
        # What workers send adds up: all of them together move an average as far as one would by itself.
        return (start - end) / self._length.pace if kind == AVERAGE and self._length.pace > 1 else start - end

    def _count(self, number: int, step: tf.Tensor) -> tf.Tensor:
        """Build the global step, int64 [], of a step of an exchange.

        The worker knows the global step at which its run began. From there it counts as if all workers were as fast.
        """
        return self._first_step + self._length.pace * (number * self._num_steps + step)


def _make_copy(name: str, shape: tf.TensorShape) -> tf.Variable:
    """Make a worker's copy of a parameter; that of a table has another number of rows in each exchange."""
    keys = [tf.GraphKeys.LOCAL_VARIABLES]
    return tf.Variable(
        tf.zeros([size or 0 for size in shape]), shape=shape, name=name, collections=keys, trainable=False
    )
