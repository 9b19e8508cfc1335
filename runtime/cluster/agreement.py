"""The agreement: what must be the same for all workers, as the chief publishes it on every ps."""

import json
from collections.abc import Mapping

import tensorflow.compat.v1 as tf

from runtime.cluster.roll_call import build_entry
from runtime.cluster.task import Task
from runtime.errors import UnusableError


class Agreement:
    """Settings by name, most of them flags, which every worker compares with those that the chief has published."""

    def __init__(self, task: Task, settings: Mapping[str, object]):
        """Build the ops for `task`, a worker, in the default graph."""
        self._task = task
        self._settings = {name: str(value) for name, value in settings.items()}
        self._entries = [build_entry(ps, "settings") for ps in range(len(task.ps_hosts))]
        with tf.device(task.device), tf.name_scope("roll_call/"):
            self._is_published = [entry.is_initialized() for entry in self._entries]
        with tf.name_scope("roll_call/"):
            self._text = tf.placeholder(tf.string, [], name="settings")
            self._publish = [entry.assign(self._text, read_value=False) for entry in self._entries]

    def publish(self, session: tf.Session) -> None:
        """Publish the settings of this task, the chief, on every ps."""
        session.run(self._publish, {self._text: json.dumps(self._settings)})

    def check(self, session: tf.Session) -> None:
        """Compare the settings of this task with the published ones, if there are any yet.

        Raises:
          UnusableError: they differ.
        """
        for entry, is_published in zip(self._entries, session.run(self._is_published), strict=True):
            published = json.loads(session.run(entry)) if is_published else {}
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
