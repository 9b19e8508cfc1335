"""Which process answers at an address: TensorFlow gives each server that starts another number, its life."""

import tensorflow.compat.v1 as tf

from runtime.cluster.task import Peer

ANSWER_MS = 5000  # how long to wait for the answer of a server


def life_of(peer: Peer) -> str:
    """Return the life of the server that answers at the address of `peer`, or "" if none does in time."""
    config = tf.ConfigProto(device_filters=[peer.device], operation_timeout_in_ms=ANSWER_MS)
    config.rpc_options.use_rpc_for_inprocess_master = True  # or its own address always leads a process to itself
    config.rpc_options.disable_session_connection_sharing = True  # or this waits behind what training sends
    try:
        with tf.Session(f"grpc://{peer.address}", config=config) as session:
            return life_in(session, peer.device)
    except tf.errors.OpError:
        return ""


def life_in(session: tf.Session, device: str) -> str:
    """Return the life of the server of a task such as "/job:ps/task:0" to which a session is connected."""
    name = f"{device.replace('/task', '/replica:0/task')}/device:CPU:0"
    return next((str(found.incarnation) for found in session.list_devices() if found.name == name), "")
