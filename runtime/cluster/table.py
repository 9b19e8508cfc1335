"""The table that each server holds for others: texts by number, in which the tasks say what they are and do."""

import threading
from collections.abc import Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from runtime.cluster.status import ALIVE_SECS, ANSWER_SECS, ask, look_up
from runtime.cluster.task import port_of
from runtime.process.errors import reason
from runtime.process.threads import close_in_background

# What all tasks share on a server; a number from 0 on is a worker, and has its record. (No table has texts as keys.)
CLUSTER = -1  # the host lists of the task whose server this is: long, if there are many workers
DIGEST = -2  # of these
ABORT_REASON = -3  # why all tasks must end, unless they train
IS_TRAINING = -4
FLAGS = -5  # those of the chief, which all workers must be given alike
FOLDER = -6  # where the model is saved that the ps tasks hold
HELD = -100  # and the numbers below it: which piece of the data worker 0, 1 and so on reads


class Table:
    """The table on one server, through a session with that server alone, which is kept while it works."""

    def __init__(self, address: str):
        """Prepare to use the table on the server at `host:port`, in a process that is not forked any more.

        TensorFlow draws random numbers for a graph, and for the steps of a session. Processes that are forked between
        the two draw the same ones, and take each other's steps for their own.
        """
        self._address = address
        # It needs no initialisation, is not part of the model, and ends with the server's process.
        with tf.Graph().as_default() as self._graph:
            table = tf.raw_ops.MutableHashTableV2(key_dtype=tf.int64, value_dtype=tf.string, shared_name="members")
            self._numbers, self._texts = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.string, [None])
            find, insert = tf.raw_ops.LookupTableFindV2, tf.raw_ops.LookupTableInsertV2
            self._found = find(table_handle=table, keys=self._numbers, default_value="")
            self._insert = insert(table_handle=table, keys=self._numbers, values=self._texts)
        self._counts: dict[str, tf.Tensor] = {}
        self._session: tf.Session | None = None
        self._led_to = "", ""  # the process that has answered, and where its name led then, if to one place
        self._using = threading.Lock()
        self.num_begun = 0  # reads and writes that may have come to the server

    def read(self, *numbers: int) -> list[str]:
        """Return the texts of these numbers, "" where there is none.

        Raises:
          UnavailableError: the server does not answer in time.
        """
        return [text.decode(errors="replace") for text in self._run(self._found, {self._numbers: numbers})]

    def write(self, texts: Mapping[int, str]) -> None:
        """Put texts in the place of those of these numbers; it raises what `read()` does."""
        self._run(self._insert, {self._numbers: [*texts], self._texts: [*texts.values()]})

    def count_up(self, variable: str) -> int:
        """Return the value of the variable of that name on this server, int64 [], which then has the next one.

        It raises what `read()` does, also while the variable is not initialised.
        """
        if variable not in self._counts:
            with self._graph.as_default(), tf.device("/device:CPU:0"):
                handle = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name=variable)
                count = tf.raw_ops.ResourceCountUpTo(resource=handle, limit=tf.int64.max, T=tf.int64)
                self._counts[variable] = count
        return int(self._run(self._counts[variable], {}))

    def close(self) -> None:
        """End the session, which takes memory on the server; the next use makes another one."""
        with self._using:
            self._close()

    def _close(self) -> None:
        session, self._session = self._session, None
        if session:
            close_in_background(session)

    def _run(self, fetches: Any, feed_dict: Mapping[tf.Tensor, Any]) -> Any:
        with self._using:
            if self._session and ask(self._address).reason:  # TensorFlow would wait for a process that has ended
                self._close()
            was_kept = self._session is not None
            try:
                self._session = self._session or self._connect()
                self.num_begun += 1
                return self._session.run(fetches, feed_dict)
            except tf.errors.OpError as error:
                self._close()
                self._led_to = "", ""  # the process may live on at another address, where its name leads
                if not was_kept or isinstance(error, tf.errors.DeadlineExceededError):
                    message = f"no answer from {self._address} ({reason(error)})"
                    raise tf.errors.UnavailableError(None, None, message) from error
        return self._run(fetches, feed_dict)  # the process there has ended, and another one may have come

    def _connect(self) -> tf.Session:
        """Return a new session with the server: the process that is known needs its name no more, if that is gone."""
        if why := (status := ask(self._address)).reason:
            raise tf.errors.UnavailableError(None, None, why)
        if not status.incarnation or status.incarnation != self._led_to[0]:
            self._led_to = status.incarnation, _find_address(self._address)
        timeout_ms = round(1000 * (ANSWER_SECS + ALIVE_SECS))
        # A session with the cluster would wait for all of its tasks.
        config = tf.ConfigProto(device_filters=["/job:nobody"], operation_timeout_in_ms=timeout_ms)
        config.rpc_options.use_rpc_for_inprocess_master = True  # or its own address always leads a process to itself
        config.rpc_options.disable_session_connection_sharing = True  # or this waits behind what training sends
        return tf.Session(f"grpc://{self._led_to[1] or self._address}", self._graph, config)


def _find_address(address: str) -> str:
    """Return an address with the number of the host in the place of its name; "" if that has several, or none."""
    found, port = look_up(address), port_of(address)
    number = found.pop() if len(found) == 1 else ""
    return number and (f"[{number}]:{port}" if ":" in number else f"{number}:{port}")
