"""The roll call: what each worker last said of itself, kept on every ps."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from runtime.cluster.task import Peer, Task

# What a worker says of itself.
TRAINING = "training"
REACHED = "reached"  # the chief: the model is good enough, so that all shall stop
TRAINED = "trained"
STOPPED = "stopped"  # by a signal, before the end
EVALUATED = "evaluated"  # the chief's last word: nobody needs the ps any more


PROBE_MS = 5000  # how long to wait for the answer of a worker's server


class Word(NamedTuple):
    """What a worker last said of itself."""

    text: str  # "" if it has said nothing
    life: str  # tells the process that said it from those before and after it


class RollCall:
    """One string variable per worker on every ps; that of a worker that has said nothing reads as "".

    This cures a `server.join()` that never returns, as tensorflow/tensorflow#4713 proposes. That issue uses a queue of
    "done" tokens; reading a variable takes nothing away, so the chief and every ps can watch it, and a restarted task
    can read it again. An uninitialised variable means that the worker has said nothing, so none is ever initialised.
    """

    def __init__(self, task: Task):
        """Build the ops for `task` in the default graph: a worker uses every ps, a ps only itself."""
        ps_indices = [task.index] if task.job_name == "ps" else range(len(task.ps_hosts))
        workers = range(len(task.worker_hosts))
        entries = [[build_entry(ps, f"worker_{worker}") for ps in ps_indices] for worker in workers]
        with tf.device(task.device), tf.name_scope("roll_call/"):
            self._said = tf.stack([_read(of_worker) for of_worker in entries])
        self._task = task
        with tf.name_scope("roll_call/"):
            self._word = tf.placeholder(tf.string, [], name="word")
            if task.job_name == "worker":
                self._say = [entry.assign(self._word, read_value=False) for entry in entries[task.index]]

    def say(self, session: tf.Session, text: str) -> None:
        """Tell every ps what this worker is doing."""
        session.run(self._say, {self._word: f"{text} {_life(session, self._task.device)}"})

    def listen(self, session: tf.Session) -> list[Word]:
        """Return what each worker last said, by task index.

        A ps that was restarted has forgotten everything. What a worker said before that counts as not said.
        """
        return [Word(*text.decode().split(" ")) for text in session.run(self._said)]


def _read(entries: Sequence[tf.Variable]) -> tf.Tensor:
    """Build what a worker has said on each ps, string [], or " " if one has not heard it."""
    is_heard = tf.reduce_all(tf.stack([entry.is_initialized() for entry in entries]))
    return tf.cond(is_heard, entries[0].read_value, lambda: tf.constant(" "))


def life_of(worker: Peer) -> str:
    """Return the life of the process that answers at the address of `worker`, or "" if none does in time."""
    device = f"/job:{worker.job_name}/task:{worker.index}"
    config = tf.ConfigProto(device_filters=[device], operation_timeout_in_ms=PROBE_MS)
    config.rpc_options.use_rpc_for_inprocess_master = True  # or its own address always leads a process to itself
    try:
        with tf.Session(f"grpc://{worker.address}", config=config) as session:
            return _life(session, device)
    except tf.errors.OpError:
        return ""


def _life(session: tf.Session, device: str) -> str:
    """Return the incarnation of a server: TensorFlow gives each that starts another number."""
    name = f"{device.replace('/task', '/replica:0/task')}/device:CPU:0"
    return next((str(found.incarnation) for found in session.list_devices() if found.name == name), "")


def build_entry(ps: int, name: str) -> tf.Variable:
    """Build a string variable on one ps; the graphs of all tasks share it by its name."""
    with tf.device(f"/job:ps/task:{ps}"), tf.variable_scope("roll_call", reuse=tf.AUTO_REUSE):
        return tf.get_variable(
            f"ps_{ps}_{name}",
            shape=[],
            dtype=tf.string,
            initializer=tf.constant_initializer(""),
            trainable=False,
            collections=["roll_call"],  # neither initialised nor saved with the model
        )
