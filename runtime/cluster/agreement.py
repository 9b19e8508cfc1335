"""The agreement: what must be the same for all workers, as the chief publishes it on every ps."""

import json
from collections.abc import Mapping

import tensorflow.compat.v1 as tf

from runtime.cluster.notes import Notes
from runtime.cluster.task import Task
from runtime.errors import UnusableError


class Agreement:
    """Settings by name, most of them flags, which every worker compares with those that the chief has published."""

    def __init__(self, task: Task, settings: Mapping[str, object]):
        """Build the ops for `task`, a worker, in the default graph."""
        self._task = task
        self._settings = {name: str(value) for name, value in settings.items()}
        with tf.name_scope("agreement/"):
            notes = [Notes(ps.device, "agreement") for ps in task.others("ps")]
            self._published = [of_ps.read([0]) for of_ps in notes]
            self._publish = [of_ps.write(0, tf.constant(json.dumps(self._settings))) for of_ps in notes]

    def publish(self, session: tf.Session) -> None:
        """Publish the settings of this task, the chief, on every ps."""
        session.run(self._publish)

    def check(self, session: tf.Session) -> None:
        """Compare the settings of this task with the published ones, if there are any yet.

        Raises:
          UnusableError: they differ.
        """
        who, remedy = ", but the chief has --", ": give all workers the same"
        if self._task.is_chief:
            who = ", but the model on the ps tasks is trained with --"
            remedy += ", or end the ps tasks and start them again"
        for (text,) in session.run(self._published):
            published = json.loads(text or "{}")
            for name, value in self._settings.items():
                if (theirs := published.get(name, value)) != value:
                    raise UnusableError(f"{self._task} has --{name}={value}{who}{name}={theirs}{remedy}")
