"""What happened in a run: read from the files in its train directory, and told task by task."""

import glob
import itertools
import os
import re
from typing import NamedTuple

from runtime.display.status import Event, TaskStatus
from runtime.events import read_lines
from runtime.files import read_json
from runtime.folder import RunFolder

GAP_SECS = 600.0  # a run has ended if nothing happens for so long before the next one starts, however it ended
SILENCE_SECS = 10.0  # a worker that trains says so more often

STATES = {"restarting": "starting", "stopped": "gone"}  # of a task; the others stay as they are
MOMENTS = {
    "checkpoint": "saved a checkpoint at global step {global_step}, in {secs_taken:.1f} s",
    "model": "{origin}, at global step {global_step}",
    "lost": "lost {task} ({reason})",
    "back": "{task} is back",
    "steps lost": "steps lost: {num_steps}, going on at global step {global_step}",
    "finished": "finished at global step {global_step}",
    "ended": "ended with status {status}: {message}",
}


class Entry(NamedTuple):
    """What a task did for some time, or what happened at one moment of it."""

    start: float  # seconds since the run began
    end: float  # of a moment: the same
    kind: str  # starting, waiting, serving, training, finishing, done or gone; of a moment: event or trouble
    text: str


class History(NamedTuple):
    """One run."""

    name: str  # of its folder
    began_at: float  # seconds since 1970
    secs: float  # that it took
    events: list[Event]  # of all tasks, each with the task that it is `by`, and `secs` since the run began
    evaluations: list[Event]  # with `secs`, `global_step`, `test_loss`, and the metrics as `test_NAME`
    result: Event  # as in result.json; empty if it is of an earlier run

    @property
    def trained_at(self) -> float:
        """When the first worker began to train, in `secs`."""
        return min((event["secs"] for event in self.of_kind("training")), default=0.0)

    @property
    def first_step(self) -> int:
        """The global step from which it went on: above 0 if an earlier run has left a model."""
        return next((event["global_step"] for event in self.of_kind("model")), 0)

    @property
    def tasks(self) -> list[str]:
        """Those that recorded something, such as "worker 0"; the tenth stands after the ninth."""
        return sorted({event["by"] for event in self.events}, key=lambda task: (len(task), task))

    @property
    def tested(self) -> Event:
        """The last test, with what the model confused; empty if there was none."""
        return [{}, *self.of_kind("tested")][-1]

    def of_kind(self, kind: str, task: str = "") -> list[Event]:
        """Return all events of one kind, of one task or of all, in their order."""
        return [event for event in self.events if event["event"] == kind and task in ("", event["by"])]


def read(folder: RunFolder) -> History:
    """Read what is there: a task that sees no shared folder has recorded nothing in it.

    Raises:
      FileNotFoundError: nothing is there.
    """
    events = []
    for path in glob.glob(f"{glob.escape(folder.events)}/*.jsonl"):
        task = os.path.basename(path).removesuffix(".jsonl").replace("-", " ")
        events += [{**event, "by": task} for event in read_lines(path)]
    events.sort(key=lambda event: event["unix_secs"])
    result = read_json(folder.result)
    if not events and not result:
        raise FileNotFoundError(2, "no run has recorded anything here", folder.path)
    events = _take_last_run(events)
    began_at = events[0]["unix_secs"] if events else 0.0

    def of_run(entries: list[Event]) -> list[Event]:
        return [{**entry, "secs": entry["unix_secs"] - began_at} for entry in entries if entry["unix_secs"] >= began_at]

    events = of_run(events)
    evaluations = of_run(read_lines(folder.evaluations))
    tests = [event for event in events if "test_loss" in event]
    evaluations += tests
    name, secs = os.path.basename(os.path.abspath(folder.path)), max(events[-1]["secs"], 1e-3) if events else 0.0
    return History(name, began_at, secs, events, evaluations, result if tests or not events else {})


def _take_last_run(events: list[Event]) -> list[Event]:
    """Return the events since nothing was left of the run before, without starts after it that had nothing to train.

    A run has ended once each of its tasks has, as it recorded, or is started again before it does anything else. Tasks
    that see no shared folder record nothing in it: a model that the chief finds on them tells that they live.
    """
    starts_next = {event["by"]: event["event"] == "ended" for event in events}  # by task: whether it is gone
    end = len(events)
    for index in reversed(range(len(events))):
        event = events[index]
        starts_next[event["by"]] = event["event"] == "starting"
        # Any other event after so long a gap tells that the run has slept, with its machine.
        is_late = event["unix_secs"] - events[max(index - 1, 0)]["unix_secs"] > GAP_SECS
        if event["event"] == "starting" and (is_late or all(starts_next.values())):
            run = events[index:end]
            origin = next((event["origin"] for event in run if event["event"] == "model"), "")
            if origin.startswith("the ps tasks hold"):
                continue
            if run[-1]["event"] != "ended" or any(event["event"] == "training" for event in run):
                return run
            end = index
    return events[:end] or events


def tell(run: History, task: str) -> list[Entry]:
    """Return what a task did, from its start to the end of the run without gaps, and then what happened to it."""
    status = TaskStatus()
    spans: list[Entry] = []
    moments = []
    for event, after in itertools.pairwise([*_with_deaths(run, task), {"secs": run.secs}]):
        status.tell(event)
        state = STATES.get(status.state, status.state)
        text = f"{state} {status.note}".strip()
        if spans and spans[-1].text == text:
            spans[-1] = spans[-1]._replace(end=after["secs"])
        elif after["secs"] > event["secs"]:
            spans.append(Entry(event["secs"], after["secs"], state, text))
        if event["event"] in MOMENTS:
            text = MOMENTS[event["event"]].format_map(event).removesuffix(": ")
            text = re.sub("^restored /.*/", "restored ", text)
            is_trouble = event["event"] in ("lost", "steps lost") or event.get("status")
            # Once a worker has trained; before that, it is how a run begins.
            is_mended = event["event"] in ("back", "model") and event["secs"] > run.trained_at > 0
            kind = "trouble" if is_trouble or is_mended else "event"
            moments.append(Entry(event["secs"], event["secs"], kind, text))
    return spans + moments


def _with_deaths(run: History, task: str) -> list[Event]:
    """Return the events of a task, also the end of each process that was killed, and so could not record it."""
    of_task = [event for event in run.events if event["by"] == task]
    told = []
    for event, after in zip(of_task, [*of_task[1:], None], strict=True):
        told.append(event)
        if event["event"] == "ended" or (after and after["event"] != "starting"):
            continue
        earliest, latest = event["secs"], after["secs"] if after else run.secs
        missed = [e["secs"] for e in run.of_kind("lost") if e["task"] == task and earliest <= e["secs"] <= latest]
        is_silent = event["event"] in ("training", "progress") and latest - earliest > SILENCE_SECS
        if missed or after or is_silent:
            secs = missed[0] if missed else latest if after else earliest
            told.append({"event": "ended", "secs": secs, "status": "unknown", "message": "killed, it seems"})
    return told
