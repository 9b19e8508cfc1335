"""How the clocks of the tasks differ, as far as what they have sent to each other tells."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Delay(NamedTuple):
    """How long something was on its way between two tasks, by the clock of each."""

    sender: str
    receiver: str
    nanoseconds: int


def estimate_offsets(delays: Sequence[Delay]) -> dict[str, int]:
    """Return by task what to add to its clock, in nanoseconds, so that nothing arrives before it was sent.

    If nothing does, all clocks stay as they are. Otherwise, messages in both directions leave a range for the
    difference between a clock and that of worker 0, as wide as the fastest of them took, there and back. The middles of
    these ranges suit all messages, also those between other tasks. A task without such messages keeps its clock.
    """
    names = {name for sender, receiver, _ in delays for name in (sender, receiver)}
    tasks = sorted(names, key=lambda task: (task != "worker 0", task))
    numbers = {task: number for number, task in enumerate(tasks)}
    limits = np.where(np.eye(len(tasks)), 0, np.inf)  # of each sender (row) and receiver, in nanoseconds
    for sender, receiver, nanoseconds in delays:
        pair = numbers[sender], numbers[receiver]
        limits[pair] = min(limits[pair], nanoseconds)
    if (limits >= 0).all():
        return dict.fromkeys(tasks, 0)
    closed = limits
    for between in range(len(tasks)):  # limits by way of other tasks: shortest paths, by Floyd and Warshall
        closed = np.minimum(closed, closed[:, [between]] + closed[[between], :])
    if (closed.diagonal() < 0).any():  # a clock was set meanwhile, and no choice suits all messages
        closed = limits
    ranges = zip(tasks, -closed[0], closed[:, 0], strict=True)
    return {task: round((low + high) / 2) if np.isfinite([low, high]).all() else 0 for task, low, high in ranges}
