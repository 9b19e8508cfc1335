"""What a worker does with a session that has lost a ps."""

import threading

import tensorflow.compat.v1 as tf

from runtime.cluster.watch import LOOK_SECS, Watch


class AbandonSessionHook(tf.train.SessionRunHook):
    """Closes a session that has lost a ps or one of its threads, so that the worker makes a new one.

    Without it a step may wait for ever: for a token on another ps, say, from a chief that waits for this very step.
    """

    def __init__(self, watch: Watch):
        self._watch = watch

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        threading.Thread(target=self._abandon, args=(session, coord), name="abandon_session", daemon=True).start()

    def _abandon(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        try:
            with coord.stop_on_exception():
                while not coord.wait_for_stop(LOOK_SECS):
                    if dead := self._watch.dead_ps():
                        raise tf.errors.UnavailableError(None, None, f"{dead} is gone")
            coord.raise_requested_exception()
        except tf.errors.OpError:
            session.close()
