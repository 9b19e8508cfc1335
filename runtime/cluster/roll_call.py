"""The roll call: what each worker that trains last said of itself. A task that only serves ends as these say."""

import signal
import time
from typing import NamedTuple

import tensorflow.compat.v1 as tf
from absl import logging

from runtime import events
from runtime.cluster import signals, status
from runtime.cluster.notes import Notes
from runtime.cluster.task import Peer, Task
from runtime.cluster.waiting import MIN_POLL_SECS, POLL_SECS, Watch, wait_until_nothing_is_missing
from runtime.process import STOP_SECS, end_process
from runtime.threads import start_guard

ROLL_CALL = "roll_call"  # the name of its notes

# What a worker says of itself.
TRAINING = "training"
REACHED = "reached"  # the chief: the model is good enough, so that all shall stop
TRAINED = "trained"
STOPPED = "stopped"  # by a signal, before the end
EVALUATED = "evaluated"  # the chief's last word: nobody needs its servers any more

LINGER_SECS = 0.5  # how long a task stays after the last word, for the chief to get the answer of each, if it is there


class Word(NamedTuple):
    """What a worker last said of itself."""

    text: str  # "" if it has said nothing
    incarnation: str  # of the process that said it


class RollCall:
    """A note of each client on every server: see `Task`.

    This cures a `server.join()` that never returns. The queue of tensorflow/tensorflow#4713 does so too, but reading a
    note takes nothing away: the chief and every server can watch it, and a restarted task can read it again.
    """

    def __init__(self, task: Task):
        """Build the ops for `task` in the default graph: a client uses every server, a server only itself."""
        devices = [task.device] if task.only_serves else [server.device for server in task.servers]
        self._task, self._incarnation = task, ""
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
        self._incarnation = self._incarnation or status.ask(self._task.address).incarnation
        session.run(self._say, {self._word: f"{text} {self._incarnation}"})

    def listen(self, session: tf.Session) -> list[Word]:
        """Return what each client last said, by task index: the chief's word is the first.

        A server that was restarted has forgotten everything. What a worker said before that counts as not said.
        """
        words = (said.decode().partition(" ") for said in session.run(self._said))
        return [Word(text, incarnation) for text, _, incarnation in words]


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
            with status.session_at(server.address, graph) as session:
                session.run(say)
                told.add(server)
        except tf.errors.OpError:
            is_gone = status.ask(server.address).reason == status.REFUSED
            if is_gone and server not in told:
                raise
            told.add(server)
            return is_gone
        return True

    deaf = task.servers

    def describe_deaf() -> str:
        nonlocal deaf
        deaf = [server for server, has_heard in status.ask_all(deaf, dismiss).items() if not has_heard]
        return f"{', '.join(map(str, deaf))} to hear that the run has ended" if deaf else ""

    remedy = "the result is saved; let go on or end what does not answer, and start this task again"
    wait_until_nothing_is_missing(task, describe_deaf, watch.timeouts.recovery_secs, remedy)


class Departure:
    """Ends the process of a ps, or of a worker that only serves: after the chief's last word with 0.

    Told to stop, it stays until no client trains any more, so that each can finish its step, and the chief can save;
    then it ends with 128 + signal. A thread does that, since `server.join()` never returns, and nothing stops a server.
    """

    def __init__(self, task: Task, connection: status.Connection, stop_secs: float = STOP_SECS):
        """Prepare to listen to the workers of `task`, whose server `connection` leads to: they stop in `stop_secs`."""
        self._task, self._connection, self._stop_secs = task, connection, stop_secs
        self._received: signal.Signals | None = None

    def start(self) -> None:
        """Start to listen, to the workers and for signals."""
        signals.listen(self._note_signal)
        logging.info("%s: serving at %s", self._task, self._task.address)
        events.record("serving")
        start_guard("watch_and_leave", self._watch_and_leave)

    def _note_signal(self, number: signal.Signals) -> signals.Stop:
        logging.info("%s: %s: leaving when the workers have, or at once at a second signal", self._task, number.name)
        self._received = number
        return signals.Stop(self._stop_secs + 2)  # the chief needs its time to save

    def _watch_and_leave(self) -> None:
        """Log what each client says whenever that changes, until none needs this task any more; then leave."""
        with tf.Graph().as_default() as graph:
            roll_call = RollCall(self._task)
        words = [Word("", "")] * self._task.num_clients
        with self._connection.session(graph) as session:
            while words[0].text != EVALUATED and not (self._received and self._is_free(words)):
                time.sleep(MIN_POLL_SECS if words[0].text == TRAINED else POLL_SECS)
                last_words, words = words, roll_call.listen(session)
                for worker, word in enumerate(words):
                    if word != last_words[worker]:
                        logging.info("%s: worker %d: %s", self._task, worker, word.text)
                        events.record("heard", worker=worker, text=word.text)
        number = None if words[0].text == EVALUATED else self._received
        reason = f"{number.name}, and nobody trains" if number else "the chief has evaluated"
        logging.info("%s: %s: leaving", self._task, reason)
        chief, deadline = self._task.clients[0], time.monotonic() + LINGER_SECS
        while status.ask(chief.address).reason != status.REFUSED and time.monotonic() < deadline:
            time.sleep(MIN_POLL_SECS)
        end_process(128 + number if number else 0)

    def _is_free(self, words: list[Word]) -> bool:
        """Return whether every client has trained, and the chief has evaluated, but for those that do not answer."""
        awaited = [worker for worker in self._task.clients if words[worker.index].text in (TRAINING, REACHED)]
        if words[0].text == TRAINED:
            awaited.append(self._task.clients[0])
        return len(status.unreachable(awaited)) == len(awaited)
