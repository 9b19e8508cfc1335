"""How the clocks of the tasks differ, as far as the messages between them tell."""

import itertools
import math
from collections.abc import Iterable, Sequence

from runtime.trace.parts import Message, Run

Limits = dict[tuple[str, str], float]  # by sender and receiver: nanoseconds


def align(runs: Sequence[Run]) -> dict[str, int]:
    """Set the times in `runs` to one clock, and return the nanoseconds that were added to the clock of each task."""
    messages = [message for run in runs for message in run.messages]
    offsets = estimate_offsets(messages)
    for run in runs:
        for span in run.spans:
            span.start += offsets.get(span.task, 0)
            span.end += offsets.get(span.task, 0)
    for sent, received in messages:  # the receiver was told the start by the sender, whose clock it took for its own
        received.start = min(max(received.start, sent.end), received.end)
    return offsets


def estimate_offsets(messages: Iterable[Message]) -> dict[str, int]:
    """Return by task what to add to its clock, in nanoseconds, so that no message arrives before it was sent.

    Messages in both directions leave a range for the difference of two clocks: it is as wide as the fastest of them
    took, there and back. If the range allows it, a task keeps the clock of another task, since those on one machine
    have the same. Otherwise it gets the middle, as if both directions took equally long. If a clock was set meanwhile,
    no choice suits all messages: some still arrive too early.
    """
    limits: Limits = {}
    for sent, received in messages:
        pair = sent.task, received.task
        limits[pair] = min(limits.get(pair, math.inf), received.end - sent.end)
    tasks = sorted({task for pair in limits for task in pair}, key=lambda task: (task != "worker 0", task))
    limits = _close(tasks, limits)
    offsets: dict[str, int] = {}
    for task in tasks:
        low = max((offset - limits[known, task] for known, offset in offsets.items()), default=-math.inf)
        high = min((offset + limits[task, known] for known, offset in offsets.items()), default=math.inf)
        fitting = [offset for offset in (0, *offsets.values()) if low <= offset <= high]
        ends = [end for end in (low, high) if math.isfinite(end)]
        offsets[task] = fitting[0] if fitting else round(sum(ends) / len(ends))
    return offsets


def _close(tasks: Sequence[str], limits: Limits) -> Limits:
    """Add the limits that follow from the given ones by way of other tasks: shortest paths, by Floyd and Warshall."""
    given = {(first, last): limits.get((first, last), math.inf) for first in tasks for last in tasks}
    closed = given | {(task, task): 0.0 for task in tasks}
    for between, first, last in itertools.product(tasks, repeat=3):
        closed[first, last] = min(closed[first, last], closed[first, between] + closed[between, last])
    return given if any(closed[task, task] < 0 for task in tasks) else closed
