"""The roll call: what each worker last said of itself, kept on every ps."""

import tensorflow.compat.v1 as tf

from runtime.cluster.task import Task

# What a worker says of itself.
TRAINING = "training"
TRAINED = "trained"
EVALUATED = "evaluated"  # the chief's last word: nobody needs the ps any more


class RollCall:
    """One string variable per worker on every ps; that of a worker that has said nothing reads as "".

    This cures a `server.join()` that never returns, as tensorflow/tensorflow#4713 proposes. That issue uses a queue of
    "done" tokens; reading a variable takes nothing away, so the chief and every ps can watch it, and a restarted task
    can read it again. An uninitialised variable means that the worker has said nothing, so none is ever initialised.
    """

    def __init__(self, task: Task):
        """Build the ops for `task` in the default graph: a worker uses every ps, a ps only itself."""
        ps_indices = [task.index] if task.job_name == "ps" else range(len(task.ps_hosts))
        entries = [[_build_entry(ps, worker) for ps in ps_indices] for worker in range(len(task.worker_hosts))]
        self._entries = [of_worker[0] for of_worker in entries]
        with tf.device(task.device):
            self._is_heard = [tf.reduce_all([e.is_initialized() for e in of_worker]) for of_worker in entries]
        self._word = tf.placeholder(tf.string, [], name="roll_call/word")
        if task.job_name == "worker":
            self._say = [entry.assign(self._word, read_value=False) for entry in entries[task.index]]

    def say(self, session: tf.Session, word: str) -> None:
        """Tell every ps what this worker is doing."""
        session.run(self._say, {self._word: word})

    def listen(self, session: tf.Session) -> list[str]:
        """Return what each worker last said, by task index.

        A ps that was restarted has forgotten everything. What a worker said before that counts as not said.
        """
        is_heard = session.run(self._is_heard)
        return [session.run(entry).decode() if is_heard[i] else "" for i, entry in enumerate(self._entries)]


def _build_entry(ps: int, worker: int) -> tf.Variable:
    """Build the variable on one ps that one worker writes; the graphs of all tasks share it by its name."""
    with tf.device(f"/job:ps/task:{ps}"), tf.variable_scope("roll_call", reuse=tf.AUTO_REUSE):
        return tf.get_variable(
            f"ps_{ps}_worker_{worker}",
            shape=[],
            dtype=tf.string,
            initializer=tf.constant_initializer(""),
            trainable=False,
            collections=["roll_call"],  # neither initialised nor saved with the model
        )
