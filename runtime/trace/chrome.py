"""A trace in the format of Chrome, which Perfetto reads too: a process for each task, with lanes.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import itertools
from collections.abc import Sequence
from typing import Any

from runtime.trace.parts import Span, Trace

Event = dict[str, Any]
Lane = tuple[str, str, int]  # where spans are drawn that do not overlap: a task, a name, and which of that name, from 1
FIRST_PID, FIRST_TID = 1001, 2001  # Perfetto shows them after the names: nobody should take them for those of tasks


def make_events(trace: Trace) -> list[Event]:
    """Return what a trace with times by one clock is in that format, as JSON can express it.

    Each task appears once, however many workers it served.
    """
    spans = sorted(trace.spans, key=lambda span: span.start)
    tasks = sorted({span.task for span in spans}, key=lambda task: (len(task), task))  # "worker 10" after 9
    pids = {task: pid for pid, task in enumerate(tasks, FIRST_PID)}
    events = [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": task}} for task, pid in pids.items()]
    places: dict[Span, Event] = {}

    def locate(span: Span, moment: int) -> Event:
        return {**places[span], "ts": (moment - spans[0].start) / 1e3}  # microseconds

    for tid, ((task, name, number), in_lane) in enumerate(sorted(_assign_lanes(spans).items()), FIRST_TID):
        place = {"pid": pids[task], "tid": tid}
        title = f"{name} ({number})" if number > 1 else name
        events.append({"ph": "M", "name": "thread_name", **place, "args": {"name": title}})
        for span in in_lane:
            places[span] = place
            what = {"name": span.name, "dur": (span.end - span.start) / 1e3, "args": span.details}
            events.append({"ph": "X", "cat": "op", **what, **locate(span, span.start)})
    for number, (sent, received) in enumerate(trace.messages):
        if sent.end <= received.end:
            arrow = {"cat": "message", "name": received.details["tensor"], "id": number}
            # Still inside of its spans: by that, viewers know to which an end belongs.
            ends = [locate(span, max(span.start, span.end - 1)) for span in (sent, received)]
            events += [{"ph": "s", **arrow, **ends[0]}, {"ph": "f", "bp": "e", **arrow, **ends[1]}]
    return events


def _assign_lanes(spans: Sequence[Span]) -> dict[Lane, list[Span]]:
    """Put each span, in the order of time, into the first lane of its task and name that is free."""
    lanes: dict[Lane, list[Span]] = {}
    for span in spans:
        of_name = ((span.task, span.lane, number) for number in itertools.count(1))
        lane = next(lane for lane in of_name if lane not in lanes or lanes[lane][-1].end <= span.start)
        lanes.setdefault(lane, []).append(span)
    return lanes
