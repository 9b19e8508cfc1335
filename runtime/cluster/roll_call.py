"""The roll call: what each worker that trains last said of itself, kept on every task that serves it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from runtime.cluster.lives import life_in
from runtime.cluster.notes import Notes
from runtime.cluster.task import Task

# What a worker says of itself.
TRAINING = "training"
REACHED = "reached"  # the chief: the model is good enough, so that all shall stop
TRAINED = "trained"
STOPPED = "stopped"  # by a signal, before the end
EVALUATED = "evaluated"  # the chief's last word: nobody needs its servers any more


class Word(NamedTuple):
    """What a worker last said of itself."""

    text: str  # "" if it has said nothing
    life: str  # tells the process that said it from those before and after it


class RollCall:
    """A note of each client on every server: see `Task`.

    This cures a `server.join()` that never returns, as tensorflow/tensorflow#4713 proposes. That issue uses a queue of
    "done" tokens; reading a note takes nothing away, so the chief and every server can watch it, and a restarted task
    can read it again.
    """

    def __init__(self, task: Task, before_last_word: Callable[[], None] = lambda: None):
        """Build the ops for `task` in the default graph: a client uses every server, a server only itself.

        `before_last_word` is called before this task, the chief, says its last word, after which the servers leave.
        """
        devices = [task.device] if task.only_serves else [server.device for server in task.servers]
        self._task, self._before_last_word = task, before_last_word
        with tf.name_scope("roll_call/"):
            notes = [Notes(device, "roll_call") for device in devices]
            with tf.device(task.device):
                self._said = _build_said(notes, range(task.num_clients))
                self._chief_said = _build_said(notes, [0])
            self._word = tf.placeholder(tf.string, [], name="word")
            if not task.only_serves:
                self._say = [of_server.write(task.index, self._word) for of_server in notes]

    def say(self, session: tf.Session, text: str) -> None:
        """Tell every server what this worker is doing."""
        if text == EVALUATED:
            self._before_last_word()
        session.run(self._say, {self._word: f"{text} {life_in(session, self._task.device)}"})

    def listen(self, session: tf.Session) -> list[Word]:
        """Return what each client last said, by task index.

        A server that was restarted has forgotten everything. What a worker said before that counts as not said.
        """
        return [_to_word(said) for said in session.run(self._said)]

    def listen_to_chief(self, session: tf.Session) -> Word:
        """Return what the chief last said."""
        return _to_word(session.run(self._chief_said)[0])


def _build_said(notes: Sequence[Notes], workers: Sequence[int]) -> tf.Tensor:
    """Build what each of `workers` has said, string [n], or "" if one of the servers has not heard it."""
    heard = tf.stack([of_server.read(workers) for of_server in notes])  # [servers, n]
    return tf.where(tf.reduce_all(tf.not_equal(heard, ""), axis=0), heard[0], tf.fill([len(workers)], ""))


def _to_word(said: bytes) -> Word:
    text, _, life = said.decode().partition(" ")
    return Word(text, life)
