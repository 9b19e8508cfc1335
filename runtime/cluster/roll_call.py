"""The roll call: what each worker that trains last said of itself, kept on every task that serves it."""

import time
from collections.abc import Sequence
from concurrent import futures
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from runtime.cluster.lives import ANSWER_MS, life_in
from runtime.cluster.notes import Notes
from runtime.cluster.probes import REFUSED, probe
from runtime.cluster.task import Peer, Task
from runtime.cluster.waiting import LOOK_SECS, POLL_SECS, Watch, wait_until_nothing_is_missing

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

    This cures a `server.join()` that never returns, as tensorflow/tensorflow#4713 proposes. That issue uses a queue of
    "done" tokens; reading a note takes nothing away, so the chief and every server can watch it, and a restarted task
    can read it again.
    """

    def __init__(self, task: Task):
        """Build the ops for `task` in the default graph: a client uses every server, a server only itself."""
        devices = [task.device] if task.only_serves else [server.device for server in task.servers]
        self._task, self._life = task, ""
        with tf.name_scope("roll_call/"):
            notes = [Notes(device, ROLL_CALL) for device in devices]
            with tf.device(task.device):
                self._said = _build_said(notes, range(task.num_clients))
                self._chief_said = _build_said(notes, [0])
            self._word = tf.placeholder(tf.string, [], name="word")
            if not task.only_serves:
                self._say = [of_server.write(task.index, self._word) for of_server in notes]

    def say(self, session: tf.Session, text: str) -> None:
        """Tell every server what this worker is doing."""
        # Asked once, of a new session: one that is closing would not answer, and keep Python from everything else.
        self._life = self._life or life_in(session, self._task.device)
        session.run(self._say, {self._word: f"{text} {self._life}"})

    def listen(self, session: tf.Session) -> list[Word]:
        """Return what each client last said, by task index.

        A server that was restarted has forgotten everything. What a worker said before that counts as not said.
        """
        return [_to_word(said) for said in session.run(self._said)]

    def listen_to_chief(self, session: tf.Session) -> Word:
        """Return what the chief last said."""
        return _to_word(session.run(self._chief_said)[0])


def dismiss_servers(task: Task, watch: Watch) -> None:
    """Say the last word of the chief, `task`, to every server, and stop `watch`: each leaves once it has heard it.

    Raises:
      OpError: a server was lost.
      TimeoutError: a server has not heard it within the recovery timeout.
    """
    watch.stop()  # it would take those that leave for lost
    threads = futures.ThreadPoolExecutor(len(task.servers))
    heard = {server: threads.submit(_dismiss, server) for server in task.servers}
    futures.wait(heard.values(), LOOK_SECS)

    def describe_deaf() -> str:
        deaf = [str(server) for server, answer in heard.items() if not answer.done()]
        return f"{', '.join(deaf)} to hear that the run has ended" if deaf else ""

    remedy = "the result is saved; let go on or end what does not answer, and start this task again"
    wait_until_nothing_is_missing(task, describe_deaf, watch.timeouts.recovery_secs, remedy)
    for answer in heard.values():
        answer.result()


def _dismiss(server: Peer) -> None:
    """Say the last word to `server` until it has heard it, also if it is stopped meanwhile.

    Each time in a session with it alone: one with the cluster would wait for those that have left, without a deadline.
    """
    config = tf.ConfigProto(device_filters=[server.device], operation_timeout_in_ms=ANSWER_MS)
    with tf.Graph().as_default() as graph, tf.device(server.device):
        say = Notes(server.device, ROLL_CALL).write(0, tf.constant(EVALUATED))
    may_have_heard = False
    while True:
        try:
            with tf.Session(f"grpc://{server.address}", graph=graph, config=config) as session:
                session.run(say)
                may_have_heard = True
                return
        except tf.errors.OpError:
            if probe(server.address) == REFUSED:
                if may_have_heard:
                    return
                raise
            may_have_heard = True  # once it goes on
        time.sleep(POLL_SECS)


def _build_said(notes: Sequence[Notes], workers: Sequence[int]) -> tf.Tensor:
    """Build what each of `workers` has said, string [n], or "" if one of the servers has not heard it."""
    heard = tf.stack([of_server.read(workers) for of_server in notes])  # [servers, n]
    return tf.where(tf.reduce_all(tf.not_equal(heard, ""), axis=0), heard[0], tf.fill([len(workers)], ""))


def _to_word(said: bytes) -> Word:
    text, _, life = said.decode().partition(" ")
    return Word(text, life)
