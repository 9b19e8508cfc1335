"""What happened in a run: read from the files in its train directory, and told task by task."""

import glob
import itertools
import json
import os
import re
from typing import Any, NamedTuple

from runtime.events import EVENTS_FOLDER, read_lines

GAP_SECS = 600.0  # nothing happens for so long before the next run in one folder starts; the report is of the last
SILENCE_SECS = 10.0  # a worker that trains says so more often

Event = dict[str, Any]


class Span(NamedTuple):
    """What a task did for some time."""

    state: str  # starting, waiting, serving, training, testing or gone
    start: float  # seconds since the run began
    end: float
    note: str = ""  # such as for whom it waits


class Mark(NamedTuple):
    """What happened at one moment."""

    secs: float  # since the run began
    text: str
    is_trouble: bool


class History(NamedTuple):
    """One run."""

    name: str  # of its folder
    began_at: float  # seconds since 1970
    secs: float  # that it took
    events: dict[str, list[Event]]  # of each task, such as "worker 0", each with `secs` since the run began
    evaluations: list[Event]  # with `secs`, `global_step`, `test_accuracy` and `test_loss`
    result: Event  # as in result.json, or empty

    def of_kind(self, kind: str) -> list[tuple[str, Event]]:
        """Return all events of one kind, each with its task, in their order."""
        found = [(task, event) for task, events in self.events.items() for event in events if event["event"] == kind]
        return sorted(found, key=lambda pair: pair[1]["secs"])


def read(train_dir: str) -> History:
    """Read what is there: a task that sees no shared folder has recorded nothing in it.

    Raises:
      FileNotFoundError: nothing is there.
    """
    files = sorted(glob.glob(os.path.join(glob.escape(train_dir), EVENTS_FOLDER, "*.jsonl")), key=_natural)
    events = {os.path.basename(path)[: -len(".jsonl")].replace("-", " "): read_lines(path) for path in files}
    result = _read_result(train_dir)
    recorded = sorted((event["unix_secs"], event["event"]) for of_task in events.values() for event in of_task)
    moments = [at for at, _ in recorded]
    if not moments and not result:
        raise FileNotFoundError(2, "no run has recorded anything here", train_dir)
    starts = [
        after
        for (before, _), (after, kind) in itertools.pairwise(recorded)
        if after - before > GAP_SECS and kind == "starting"  # else the run has slept, with its machine
    ]
    began_at = [0.0, *moments[:1], *starts][-1]
    evaluations = read_lines(os.path.join(train_dir, "eval.jsonl"))
    for entry in [*evaluations, *(event for of_task in events.values() for event in of_task)]:
        entry["secs"] = entry["unix_secs"] - began_at
    kept = {task: [event for event in of_task if event["secs"] >= 0] for task, of_task in events.items()}
    evaluations = [entry for entry in evaluations if entry["secs"] >= 0]
    tested = [event for of_task in kept.values() for event in of_task if event["event"] == "tested"]
    if tested and result:
        evaluations.append({**result, "secs": tested[-1]["secs"]})
    name = os.path.basename(os.path.abspath(train_dir))
    secs = max(moments[-1] - began_at, 1e-3) if moments else 0.0
    return History(name, began_at, secs, {task: of for task, of in kept.items() if of}, evaluations, result)


def _natural(path: str) -> tuple[str, int]:
    job_name, _, index = os.path.basename(path).split(".")[0].partition("-")
    return job_name, int(index) if index.isdigit() else 0


def _read_result(train_dir: str) -> Event:
    try:
        with open(os.path.join(train_dir, "result.json"), encoding="utf-8") as file:
            result = json.load(file)
        return result if isinstance(result, dict) else {}
    except (OSError, ValueError):
        return {}


STATES = {"starting": "starting", "serving": "serving", "training": "training", "finished": "testing"}


def find_spans(history: History, task: str) -> list[Span]:
    """Return what one task did, from its start to its end or to the end of the run, without gaps."""
    spans: list[Span] = []
    base = current = "gone"
    start, note, last_seen = 0.0, "", 0.0

    def change(state: str, at: float, new_note: str = "") -> None:
        nonlocal current, start, note
        if at > start and (spans or current != "gone"):
            spans.append(Span(current, start, at, note))
        current, start, note = state, at, new_note

    for event in history.events[task]:
        kind, at = event["event"], event["secs"]
        if kind == "starting":
            if current != "gone":  # its last process ended without a word
                change("gone", _end_of_life(history, task, last_seen, at))
            base = "starting"
            change(base, at)
        elif kind == "waiting":
            change("waiting", at, f"for {event['missing']}")
        elif kind == "waited":
            change(base, at)
        elif kind == "ended":
            base = "gone"
            change(base, at)
        elif kind in STATES:
            base = STATES[kind]
            change(base, at)
        last_seen = at
    end = _end_of_life(history, task, last_seen, history.secs)
    if current != "gone":
        is_silent = current == "training" and end - last_seen > SILENCE_SECS
        change("gone", last_seen if is_silent else end)
        change("gone", history.secs)
    return spans


def _end_of_life(history: History, task: str, last_seen: float, latest: float) -> float:
    """Return when a task died that others have missed since it was last seen, or `latest`."""
    missed = [e["secs"] for _, e in history.of_kind("lost") if e["task"] == task and last_seen <= e["secs"] <= latest]
    return min(missed, default=latest)


def find_marks(history: History, task: str) -> list[Mark]:
    """Return what else happened at one task."""
    marks, is_alive = [], False
    for event in history.events[task]:
        if event["event"] == "starting" and is_alive:
            marks.append(Mark(event["secs"], "started again: its last process had ended without a word", True))
        is_alive = event["event"] != "ended"
        if described := _describe(event):
            marks.append(Mark(event["secs"], *described))
    return marks


def _describe(event: Event) -> tuple[str, bool] | None:
    """Return what to say of an event, and whether it is trouble; None if its span says it."""
    kind = event["event"]
    if kind == "checkpoint":
        return f"saved a checkpoint at global step {event['global_step']}, in {event['secs_taken']:.1f} s", False
    if kind == "model":
        origin = re.sub(r"/\S*/", "", event["origin"])  # the path of a checkpoint
        return f"{origin}, at global step {event['global_step']}", False
    if kind == "lost":
        return f"lost {event['task']} ({event['reason']})", True
    if kind == "back":
        return f"{event['task']} is back", False
    if kind == "steps lost":
        return f"{event['num_steps']} steps are lost, going on at global step {event['global_step']}", True
    if kind == "finished":
        return f"finished at global step {event['global_step']}", False
    if kind == "ended":
        message = f": {event['message']}" if event["message"] else ""
        return f"ended with status {event['status']}{message}", event["status"] != 0
    return None
