"""How the clocks of the tasks differ, as far as the messages between them tell."""

from collections.abc import Sequence

import numpy as np

from runtime.trace.parts import Message, Trace


def align(trace: Trace) -> None:
    """Set the times in `trace` to one clock."""
    offsets = estimate_offsets(trace.messages)
    for span in trace.spans:
        span.start += offsets.get(span.task, 0)
        span.end += offsets.get(span.task, 0)
    for sent, received in trace.messages:  # the sender told when it began, whose clock the receiver took for its own
        received.start = min(max(received.start, sent.end), received.end)


def estimate_offsets(messages: Sequence[Message]) -> dict[str, int]:
    """Return by task what to add to its clock, in nanoseconds, so that no message arrives before it was sent.

    Messages in both directions leave a range for the difference of two clocks: it is as wide as the fastest of them
    took, there and back. If the range allows it, a task keeps the clock of another task, since those on one machine
    have the same. Otherwise it gets the middle, as if both directions took equally long. If a clock was set meanwhile,
    no choice suits all messages: some still arrive too early.
    """
    names = {span.task for message in messages for span in message}
    tasks = sorted(names, key=lambda task: (task != "worker 0", task))
    limits = np.full((len(tasks), len(tasks)), np.inf)  # of each sender (row) and receiver, in nanoseconds
    for sent, received in messages:
        pair = tasks.index(sent.task), tasks.index(received.task)
        limits[pair] = min(limits[pair], received.end - sent.end)
    # More limits follow by way of other tasks: shortest paths, by Floyd and Warshall.
    closed = np.minimum(limits, np.where(np.eye(len(tasks)), 0, np.inf))
    for between in range(len(tasks)):
        closed = np.minimum(closed, closed[:, [between]] + closed[[between], :])
    if not (closed.diagonal() < 0).any():
        limits = closed
    offsets: list[int] = []
    for task in range(len(tasks)):
        low = max((offset - limits[known, task] for known, offset in enumerate(offsets)), default=-np.inf)
        high = min((offset + limits[task, known] for known, offset in enumerate(offsets)), default=np.inf)
        fitting = [offset for offset in (0, *offsets) if low <= offset <= high]
        middle = np.mean([end for end in (low, high) if np.isfinite(end)] or 0)
        offsets.append(fitting[0] if fitting else round(float(middle)))
    return dict(zip(tasks, offsets, strict=True))
