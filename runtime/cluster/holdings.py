"""What each worker holds of the data while it is dealt out, on ps 0, where whoever starts in its place finds it."""

import contextlib
import time
from collections.abc import Callable

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

    def take(self, variable: str, is_over: Callable[[], bool]) -> int:
        """Return the number of the next piece, which a variable on ps 0 counts. While that is away, ask again.

        It asks with a session of its own: that of training, which is closed when a ps is lost, waits for a step that
        may wait for the piece, and each call in it then waits for the closing.

        Raises:
          RuntimeError: nobody needs the piece any more.
        """
        while not is_over():
            with contextlib.suppress(*PASSING):
                self._tell_what_is_left()
                return self._table.count_up(variable)
            time.sleep(POLL_SECS)
        raise RuntimeError("the session that asked for this shard is over")

    def note(self, name: str) -> None:
        """Note the name of the piece that this worker holds now: it is only for the log."""
        with contextlib.suppress(*PASSING):
            self._table.write({self._number: name})

    def _tell_what_is_left(self) -> None:
        """Log what another process has left that was this worker."""
        if not self._has_looked and (left := self._table.read(self._number)[0]):
            what = f"the rest of {left}, which this worker was reading when it ended"
            logging.info("%s: %s, is skipped in this epoch", self._task, what)
        self._has_looked = True
