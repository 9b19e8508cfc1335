"""How a ps ends: it leaves after the chief's last word, although `server.join()` never returns."""

import os
import threading
import time

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.connection import Connection
from runtime.cluster.roll_call import EVALUATED, TRAINING, RollCall
from runtime.cluster.task import Task
from runtime.cluster.waiting import POLL_SECS

LINGER_SECS = 0.5  # how long a ps stays after the chief's last word, so that the chief gets the answer of every ps


def leave_when_evaluated(task: Task, connection: Connection) -> None:
    """Start a thread that logs what the workers say, and ends this ps with status 0 after the chief's last word.

    It ends the process from a thread, since `server.join()` never returns and nothing can stop a server.
    """

    def watch_and_leave() -> None:
        status = 1
        try:
            _wait_until_evaluated(task, connection)
            status = 0
        except Exception:  # whatever it is: a ps that hears nothing would stay for ever
            logging.exception("%s: cannot hear when the workers have finished; start it again", task)
        finally:
            logging.flush()
            os._exit(status)

    threading.Thread(target=watch_and_leave, name="watch_and_leave", daemon=True).start()


def _wait_until_evaluated(task: Task, connection: Connection) -> None:
    """Log what each worker says whenever that changes, and return soon after the chief's last word."""
    with tf.Graph().as_default() as graph:
        roll_call = RollCall(task)
    last_words = [""] * len(task.worker_hosts)
    with connection.session(graph) as session:
        while last_words[0] != EVALUATED:
            time.sleep(POLL_SECS)
            words = roll_call.listen(session)
            for worker, word in enumerate(words):
                if word != last_words[worker]:
                    logging.info("%s: worker %d: %s", task, worker, word)
            last_words = words
    unfinished = [f"worker {worker}" for worker, word in enumerate(last_words) if word in ("", TRAINING)]
    without = f", without the last word of {', '.join(unfinished)}" if unfinished else ""
    logging.info("%s: the chief has evaluated: leaving%s", task, without)
    time.sleep(LINGER_SECS)
