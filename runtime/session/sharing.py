"""Whether every ps sees the chief's train directory, where each writes its own part of a checkpoint."""

import tensorflow.compat.v1 as tf

from runtime import events
from runtime.cluster.task import Peer, Task
from runtime.cluster.waiting import Timeouts, wait_until_nothing_is_missing
from runtime.errors import UnusableError
from runtime.folder import RunFolder

SHARING_SECS = events.MAX_MEMORY_SECS + 5  # how long a shared folder may take to show what the chief has written


class SharedFolder:
    """A train directory that all ps tasks must see, as the chief checks before it restores and saves."""

    def __init__(self, task: Task, folder: RunFolder, timeouts: Timeouts):
        """Build the ops for `task`, the chief, in the default graph."""
        self._task, self._folder, self._timeouts = task, folder, timeouts
        self._file = tf.placeholder(tf.string, [], name="shared_file")  # a constant's content would be remembered
        self._seen_by_ps = {}
        for ps in task.others("ps"):
            with tf.device(f"/job:ps/task:{ps.index}/device:CPU:0"):
                self._seen_by_ps[ps] = tf.io.read_file(self._file)

    def check(self, session: tf.Session) -> None:
        """Check that every ps sees the lock of this process.

        Raises:
          UnusableError: a ps does not.
        """
        path = self._folder.lock
        with open(path, "rb") as file:
            expected = file.read()

        def find_blind() -> list[Peer]:
            return [ps for ps in self._seen_by_ps if self._read(session, ps, path) != expected]

        def describe_blind() -> str:
            return ", ".join(f"{ps} to see {path}" for ps in find_blind())

        try:
            wait_until_nothing_is_missing(self._task, describe_blind, min(SHARING_SECS, self._timeouts.startup_secs))
        except TimeoutError:
            if not (blind := find_blind()):
                return
            raise UnusableError(
                f"{', '.join(map(str, blind))} does not see the --train_dir {self._folder.path} of the chief: it must"
                " be one folder that all tasks share under the same name, since each ps writes its own part of a"
                " checkpoint; or give --checkpoints=chief, so that the chief writes all of it"
            ) from None

    def _read(self, session: tf.Session, ps: Peer, path: str) -> bytes | None:
        """Return the content of a file as a ps sees it, or None if it sees none."""
        try:
            return bytes(session.run(self._seen_by_ps[ps], {self._file: path}))
        except (tf.errors.NotFoundError, tf.errors.PermissionDeniedError, tf.errors.FailedPreconditionError):
            return None
