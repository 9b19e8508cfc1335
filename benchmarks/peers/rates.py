"""The learning rates of every peer: those of `distributed.py`, without TensorFlow."""

import numpy as np
import numpy.typing as npt

WARMUP_PART = 0.3  # of one cycle, as in `runtime/updates/optimizer.py`


def make_rates(learning_rate: float, train_steps: int) -> npt.NDArray[np.float32]:
    """Return the rate of each step, float32 [train_steps + 1]; the last one is that of all later steps.

    It rises in a line to `learning_rate`, and falls in a line to 0.
    """
    steps, num_warmup = np.arange(train_steps + 1), int(WARMUP_PART * train_steps)
    down = (train_steps - steps) / (train_steps - num_warmup)
    return (learning_rate * np.minimum((steps + 1) / max(num_warmup, 1), np.minimum(down, 1))).astype(np.float32)
