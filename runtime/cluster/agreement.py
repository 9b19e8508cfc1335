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
            self._text = tf.placeholder(tf.string, [], name="settings")
            self._publish = [of_ps.write(0, self._text) for of_ps in notes]

    def publish(self, session: tf.Session) -> None:
        """Publish the settings of this task, the chief, on every ps."""
        session.run(self._publish, {self._text: json.dumps(self._settings)})

    def check(self, session: tf.Session) -> None:
        """Compare the settings of this task with the published ones, if there are any yet.

        Raises:
          UnusableError: they differ.
        """
        for (text,) in session.run(self._published):
            published = json.loads(text or "{}")
            for name, value in self._settings.items():
                if published.get(name, value) != value:
                    self._refuse(name, published[name])

    def _refuse(self, name: str, theirs: str) -> None:
        what = f"{self._task} has --{name}={self._settings[name]}"
        if self._task.is_chief:
            raise UnusableError(
                f"{what}, but the model on the ps tasks is trained with --{name}={theirs}: give all workers the same,"
                " or end the ps tasks and start them again"
            )
        raise UnusableError(f"{what}, but the chief has --{name}={theirs}: give all workers the same")
