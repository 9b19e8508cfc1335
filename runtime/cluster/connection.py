"""How the sessions of a task reach its own server, and through it the cluster."""

from typing import NamedTuple

import tensorflow.compat.v1 as tf


class Connection(NamedTuple):
    """The server of this process, as `tf.Session` takes it."""

    target: str
    config: tf.ConfigProto

    def session(self, graph: tf.Graph | None = None) -> tf.Session:
        """Return a new session for `graph`, or for the default graph."""
        return tf.Session(self.target, graph=graph, config=self.config)
