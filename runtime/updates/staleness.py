"""Staleness: how old the parameters are, by the updates of others, when what was computed with them is applied."""

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from runtime.updates.holding import Holding


class Staleness:
    """How many global steps of others come between what an exchange reads and what it writes.

    Each ps counts the steps that it has applied. This asks the one with the most parameters: that of the global step
    may have none, and then it counts before the worker has computed. No exchange sends more for that, and a run that
    does not fetch it does not count.
    """

    def __init__(self, holdings: Sequence[Holding], added: Sequence[Sequence[tf.Tensor]]):
        """Take `added`, which grows, for the steps of this worker in the order in which they are written."""
        self._ps = max(range(len(holdings)), key=lambda ps: holdings[ps].num_parameters)
        self._added, self._holding, self._own = added, holdings[self._ps], added[self._ps]
        self._read: list[tf.Tensor] = []  # by exchange, as what follows
        self._written: list[tf.Tensor] = []

    def note_read(self) -> list[list[tf.Tensor]]:
        """Note the steps of others as an exchange begins; return, for each ps, what its parameters are read after."""
        after = [list(of_ps[-1:]) for of_ps in self._added]
        steps = self._holding.read_steps(after[self._ps])
        self._read.append(self._build_steps_of_others(steps))
        after[self._ps].append(steps)
        return after

    def note_write(self, ps: int, steps: tf.Tensor) -> None:
        """Note the steps of others, given the `steps`, int64 [], that a ps has as an exchange arrives there."""
        if ps == self._ps:
            self._written.append(self._build_steps_of_others(steps))

    def build_mean(self) -> tf.Tensor:
        """Build the mean over all exchanges, float32 []."""
        with tf.device(self._holding.device), tf.name_scope("staleness"):
            differences = [after - before for before, after in zip(self._read, self._written, strict=True)]
            return tf.reduce_mean(tf.cast(tf.stack(differences), tf.float32))

    def _build_steps_of_others(self, steps: tf.Tensor) -> tf.Tensor:
        with tf.device(self._holding.device), tf.name_scope("staleness"):
            return steps - tf.add_n(self._own) if self._own else tf.identity(steps)
