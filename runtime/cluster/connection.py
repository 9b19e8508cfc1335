"""Sessions: with the cluster through the server of this task, or with one server alone, to ask which process it is."""

from typing import NamedTuple

import tensorflow.compat.v1 as tf

from runtime.cluster.probes import probe
from runtime.cluster.task import Peer

ANSWER_MS = 5000  # how long to wait for the answer of a server


class Connection(NamedTuple):
    """The server of this process, as `tf.Session` takes it."""

    target: str
    config: tf.ConfigProto

    def session(self, graph: tf.Graph | None = None) -> tf.Session:
        """Return a new session for `graph`, or for the default graph."""
        return tf.Session(self.target, graph=graph, config=self.config)


def session_at(address: str, graph: tf.Graph | None = None) -> tf.Session:
    """Return a session with the server at `host:port` alone; one with the cluster would wait for all of its tasks.

    Raises:
      OpError: the server does not answer in time; runs of the session may raise that too.
    """
    if reason := probe(address):
        raise tf.errors.UnavailableError(None, None, reason)
    config = tf.ConfigProto(device_filters=["/job:nobody"], operation_timeout_in_ms=ANSWER_MS)
    config.rpc_options.use_rpc_for_inprocess_master = True  # or its own address always leads a process to itself
    config.rpc_options.disable_session_connection_sharing = True  # or this waits behind what training sends
    return tf.Session(f"grpc://{address}", graph=graph, config=config)


def life_of(peer: Peer) -> str:
    """Return the life of the server at the address of `peer`, a number of its process, or "" if it does not answer."""
    try:
        with session_at(peer.address) as session:
            return life_in(session, peer.device)
    except tf.errors.OpError:
        return ""


def life_in(session: tf.Session, device: str) -> str:
    """Return the life of the server of a task such as "/job:ps/task:0" to which a session is connected."""
    name = f"{device.replace('/task', '/replica:0/task')}/device:CPU:0"
    return next((str(found.incarnation) for found in session.list_devices() if found.name == name), "")
