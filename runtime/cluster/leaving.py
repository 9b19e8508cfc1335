"""How a task that only serves ends: after the chief's last word, or, told to stop, after those that it serves."""

import signal
import time

import tensorflow.compat.v1 as tf
from absl import logging

from runtime import events
from runtime.cluster import probes, signals
from runtime.cluster.connection import Connection
from runtime.cluster.roll_call import EVALUATED, REACHED, TRAINED, TRAINING, RollCall, Word
from runtime.cluster.task import Task
from runtime.cluster.waiting import POLL_SECS
from runtime.process import end_process
from runtime.threads import start_guard

LINGER_SECS = 0.5  # how long a task stays after the chief's last word, so that the chief gets the answer of each


class Departure:
    """Ends the process of a ps, or of a worker that only serves: after the chief's last word with 0.

    Told to stop, it stays until no client trains any more, so that each can finish its step, and the chief can save;
    then it ends with 128 + signal. A thread does that, since `server.join()` never returns, and nothing stops a server.
    """

    def __init__(self, task: Task, connection: Connection):
        """Be ready to end `task`, whose server `connection` leads to."""
        self._task, self._connection = task, connection
        self._received: signal.Signals | None = None

    def start(self) -> None:
        """Start to listen, to the workers and for signals."""
        signals.listen(self._note_signal)
        logging.info("%s: serving at %s", self._task, self._task.address)
        events.record("serving")
        start_guard("watch_and_leave", self._watch_and_leave)

    def _note_signal(self, number: signal.Signals) -> float:
        logging.info("%s: %s: leaving when the workers have, or at once at a second signal", self._task, number.name)
        self._received = number
        return signals.STOP_SECS + 2  # the workers need theirs

    def _watch_and_leave(self) -> None:
        """Log what each client says whenever that changes, until none needs this task any more; then leave."""
        with tf.Graph().as_default() as graph:
            roll_call = RollCall(self._task)
        words = [Word("", "")] * self._task.num_clients
        with self._connection.session(graph) as session:
            while words[0].text != EVALUATED and not (self._received and self._is_free(words)):
                time.sleep(POLL_SECS)
                last_words, words = words, roll_call.listen(session)
                for worker, word in enumerate(words):
                    if word != last_words[worker]:
                        logging.info("%s: worker %d: %s", self._task, worker, word.text)
                        events.record("heard", worker=worker, text=word.text)
        number = None if words[0].text == EVALUATED else self._received
        unfinished = [f"worker {worker}" for worker, word in enumerate(words) if word.text in ("", TRAINING)]
        without = f", without the last word of {', '.join(unfinished)}" if unfinished else ""
        reason = f"{number.name}, and nobody trains" if number else "the chief has evaluated"
        logging.info("%s: %s: leaving%s", self._task, reason, without)
        time.sleep(LINGER_SECS)
        end_process(128 + number if number else 0)

    def _is_free(self, words: list[Word]) -> bool:
        """Return whether every client has trained, and the chief has evaluated, but for those that do not answer."""
        awaited = [worker for worker in self._task.clients if words[worker.index].text in (TRAINING, REACHED)]
        if words[0].text == TRAINED:
            awaited.append(self._task.clients[0])
        return len(probes.unreachable(awaited)) == len(awaited)
