"""How far a run is, and what each of its tasks does: told from the events that the tasks record."""

from collections.abc import Sequence
from typing import Any

Event = dict[str, Any]

STATES = {  # by the event with which they begin
    "starting": "starting",
    "restarted": "restarting",
    "serving": "serving",
    "training": "training",
    "progress": "training",
    "finished": "finishing",
    "ended": "done",
}
HAS_TRAINED = ("training", "finishing", "done")


class TaskStatus:
    """What one task does, how far it is, and how fast."""

    def __init__(self) -> None:
        self.state = "starting"  # or restarting, waiting, serving, training, finishing, done, or stopped
        self.note = ""  # such as for whom it waits
        self.local_step: int | None = None  # of this process
        self.loss: float | None = None  # of one recent batch
        self.examples_per_sec = 0.0  # as of late; after training, of all its training
        self._base = self.state  # what it does when it does not wait
        self._has_started = False

    def tell(self, event: Event) -> None:
        """Take in an event of it."""
        kind = event["event"]
        if kind == "waiting":
            self.state, self.note = "waiting", f"for {event['missing']}"
        elif kind == "waited":
            self.state, self.note = self._base, ""
        elif kind in ("missed", "silent") and self._base not in ("done", "stopped"):  # as others see it
            self.state, self.note = "stopped", ""
        elif kind == "found":
            self.state, self.note = self._base, ""
        elif kind in STATES:
            self.state, self.note = STATES[kind], event.get("note", "")
            if kind == "starting" and self._has_started:
                self.state = "restarting"
            elif kind == "ended" and event["status"]:
                self.state, self.note = "stopped", f"with status {event['status']}"
            self._base, self._has_started = self.state, True
        if "local_step" in event:
            self.local_step, self.loss = event["local_step"], event.get("loss", self.loss)
            self.examples_per_sec = event.get("examples_per_sec", 0.0)  # unknown as a session begins


class RunStatus:
    """How far the whole run is, and its tasks."""

    def __init__(self, names: Sequence[str]):
        """Begin with tasks, such as "worker-0", of which nothing is known yet."""
        self.tasks = {name: TaskStatus() for name in names}
        self.global_step = 0
        self.train_steps: int | None = None  # the global step at which it ends
        self.loss: float | None = None  # of one recent batch
        self.test: tuple[str, float] | None = None  # the first metric of the last test, such as "test accuracy"

    def tell(self, name: str, event: Event) -> None:
        """Take in an event of a task, or of the evaluator, which is none of them."""
        if name in self.tasks:
            self.tasks[name].tell(event)
        self.train_steps = event.get("train_steps", self.train_steps)
        self.loss = event.get("loss", self.loss)
        if metrics := [name for name in event if name.startswith("test_")]:
            self.test = metrics[0].replace("_", " "), event[metrics[0]]
        if event["event"] in ("model", "steps lost"):
            self.global_step = min(self.global_step, event["global_step"])
        elif "local_step" in event:
            self.global_step = max(self.global_step, event["global_step"])

    @property
    def examples_per_sec(self) -> float:
        """Of the whole cluster."""
        return sum(task.examples_per_sec for task in self.tasks.values() if task.state in HAS_TRAINED)
