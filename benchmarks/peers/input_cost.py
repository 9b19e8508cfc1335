"""What the input costs: the rate on a constant batch as a ratio to the rate on real batches, in the same run.

In a run of `constant_batch.py` every odd second of the system's clock trains on a constant batch.
"""

import itertools
from collections.abc import Sequence

from benchmarks.peers.clock import WARM_UP

SWITCH_SECS = 0.2  # at the start of a second, workers still finish calls of the second before


def constant_batch_ratio(progress: Sequence[tuple[float, int]]) -> float:
    """Return the rate of the odd seconds as a ratio to the rate of the even ones.

    Args:
      progress: pairs of a time, as from `time.time()`, and the global step at that time, in their order.
    """
    secs, steps = [0.0, 0.0], [0, 0]
    # Without the last pair: training may have ended before it.
    warm = progress[int(WARM_UP * len(progress)) : -1]
    for (start, first_step), (end, last_step) in itertools.pairwise(warm):
        if int(start - SWITCH_SECS) == int(end):
            secs[int(end) % 2] += end - start
            steps[int(end) % 2] += last_step - first_step
    return (steps[1] / secs[1]) / (steps[0] / secs[0])
