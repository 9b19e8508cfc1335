"""The files that TensorBoard reads, one in each folder that a task writes summaries into."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Mapping

import tensorflow.compat.v1 as tf

from runtime.process.threads import reminding


def write(folder: str, event: tf.Event) -> None:
    """Write an event at once, unless `folder` is empty, or lies in one that this task does not see.

    On a full disk only the event is lost. Checkpoints fail, too, and log that.
    """
    if folder:
        with reminding("still writing a summary", folder), _writing:
            if os.path.isdir(os.path.dirname(folder)):
                _files.setdefault(folder, EventFile(folder)).write(event)


def write_scalars(folder: str, global_step: int, values: Mapping[str, float]) -> None:
    """Write numbers by tag: see `write()`."""
    entries = [tf.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
    write(folder, tf.Event(step=global_step, summary=tf.Summary(value=entries)))


class EventFile:
    """A file of events, as TensorBoard reads it.

    TensorFlow's `FileWriter` writes from a thread, which dies on a full disk with a traceback and never writes again.
    """

    def __init__(self, folder: str):
        """Write into `folder`, where the first event makes a file."""
        self._folder, self._path = folder, ""
        self._writer: tf.io.TFRecordWriter | None = None

    def write(self, event: tf.Event) -> None:
        """Append an event; one that finds no room is lost."""
        try:
            if self._writer is None:
                os.makedirs(self._folder, exist_ok=True)
                # TensorBoard reads the files in the order of their names.
                name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}.{time.time_ns()}"
                self._path = os.path.join(self._folder, name)
                self._writer = tf.io.TFRecordWriter(self._path)
                self._append(tf.Event(file_version="brain.Event:2"))
            self._append(event)
        except (OSError, tf.errors.OpError):
            self._writer = None  # half an event may be at its end: go on in another file
            with contextlib.suppress(OSError):
                if not os.path.getsize(self._path):  # on a full disk, each attempt makes a file
                    os.remove(self._path)

    def _append(self, event: tf.Event) -> None:
        assert self._writer
        event.wall_time = time.time()
        self._writer.write(event.SerializeToString())
        self._writer.flush()


_files: dict[str, EventFile] = {}  # by folder
_writing = threading.Lock()  # evaluations come from a thread
