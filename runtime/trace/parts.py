"""What the workers traced: the ops and the messages of each run of a worker's graph.

A part is a file that a worker wrote about one run: a `RunMetadata` of TensorFlow. It holds the ops of that run on the
worker and on each ps, with the times when they began and ended, and the messages between them. Each task has taken the
times by its own clock.
"""

import dataclasses
import glob
import itertools
import os
import re
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf
from absl import logging
from google.protobuf.message import DecodeError

from runtime.records.clocks import Delay, estimate_offsets
from runtime.records.folder import RunFolder

RECEIVE = "RecvTensor"  # the name of all messages, which are recorded where they arrive
PLACE = re.compile(r"/job:(\w+)/replica:\d+/task:(\d+)/(?:device:)?(.*)")
OP = re.compile(r"(?:\[.*?\] )?\S+ = (\w+)\(")  # as in "[cpu 0.3MB 0.3MB] exchange/mul = Mul(exchange/cast, mul/y)"
MESSAGE = re.compile(r"\[([^\]]+)\] .*?edge_\d+_(\S+) from /job:(\w+)/replica:\d+/task:(\d+)/")  # size, maker, sender


@dataclasses.dataclass(eq=False)
class Span:
    """Something that took time on a task."""

    task: str  # such as "ps 0"
    lane: str  # what else did so at the same kind of place, such as "for worker 0"
    name: str
    start: int  # nanoseconds since the epoch, by the clock of the task until `Trace.align()` changes that
    end: int
    details: dict[str, str]


class Message(NamedTuple):
    """A tensor that went from one task to another."""

    sent: Span  # the op that made it
    received: Span  # its way, from when the receiver began to take it until it had arrived


class Trace(NamedTuple):
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

    def since(self, unix_secs: float) -> "Trace":
        """Return what was traced from then on, by the clock of worker 0: a folder may have seen earlier runs."""
        messages = [message for message in self.messages if all(span.start >= 1e9 * unix_secs for span in message)]
        return Trace([span for span in self.spans if span.start >= 1e9 * unix_secs], messages)


def read(folder: RunFolder) -> Trace:
    """Read what the workers have written; name broken files."""
    trace = Trace([], [])
    for path in glob.glob(f"{glob.escape(folder.profile)}/worker-*/step-*.pb"):
        worker = os.path.basename(os.path.dirname(path)).replace("-", " ")
        try:
            with open(path, "rb") as file:
                run = _read_run(worker, tf.RunMetadata.FromString(file.read()).step_stats)
        except (OSError, ValueError, DecodeError) as error:
            logging.error("the trace goes without %s, which cannot be read: %s", path, error)
        else:
            trace.spans.extend(run.spans)
            trace.messages.extend(run.messages)
    return trace


def _read_run(worker: str, step_stats: Any) -> Trace:
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
    return Trace([*itertools.chain(*ops.values()), *received], messages)
