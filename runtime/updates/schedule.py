"""The learning rate."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow.compat.v1 as tf

LR_SCHEDULES = ("constant", "one_cycle")
WARMUP_PART = 0.3  # of a cycle


class Schedule(NamedTuple):
    """What the learning rate is at each global step: so a run that is resumed goes on with the rate that it had.

    It rises in a line for `warmup_steps`, up to `learning_rate`. There it stays if it is constant. In a cycle (Smith
    and Topin 2017, arXiv:1708.07120) it then falls in a line, and would be 0 at `train_steps`. A cycle is resumed with
    the same number of steps, or the rate jumps to that of the longer cycle.
    """

    name: str  # one of LR_SCHEDULES
    learning_rate: float
    warmup_steps: int | None  # None: WARMUP_PART of a cycle, and none before a constant rate
    train_steps: int  # more than `warmup_steps`
    user: Callable[[tf.Tensor], tf.Tensor] | None = None  # the user's own, in the place of all that

    def build(self, steps: tf.Tensor) -> tf.Tensor:
        """Build the rate, float32 [], after so many `steps`, int64 []."""
        if self.user:
            return self.user(steps)
        is_cycle = self.name == "one_cycle"
        default_steps = int(WARMUP_PART * self.train_steps) if is_cycle else 0
        warmup_steps = default_steps if self.warmup_steps is None else self.warmup_steps
        factors = tf.ones(steps.shape)
        if warmup_steps:
            factors = tf.minimum(factors, tf.cast(steps + 1, tf.float32) / warmup_steps)
        if is_cycle:
            steps_left = tf.maximum(self.train_steps - steps, 0)
            factors = tf.minimum(factors, tf.cast(steps_left, tf.float32) / (self.train_steps - warmup_steps))
        return self.learning_rate * factors
