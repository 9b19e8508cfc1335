"""The roll call: what each worker that trains last said of itself, kept on every task that serves it."""

from typing import NamedTuple

import tensorflow.compat.v1 as tf

from runtime.cluster.connection import life_in, session_at
from runtime.cluster.notes import Notes
from runtime.cluster.probes import REFUSED, ask_all, probe
from runtime.cluster.task import Peer, Task
from runtime.cluster.waiting import Watch, wait_until_nothing_is_missing

ROLL_CALL = "roll_call"  # the name of its notes

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

    This cures a `server.join()` that never returns. The queue of tensorflow/tensorflow#4713 does so too, but reading a
    note takes nothing away: the chief and every server can watch it, and a restarted task can read it again.
    """

    def __init__(self, task: Task):
        """Build the ops for `task` in the default graph: a client uses every server, a server only itself."""
        devices = [task.device] if task.only_serves else [server.device for server in task.servers]
        self._task, self._life = task, ""
        with tf.name_scope("roll_call/"):
            notes = [Notes(device, ROLL_CALL) for device in devices]
            with tf.device(task.device):
                heard = tf.stack([of_server.read(range(task.num_clients)) for of_server in notes])  # [servers, clients]
                is_heard_by_all = tf.reduce_all(tf.not_equal(heard, ""), axis=0)
                self._said = tf.where(is_heard_by_all, heard[0], tf.fill([task.num_clients], ""))
            self._word = tf.placeholder(tf.string, [], name="word")
            if not task.only_serves:
                self._say = [of_server.write(task.index, self._word) for of_server in notes]

    def say(self, session: tf.Session, text: str) -> None:
        """Tell every server what this worker is doing."""
        # Asked once, of a new session: one that is closing would not answer, and keep Python from everything else.
        self._life = self._life or life_in(session, self._task.device)
        session.run(self._say, {self._word: f"{text} {self._life}"})

    def listen(self, session: tf.Session) -> list[Word]:
        """Return what each client last said, by task index: the chief's word is the first.

        A server that was restarted has forgotten everything. What a worker said before that counts as not said.
        """
        words = (said.decode().partition(" ") for said in session.run(self._said))
        return [Word(text, life) for text, _, life in words]


def dismiss_servers(task: Task, watch: Watch) -> None:
    """Say the last word of the chief, `task`, to every server, and stop `watch`: each leaves once it has heard it.

    Raises:
      OpError: a server was lost.
      TimeoutError: a server has not heard it within the recovery timeout.
    """
    watch.stop()  # it would take those that leave for lost
    told: set[Peer] = set()  # they may have heard it, or will once they go on

    def dismiss(server: Peer) -> bool:
        """Say it in a session with `server` alone; return whether that has heard it."""
        with tf.Graph().as_default() as graph, tf.device(server.device):
            say = Notes(server.device, ROLL_CALL).write(0, tf.constant(EVALUATED))
        try:
            with session_at(server.address, graph) as session:
                session.run(say)
                told.add(server)
        except tf.errors.OpError:
            is_gone = probe(server.address) == REFUSED
            if is_gone and server not in told:
                raise
            told.add(server)
            return is_gone
        return True

    deaf = task.servers

    def describe_deaf() -> str:
        nonlocal deaf
        deaf = [server for server, has_heard in ask_all(deaf, dismiss).items() if not has_heard]
        return f"{', '.join(map(str, deaf))} to hear that the run has ended" if deaf else ""

    remedy = "the result is saved; let go on or end what does not answer, and start this task again"
    wait_until_nothing_is_missing(task, describe_deaf, watch.timeouts.recovery_secs, remedy)
