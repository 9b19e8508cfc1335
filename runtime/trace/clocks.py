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

    If none does, all clocks stay as they are. Otherwise, messages in both directions leave a range for the difference
    between a clock and that of worker 0, as wide as the fastest of them took, there and back. The middles of these
    ranges suit all messages, also those between other tasks. A task without such messages keeps its clock.
    """
    names = {span.task for message in messages for span in message}
    tasks = sorted(names, key=lambda task: (task != "worker 0", task))
    limits = np.where(np.eye(len(tasks)), 0, np.inf)  # of each sender (row) and receiver, in nanoseconds
    for sent, received in messages:
        pair = tasks.index(sent.task), tasks.index(received.task)
        limits[pair] = min(limits[pair], received.end - sent.end)
    if (limits >= 0).all():
        return dict.fromkeys(tasks, 0)
    closed = limits
    for between in range(len(tasks)):  # limits by way of other tasks: shortest paths, by Floyd and Warshall
        closed = np.minimum(closed, closed[:, [between]] + closed[[between], :])
    if (closed.diagonal() < 0).any():  # a clock was set meanwhile, and no choice suits all messages
        closed = limits
    ranges = zip(tasks, -closed[0], closed[:, 0], strict=True)
    return {task: round((low + high) / 2) if np.isfinite([low, high]).all() else 0 for task, low, high in ranges}
