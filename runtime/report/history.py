"""What happened in a run: read from the files in its train directory, and told task by task."""

import itertools
import os
import re
import statistics
from typing import NamedTuple

from runtime.cluster.status import REPLACED
from runtime.display.status import Event, TaskStatus
from runtime.records.clocks import Delay, estimate_offsets
from runtime.records.events import read_run
from runtime.records.files import read_json
from runtime.records.folder import EVALUATOR, RunFolder

SILENCE_SECS = 10.0  # a worker that trains says so more often, unless it was told to do so seldom
NUM_MISSED = 3  # periods without a word of it

STATES = {"restarting": "starting", "stopped": "gone"}  # of a task; the others stay as they are
OTHERS = {"lost": "missed", "back": "found"}  # events about another task, as that one has them
MOMENTS = {
    "checkpoint": "saved a checkpoint at global step {global_step}, in {secs_taken:.1f} s",
    "model": "{origin}, at global step {global_step}",
    "lost": "lost {task} ({reason})",
    "back": "{task} is back",
    "steps lost": "steps lost: {num_steps}, resuming at global step {global_step}",
    "finished": "finished at global step {global_step}",
    "ended": "ended with status {status}: {message}",
    "silent": "is silent from here on: probably killed",
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
    """Read what is there of the last run: a task that sees no shared folder has recorded nothing in it.

    Raises:
      FileNotFoundError: nothing is there.
    """
    recorded, result = _align(read_run(folder)), read_json(folder.result)
    if not recorded and not result:
        raise FileNotFoundError(2, "no run has recorded anything here", folder.path)
    # The evaluator, which may come before the run and go after it, is none of its tasks.
    began_at = next((event["unix_secs"] for event in recorded if event["by"] != EVALUATOR), 0.0)
    recorded = [{**event, "secs": event["unix_secs"] - began_at} for event in recorded]
    events = [event for event in recorded if event["by"] != EVALUATOR]
    evaluations = [event for event in recorded if "test_loss" in event]
    is_over = not events or any(event["event"] == "tested" for event in events)
    name, secs = os.path.basename(os.path.abspath(folder.path)), max(events[-1]["secs"], 1e-3) if events else 0.0
    return History(name, began_at, secs, events, evaluations, result if is_over else {})


def _align(events: list[Event]) -> list[Event]:
    """Return events with times by one clock, that of worker 0, in their order.

    A worker trains after each ps serves, and before that has heard so.
    """
    firsts = dict[tuple[str, str], float]()
    for event in events:
        heard = f"heard worker {event['worker']}: {event['text']}" if event["event"] == "heard" else event["event"]
        firsts.setdefault((event["by"], heard), event["unix_secs"])
    delays = []
    for ps, worker in itertools.permutations({task for task, _ in firsts}, 2):
        served, trained = firsts.get((ps, "serving")), firsts.get((worker, "training"))
        heard = firsts.get((ps, f"heard {worker}: training"))
        if served and trained and heard:
            delays.append(Delay(ps, worker, round(1e9 * (trained - served))))
            delays.append(Delay(worker, ps, round(1e9 * (heard - trained))))
    offsets = estimate_offsets(delays)
    aligned = [{**event, "unix_secs": event["unix_secs"] + offsets.get(event["by"], 0) / 1e9} for event in events]
    return sorted(aligned, key=lambda event: event["unix_secs"])


def tell(run: History, task: str) -> list[Entry]:
    """Return what a task did, from its start to the end of the run without gaps, and then what happened to it."""
    status = TaskStatus()
    spans: list[Entry] = []
    moments = []
    for event, after in itertools.pairwise([*_find_events_about(run, task), {"secs": run.secs}]):
        is_restart = event["event"] == "starting" and bool(spans)
        status.tell(event)
        state = STATES.get(status.state, status.state)
        text = f"{state} {status.note}".strip()
        if spans and spans[-1].text == text:
            spans[-1] = spans[-1]._replace(end=after["secs"])
        elif after["secs"] > event["secs"]:
            spans.append(Entry(event["secs"], after["secs"], state, text))
        if event["event"] in MOMENTS or is_restart:
            text = "started again" if is_restart else MOMENTS[event["event"]].format_map(event).removesuffix(": ")
            text = re.sub("^restored /.*/", "restored ", text)
            is_trouble = event["event"] in ("lost", "steps lost", "silent") or event.get("status")
            # Once a worker has trained; before that, it is how a run begins.
            is_mended = event["event"] in ("back", "model", "starting") and event["secs"] > run.trained_at > 0
            kind = "trouble" if is_trouble or is_mended else "event"
            moments.append(Entry(event["secs"], event["secs"], kind, text))
    return spans + moments


def _find_events_about(run: History, task: str) -> list[Event]:
    """Return the events of a task, and those in which others missed it: one that is killed cannot say so.

    Once another process answers in its place, that has said so itself.
    """
    about = [event for event in run.events if task in (event["by"], OTHERS.get(event["event"]) and event["task"])]
    about = [event if event["by"] == task else {**event, "event": OTHERS[event["event"]]} for event in about]
    about = [event for event in about if (event["event"], event.get("reason")) != ("missed", REPLACED)]
    last = [event for event in about if event["by"] == task][-1]
    at = [event["secs"] for event in run.of_kind("progress", task)]
    gaps = [after - before for before, after in itertools.pairwise(at)] or [0.0]  # long ones where a step takes long
    period_secs = next((event.get("period_secs", 0.0) for event in run.of_kind("training", task)), 0.0)
    silence_secs = max(SILENCE_SECS, NUM_MISSED * max(period_secs, statistics.median(gaps)))
    if last["event"] in ("training", "progress", "evaluated") and run.secs - last["secs"] > silence_secs:
        about.append({**about[-1], "event": "silent"})
    return about
