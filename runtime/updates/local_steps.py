"""Local steps: a worker takes several steps on a copy of the parameters, and sends what has changed.

Asynchronous, this is Downpour SGD with n_push = n_fetch (Dean et al. 2012). Synchronous, it is local SGD, also called
federated averaging (McMahan et al. 2017, arXiv:1602.05629).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from runtime.model.tables import values_of
from runtime.process.errors import UnusableError
from runtime.updates import towers
from runtime.updates.exchange import Exchange, Work
from runtime.updates.packing import Selection
from runtime.updates.schedule import Rate, Schedule

COPIES = "copies_of_worker"  # the scope of a worker's copies of the parameters, which no user's scope ends with


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
        make_optimizer: Callable[[Rate], tf.train.Optimizer],
        schedule: Schedule,
        length: Length,
    ):
        """Prepare to build exchanges, for each of which `work` has `length.max_steps` batches.

        Args:
          work: what the worker computes.
          make_optimizer: makes what takes the local steps, given what builds its learning rate.
          schedule: of the learning rate.
          length: how many local steps an exchange has.
        """
        self._work, self._length = work, length
        # int64 [], the global step, as this worker counts, of the one that is being built
        self._step: tf.Tensor | None = None
        self._optimizer = make_optimizer(Rate(lambda: schedule.build(self._step_of_rate())))
        global_step = tf.train.get_global_step()
        with tf.device(global_step.device), tf.name_scope("num_local_steps"):
            self._first_step = global_step.read_value()
        self._num_steps = length.build(self._first_step)
        self._copies: list[tf.Variable] = []  # those of the first exchange serve all

    def build_exchange(
        self, vectors: Sequence[tf.Tensor], selection: Selection, pending: Sequence[Exchange], number: int
    ) -> Exchange:
        """Build the exchange that sends the change of several local steps: see `GradientExchangeBuilder`."""
        starts = list(vectors)  # exact: many steps would begin with the errors of rounded parameters
        for exchange in pending:
            changes = [tf.cast(change, tf.float32) for change in exchange.gradients]
            starts = [start - change for start, change in zip(starts, changes, strict=True)]
        parameters = self._work.packing.unpack(starts, selection.ids)
        values = values_of(parameters)
        if not self._copies:
            with tf.variable_creator_scope(_make_local), tf.name_scope(COPIES):
                self._copies = [_make_copy(name, value.shape) for name, value in values.items()]
        assignments = [copy.assign(value) for copy, value in zip(self._copies, values.values(), strict=True)]
        with tf.control_dependencies(assignments):
            first_step = tf.zeros([], tf.int64)
        are_state = [name in self._work.packing.state for name in self._work.packing.names]

        def take_step(step: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            given = self._work.packing.by_name([copy.read_value() for copy in self._copies], selection.ids)
            inputs = tf.gather(self._work.batches.inputs, number * self._length.max_steps + step)
            loss, *gradients = towers.average(self._work.devices, self._work.build_gradients, given, inputs)
            self._step = self._count(number, step)
            pairs = list(zip(gradients, self._copies, are_state, strict=True))
            with tf.variable_creator_scope(_make_local), tf.control_dependencies([loss]):  # it needs the old values
                trained = [(gradient, copy) for gradient, copy, is_state in pairs if not is_state]
                changes = [self._optimizer.apply_gradients(trained)] if trained else []
                changes += [copy.assign_sub(change, read_value=False) for change, copy, is_state in pairs if is_state]
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
            ends = [copy.read_value() for copy in self._copies]
            if self._length.pace > 1:
                # What workers send adds up: all of them together move an average as far as one would by itself.
                ends = [
                    start + (end - start) / self._length.pace if self._work.packing.state.get(name) else end
                    for (name, start), end in zip(values.items(), ends, strict=True)
                ]
            ends = self._work.packing.pack(ends, selection.ids)
            changes = [tf.cast(start - end, self._work.dtype) for start, end in zip(starts, ends, strict=True)]
        return Exchange(changes, self._num_steps, loss, selection)

    def _step_of_rate(self) -> tf.Tensor:
        if self._step is None:
            raise UnusableError(
                "model.py: build_optimizer() makes a tensor of its learning rate, but each local step has another one:"
                " let build_learning_rate(global_step) compute the rate, and build_optimizer() only add to it, subtract"
                " from it, multiply or divide it"
            )
        return self._step

    def _count(self, number: int, step: tf.Tensor) -> tf.Tensor:
        """Build the global step, int64 [], of a step of an exchange.

        The worker knows the global step at which its run began. From there it counts as if all workers were as fast.
        """
        return self._first_step + self._length.pace * (number * self._num_steps + step)


def _make_copy(name: str, shape: tf.TensorShape) -> tf.Variable:
    """Make a worker's copy of a parameter; that of a table has another number of rows in each exchange."""
    return tf.Variable(tf.zeros([size or 0 for size in shape]), shape=shape, name=name)


def _make_local(next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
    """Make a local variable, which is not part of the model: neither shared, nor trained, nor saved."""
    return next_creator(**{**kwargs, "collections": [tf.GraphKeys.LOCAL_VARIABLES], "trainable": False})
