"""A trace in the format of Chrome, which Perfetto reads too: a process for each task, with lanes.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from runtime.trace.parts import Run, Span

Event = dict[str, Any]
FIRST_PID, FIRST_TID = 1001, 2001  # Perfetto shows them after the names: nobody should take them for those of tasks


class Lane(NamedTuple):
    """Where spans are drawn that do not overlap."""

    job_name: str
    task_index: int
    name: str
    number: int  # among those with this name on the task, from 1

    def __str__(self) -> str:
        return f"{self.name} ({self.number})" if self.number > 1 else self.name


def make_trace(runs: Sequence[Run], offsets: Mapping[str, int]) -> dict[str, list[Event]]:
    """Return a trace as JSON can express it.

    Args:
      runs: of all workers, with times by one clock; each task appears once, however many workers it served.
      offsets: what was added to the clock of each task, in nanoseconds.
    """
    spans = [span for run in runs for span in run.spans]
    messages = [message for run in runs for message in run.messages if message.sent.end <= message.received.end]
    lanes = _assign_lanes(spans)
    tids = {lane: tid for tid, lane in enumerate(sorted(set(lanes.values())), FIRST_TID)}
    pids = {task: pid for pid, task in enumerate(dict.fromkeys(lane[:2] for lane in tids), FIRST_PID)}
    began_at = min(span.start for span in spans)

    def locate(span: Span, moment: int) -> Event:
        lane = lanes[span]
        return {"pid": pids[lane[:2]], "tid": tids[lane], "ts": (moment - began_at) / 1e3}  # microseconds

    def locate_end(span: Span) -> Event:  # still inside: by that, viewers know to which span an arrow belongs
        return locate(span, max(span.start, span.end - 1))

    events: list[Event] = []
    for (job_name, task_index), pid in pids.items():
        task = f"{job_name} {task_index}"
        events.append(_describe("process_name", {"name": task}, pid))
        if offset := offsets.get(task):
            events.append(_describe("process_labels", {"labels": f"clock moved by {offset / 1e6:+.3f} ms"}, pid))
    for lane, tid in tids.items():
        events.append(_describe("thread_name", {"name": str(lane)}, pids[lane[:2]], tid))
    for span in spans:
        what = {"name": span.name, "dur": (span.end - span.start) / 1e3, "args": span.details}
        events.append({"ph": "X", "cat": "op", **what, **locate(span, span.start)})
    for number, (sent, received) in enumerate(messages):
        arrow = {"cat": "message", "name": received.details["tensor"], "id": number}
        events.append({"ph": "s", **arrow, **locate_end(sent)})
        events.append({"ph": "f", "bp": "e", **arrow, **locate_end(received)})
    return {"traceEvents": events}


def _assign_lanes(spans: Sequence[Span]) -> dict[Span, Lane]:
    """Put each span into the first lane of its task and name that is free at that time."""
    lanes = {}
    free_at: dict[Lane, int] = {}
    for span in sorted(spans, key=lambda span: span.start):
        job_name, task_index = span.task.split()
        of_name = (Lane(job_name, int(task_index), span.lane, number) for number in itertools.count(1))
        lane = next(lane for lane in of_name if free_at.get(lane, span.start) <= span.start)
        lanes[span], free_at[lane] = lane, span.end
    return lanes


def _describe(what: str, values: Event, pid: int, tid: int = 0) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": values}
