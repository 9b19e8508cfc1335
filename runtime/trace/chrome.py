"""A trace in the format of Chrome, which Perfetto reads too: a process for each task, with lanes.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from runtime.trace.parts import Span, Trace

Event = dict[str, Any]
FIRST_PID, FIRST_TID = 1001, 2001  # Perfetto shows them after the names: nobody should take them for those of tasks


class Lane(NamedTuple):
    """Where spans are drawn that do not overlap."""

    task: str
    name: str
    number: int  # among those with this name on the task, from 1


def make_events(trace: Trace) -> list[Event]:
    """Return what a trace with times by one clock is in that format, as JSON can express it.

    Each task appears once, however many workers it served.
    """
    spans = sorted(trace.spans, key=lambda span: span.start)
    messages = [message for message in trace.messages if message.sent.end <= message.received.end]
    lanes = _assign_lanes(spans)
    in_order = sorted(set(lanes.values()), key=lambda lane: (len(lane.task), lane))  # "worker 10" after 9
    tids = {lane: tid for tid, lane in enumerate(in_order, FIRST_TID)}
    pids = {task: pid for pid, task in enumerate(dict.fromkeys(lane.task for lane in in_order), FIRST_PID)}

    def locate(span: Span, moment: int) -> Event:
        microseconds = (moment - spans[0].start) / 1e3
        return {"pid": pids[span.task], "tid": tids[lanes[span]], "ts": microseconds}

    def locate_end(span: Span) -> Event:  # still inside: by that, viewers know to which span an arrow belongs
        return locate(span, max(span.start, span.end - 1))

    events = [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": task}} for task, pid in pids.items()]
    for lane, tid in tids.items():
        name = f"{lane.name} ({lane.number})" if lane.number > 1 else lane.name
        events.append({"ph": "M", "name": "thread_name", "pid": pids[lane.task], "tid": tid, "args": {"name": name}})
    for span in spans:
        what = {"name": span.name, "dur": (span.end - span.start) / 1e3, "args": span.details}
        events.append({"ph": "X", "cat": "op", **what, **locate(span, span.start)})
    for number, (sent, received) in enumerate(messages):
        arrow = {"cat": "message", "name": received.details["tensor"], "id": number}
        events.append({"ph": "s", **arrow, **locate_end(sent)})
        events.append({"ph": "f", "bp": "e", **arrow, **locate_end(received)})
    return events


def _assign_lanes(spans: Sequence[Span]) -> dict[Span, Lane]:
    """Put each span, in the order of time, into the first lane of its task and name that is free."""
    lanes = {}
    free_at: dict[Lane, int] = {}
    for span in spans:
        of_name = (Lane(span.task, span.lane, number) for number in itertools.count(1))
        lanes[span] = next(lane for lane in of_name if free_at.get(lane, span.start) <= span.start)
        free_at[lanes[span]] = span.end
    return lanes
