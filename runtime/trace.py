"""One trace of the whole cluster for Perfetto or `chrome://tracing`, merged from the traces of the workers.

A part is a file that a worker wrote about one run: a `RunMetadata` of TensorFlow. It holds the ops of that run on the
worker and on each ps, with the times when they began and ended, and the messages between them. Each task has taken the
times by its own clock. `python -m runtime.trace TRAIN_DIR` merges the parts, also of a run that goes on or was killed.
"""

import argparse
import dataclasses
import glob
import itertools
import json
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from runtime.process import environment  # noqa: F401  # first: it sets what TensorFlow reads when it is imported

# isort: split
import tensorflow.compat.v1 as tf
from absl import logging
from google.protobuf.message import DecodeError

from runtime.records.clocks import Delay, estimate_offsets
from runtime.records.events import read_run
from runtime.records.files import replace_file
from runtime.records.folder import RunFolder

RECEIVE = "RecvTensor"  # the name of all messages, which are recorded where they arrive
PLACE = re.compile(r"/job:(\w+)/replica:\d+/task:(\d+)/(?:device:)?(.*)")
OP = re.compile(r"(?:\[.*?\] )?\S+ = (\w+)\(")  # as in "[cpu 0.3MB 0.3MB] exchange/mul = Mul(exchange/cast, mul/y)"
MESSAGE = re.compile(r"\[([^\]]+)\] .*?edge_\d+_(\S+) from /job:(\w+)/replica:\d+/task:(\d+)/")  # size, maker, sender
Event = dict[str, Any]
Lane = tuple[str, str, int]  # where spans are drawn that do not overlap: a task, a name, and which of that name, from 1
FIRST_PID, FIRST_TID = 1001, 2001  # Perfetto shows them after the names: nobody should take them for those of tasks


@dataclasses.dataclass(eq=False)
class Span:
    """Something that took time on a task."""

    task: str  # such as "ps 0"
    lane: str  # what else did so at the same kind of place, such as "for worker 0"
    name: str
    start: int  # nanoseconds since the epoch, by the clock of the task until `Profile.align()` changes that
    end: int
    details: dict[str, str]


class Message(NamedTuple):
    """A tensor that went from one task to another."""

    sent: Span  # the op that made it
    received: Span  # its way, from when the receiver began to take it until it had arrived


class Profile(NamedTuple):
    """What the workers traced."""

    spans: list[Span]  # the ops, and the messages
    messages: list[Message]  # those whose sender is known

    def align(self) -> None:
        """Set the times to one clock."""
        delays = [Delay(sent.task, received.task, received.end - sent.end) for sent, received in self.messages]
        offsets = estimate_offsets(delays)
        for span in self.spans:
            span.start += offsets.get(span.task, 0)
            span.end += offsets.get(span.task, 0)
        for sent, received in self.messages:  # the sender told when it began, whose clock the receiver took for its own
            received.start = min(max(received.start, sent.end), received.end)

    def since(self, unix_secs: float) -> "Profile":
        """Return what was traced from then on, by the clock of worker 0: a folder may have seen earlier runs."""
        messages = [message for message in self.messages if all(span.start >= 1e9 * unix_secs for span in message)]
        return Profile([span for span in self.spans if span.start >= 1e9 * unix_secs], messages)


def read(folder: RunFolder) -> Profile:
    """Read what the workers have written; name broken files."""
    trace = Profile([], [])
    for path in glob.glob(f"{glob.escape(folder.profile)}/worker-*/step-*.pb"):
        worker = os.path.basename(os.path.dirname(path)).replace("-", " ")
        try:
            with open(path, "rb") as file:
                run = _read_run(worker, tf.RunMetadata.FromString(file.read()).step_stats)
        except (OSError, ValueError, DecodeError) as error:
            logging.error("the trace omits %s, which cannot be read: %s", path, error)
        else:
            trace.spans.extend(run.spans)
            trace.messages.extend(run.messages)
    return trace


def _read_run(worker: str, step_stats: Any) -> Profile:
    """Read a run of `worker` from TensorFlow's `StepStats`.

    Raises:
      ValueError: it has no ops.
    """
    ops: dict[tuple[str, str], list[Span]] = {}  # by task and name: those in a loop run often
    received = []
    for device_stats in step_stats.dev_stats:
        place = PLACE.match(device_stats.device)
        task, device = (f"{place[1]} {place[2]}", place[3]) if place else (worker, device_stats.device)
        lane = device if task == worker else f"for {worker}"
        for stats in device_stats.node_stats:
            name = stats.node_name
            start = stats.all_start_nanos or 1000 * stats.all_start_micros  # messages have microseconds only
            end = start + (stats.all_end_rel_nanos or 1000 * stats.all_end_rel_micros)
            match = (MESSAGE if name == RECEIVE else OP).match(stats.timeline_label)
            if name != RECEIVE:
                span = Span(task, lane, match[1] if match else name, start, end, {"op": name})
                ops.setdefault((task, name), []).append(span)
            elif match:
                size, tensor, job_name, index = match.groups()
                details = {"tensor": tensor, "size": size, "from": f"{job_name} {index}"}
                received.append(Span(task, f"messages from {details['from']}", RECEIVE, start, end, details))
    if not ops:
        raise ValueError("it has no ops")
    makers = [ops.get((span.details["from"], span.details["tensor"]), []) for span in received]
    messages = [Message(maker[0], span) for maker, span in zip(makers, received, strict=True) if len(maker) == 1]
    return Profile([*itertools.chain(*ops.values()), *received], messages)


def make_events(trace: Profile) -> list[Event]:
    """Return what a profile with times by one clock is in the format of Chrome, a process for each task, with lanes.

    The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU

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


def write(folder: RunFolder) -> str:
    """Merge what the workers traced into `trace.json`, and return its path, or "" if there is none.

    The run is over by then. So a trace that cannot be made is only said, and so are files that cannot be read.
    """
    trace = read(folder)
    if not trace.spans:
        logging.error("there is no trace in %s: no worker has traced any of the --profile_steps there", folder.path)
        return ""
    try:
        trace.align()
        starts = [event["unix_secs"] for event in read_run(folder) if event["by"] == "worker 0"]
        last = trace.since(starts[0] if starts else 0)
        events = make_events(last if last.spans else trace)  # the last run may have traced nothing
        replace_file(folder.trace, json.dumps({"traceEvents": events}).encode())
    except (OSError, ValueError) as error:
        logging.error("the trace of all tasks could not be made (%s): %s", error, folder.remedy_for(str(error)))
        return ""
    return folder.trace


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m runtime.trace", description="Merge the traces of a run into one.")
    parser.add_argument("train_dir", metavar="TRAIN_DIR")
    path = write(RunFolder(parser.parse_args().train_dir))
    print(path, end="\n" * bool(path))
    sys.exit(not path)
