"""What each worker holds of the data while it is dealt out, on ps 0, where whoever starts in its place finds it."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster.table import HELD, Table
from runtime.cluster.task import Task
from runtime.cluster.waiting import POLL_SECS
from runtime.process.threads import PASSING


class Holding:
    """What a worker holds of the data."""

    def __init__(self, task: Task):
        """Prepare to note what `task`, a worker, holds."""
        self._task, self._number, self._has_looked = task, HELD - task.index, False
        self._table = Table(task.ps_hosts[0])

    def take(self, session: tf.Session, next_piece: tf.Tensor, name_of: Callable[[Any], str]) -> Any:
        """Take the next piece, and note its name. While ps 0 is away, ask again, until the session is closed.

        Raises:
          RuntimeError: the session is closed.
        """
        while True:
            try:
                self._tell_what_is_left()
                piece = session.run(next_piece)
                break
            except PASSING:
                time.sleep(POLL_SECS)
        with contextlib.suppress(*PASSING):  # it is only for the log
            self._table.write({self._number: name_of(piece)})
        return piece

    def _tell_what_is_left(self) -> None:
        """Log what another process has left that was this worker."""
        if not self._has_looked and (left := self._table.read(self._number)[0]):
            what = f"the rest of {left}, which this worker held when it ended"
            logging.info("%s: %s, is not read again in this epoch", self._task, what)
        self._has_looked = True
