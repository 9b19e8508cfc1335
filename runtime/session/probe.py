"""Whether large packets get through from this worker to each of its servers, and back."""

import concurrent.futures
import contextlib
import time

import tensorflow.compat.v1 as tf

from runtime.cluster.status import NO_ANSWER
from runtime.cluster.task import Task
from runtime.machine.session_config import Connection
from runtime.process.errors import reason
from runtime.process.threads import close_in_background

NUM_SENT = 4096  # float32 numbers, more than go into one packet
PROBE_SECS = 5.0  # how long these take at most where nothing is wrong
STALE_SECS = 10.0  # after which a result is no answer to a question that was not repeated meanwhile


class Probe:
    """Sends each server more than goes into one packet, and lets it answer with as much."""

    def __init__(self, task: Task, connection: Connection):
        """Build what is sent, in the graph."""
        self._task, self._connection = task, connection
        self._servers = str(task.servers[0]) if len(task.servers) == 1 else f"one of {len(task.servers)} tasks"
        self._probed = ""  # until there is a session, which waits for any of them
        self._asked_at = 0.0
        self._executor = concurrent.futures.ThreadPoolExecutor(1)  # where large packets are lost, a session hangs
        self._pending: concurrent.futures.Future[str] | None = None
        with tf.device(f"{task.device}/device:CPU:0"):
            self._sent = tf.zeros([NUM_SENT]) + tf.cast(tf.timestamp(), tf.float32)  # no constant
        self._received = {}  # on each server, from this worker
        for server in task.servers:
            with tf.device(f"{server.device}/device:CPU:0"):
                self._received[server] = tf.negative(self._sent)

    def describe_unreached(self) -> str:
        """Look which server does not reach this worker, or only with small packets, though this one reaches all."""
        if self._pending and self._pending.done() and time.monotonic() > self._asked_at + STALE_SECS:
            self._pending = None
        self._asked_at = time.monotonic()
        self._pending = self._pending or self._executor.submit(self._find_why_unreached)
        try:
            why, self._pending = self._pending.result(PROBE_SECS), None
        except concurrent.futures.TimeoutError:
            why = NO_ANSWER
        return f"{self._probed or self._servers} to reach {self._task} at {self._task.address} ({why})" if why else ""

    def _find_why_unreached(self) -> str:
        self._probed = ""
        session = self._connection.session(self._sent.graph)
        with contextlib.ExitStack() as after:
            after.callback(close_in_background, session)
            try:
                session.run(self._sent)
            except tf.errors.OpError:  # it does not reach them
                return ""
            try:
                for server, received in self._received.items():
                    self._probed = str(server)
                    session.run(received)
            except tf.errors.OpError as error:
                return reason(error)
        return ""
