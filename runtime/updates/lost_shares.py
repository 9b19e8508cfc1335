"""Lost shares: how synchronous training goes on without the gradients of workers that are lost."""

import math
import threading
import time
from collections.abc import Sequence

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging

from runtime.cluster import probes
from runtime.cluster.roll_call import RollCall
from runtime.cluster.task import Peer, Task
from runtime.updates.aggregation import Aggregation, Rule

LOOK_SECS = 1.0  # how often the chief looks whether synchronous training moves
PATIENCE_SECS = 2.0  # how long the chief waits for an update at first, when a worker is lost or all of them wait


class ReplaceLostSharesHook(tf.train.SessionRunHook):
    """Lets the other workers take the share of one that is lost; else they would wait for ever. For the chief.

    While every worker answers, an exchange may take as long as it takes. But if no update happens after a task was
    lost, spare tokens let workers add a second gradient to an update. They end when every worker answers again.

    A worker that dies while it makes an update takes the tokens of the others with it. So these are woken when it was
    restarted, also if it was back before the chief looked: what it says in the roll call tells its processes apart.

    Each session has a thread that looks; TensorFlow's coordinator ends it with the session.
    """

    def __init__(self, aggregations: Sequence[Aggregation], rule: Rule, task: Task):
        self._aggregations, self._rule, self._task = aggregations, rule, task
        self._lines = {worker: probes.Line(worker.address) for worker in task.others("worker")}

    def begin(self) -> None:
        self._roll_call = RollCall(self._task)
        self._awaited_steps = [a.holding.steps for a in self._aggregations if a.is_waited_for]
        self._num_updates = [aggregation.num_updates for aggregation in self._aggregations]
        self._last_added = [aggregation.last_added for aggregation in self._aggregations]
        self._num_spares = tf.placeholder(tf.int64, [], name="num_spares")
        self._set_num_spares = [
            aggregation.build_set_num_spares(self._num_spares) for aggregation in self._aggregations
        ]

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        self._last_counts = session.run(self._num_updates)
        self._last_num_spares = session.run(self._aggregations[0].num_spares)
        self._lives = self._listen(session)
        if max(self._last_counts) > 0:  # this task may have been restarted
            self._replace(session, self._last_num_spares)
        self._lost = dict[Peer, str]()
        self._patience_secs, self._deadlocked_at = PATIENCE_SECS, math.inf
        self._watch = threading.Thread(target=self._keep_looking, args=(session, coord), name="look", daemon=True)
        coord.register_thread(self._watch)

    def before_run(self, run_context: tf.train.SessionRunContext) -> None:
        if self._watch.ident is None:  # until now the workers have waited for each other
            self._moved_at = time.monotonic()
            self._watch.start()

    def _keep_looking(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        # TensorFlow's LooperThread would stop looking while somebody sets the clock back.
        with coord.stop_on_exception():
            while not coord.wait_for_stop(LOOK_SECS):
                self._look(session)

    def _look(self, session: tf.Session) -> None:
        """Replace the shares of lost workers while no update happens, and end that when they are back.

        A spare token too many makes a fast worker do the share of a slow one, so the chief waits twice as long for the
        effect of each.
        """
        lives, counts, now = self._listen(session), session.run(self._num_updates), time.monotonic()
        is_back = any(life not in ("", other) for life, other in zip(self._lives, lives, strict=True))
        self._lives = lives
        if min(session.run(self._awaited_steps)) >= self._rule.train_steps:
            return  # nobody waits any more, and the others may have left
        if is_back:
            self._replace(session, self._last_num_spares)
        if counts != self._last_counts:
            self._last_counts, self._moved_at = counts, now
            self._lost, self._patience_secs, self._deadlocked_at = {}, PATIENCE_SECS, math.inf
            if (
                self._last_num_spares
                and (num_spares := self._count_missing(probes.ask(self._lines))) < self._last_num_spares
            ):
                self._replace(session, num_spares)
            return
        unreachable = probes.ask(self._lines)
        is_news = not unreachable.keys() <= self._lost.keys()
        self._lost |= unreachable
        if not self._lost:
            self._deadlocked_at = min(self._deadlocked_at, now) if self._is_deadlocked(session, counts) else math.inf
            if now > self._deadlocked_at + self._patience_secs:
                self._replace(session, self._last_num_spares)
                self._deadlocked_at, self._patience_secs = math.inf, 2 * self._patience_secs
            return
        if not is_news and now < self._moved_at + self._patience_secs:
            return
        self._replace(session, max(1, self._count_missing(unreachable)))
        self._patience_secs *= 2
        logging.warning(
            "%s: no synchronous update for %.0f s after %d of them%s: going on with the average of %d gradients of %d"
            " live workers",
            self._task,
            now - self._moved_at,
            counts[0],
            f", without {probes.describe(unreachable)}" if unreachable else "",
            self._rule.num_gradients,
            self._rule.num_workers - len(unreachable),
        )
        self._moved_at = now

    def _is_deadlocked(self, session: tf.Session, counts: Sequence[int]) -> bool:
        """Return whether every worker waits for an update.

        After a fault, a ps may have lost gradients, or the updates of one ps lack other workers than those of another.
        A healthy cluster looks like that for a moment, while an update is made or gradients are on their way.
        """
        waits_for = [last == count for last, count in zip(session.run(self._last_added), counts, strict=True)]
        return self._rule.is_strict and bool(np.any(waits_for, axis=0).all())

    def _listen(self, session: tf.Session) -> list[str]:
        """Return for each other worker which process has said its last word, or "" if none has."""
        words = self._roll_call.listen(session)
        return [words[worker.index].life for worker in self._task.others("worker")]

    def _count_missing(self, lost: dict[Peer, str]) -> int:
        """Return how many gradients of an update the workers that are left cannot give, with one each."""
        return max(0, self._rule.num_gradients - (self._rule.num_workers - len(lost)))

    def _replace(self, session: tf.Session, num_spares: int) -> None:
        session.run(self._set_num_spares, {self._num_spares: num_spares})
        self._last_num_spares = num_spares
