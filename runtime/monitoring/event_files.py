"""The files that TensorBoard reads, one in each folder that a task writes summaries into.

TensorFlow's `FileWriter` writes from a thread, which dies on a full disk with a traceback and never writes again.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Mapping

import tensorflow.compat.v1 as tf

_writers: dict[str, tf.io.TFRecordWriter] = {}  # by folder
_writing = threading.Lock()  # evaluations come from a thread


def write_scalars(folder: str, global_step: int, values: Mapping[str, float]) -> None:
    """Write numbers by tag: see `write()`."""
    entries = [tf.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
    write(folder, tf.Event(step=global_step, summary=tf.Summary(value=entries)))


def write(folder: str, event: tf.Event) -> None:
    """Write an event at once, unless `folder` is empty, or lies in one that this task does not see.

    A full disk costs the event and nothing else. Checkpoints fail too, and say so.
    """
    if not folder or not os.path.isdir(os.path.dirname(folder)):
        return
    events, path = [event], ""
    with _writing:
        try:
            if folder not in _writers:
                os.makedirs(folder, exist_ok=True)
                # TensorBoard reads the files in the order of their names.
                name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}.{time.time_ns()}"
                path = os.path.join(folder, name)
                _writers[folder] = tf.io.TFRecordWriter(path)
                events.insert(0, tf.Event(file_version="brain.Event:2"))
            for each in events:
                each.wall_time = time.time()
                _writers[folder].write(each.SerializeToString())
            _writers[folder].flush()
        except (OSError, tf.errors.OpError):
            _writers.pop(folder, None)  # half an event may be at its end: go on in another file
            with contextlib.suppress(OSError):
                if not os.path.getsize(path):  # on a full disk, each attempt makes a file
                    os.remove(path)
