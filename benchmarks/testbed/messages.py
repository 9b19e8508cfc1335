"""What TensorFlow sends between the tasks of a cluster, counted in the graphs that it makes for them."""

import collections

import tensorflow.compat.v1 as tf


def num_tensors_sent(session, train_op):
    """Run `train_op`, and return how many tensors have gone from one task to another, each with a call of its own."""
    return tensors_sent(session, train_op).total()


def tensors_sent(session, train_op):
    """Run `train_op`, and count the tensors by way: from which (job, task) to which."""
    return collections.Counter(way for way, _ in _messages(session, train_op).elements())


def types_sent(session, train_op):
    """Run `train_op`, and count the tensors that go from one task to another by their types."""
    return collections.Counter(dtype for _, dtype in _messages(session, train_op).elements())


def _messages(session, train_op):
    metadata = tf.RunMetadata()
    session.run(train_op, options=tf.RunOptions(output_partition_graphs=True), run_metadata=metadata)
    nodes = [node for graph in metadata.partition_graphs for node in graph.node if node.op in ("_Recv", "_HostRecv")]
    assert nodes, "TensorFlow told nothing of its graphs"
    messages = [
        ((_task(node, "send_device"), _task(node, "recv_device")), tf.as_dtype(node.attr["tensor_type"].type))
        for node in nodes
    ]
    return collections.Counter(message for message in messages if message[0][0] != message[0][1])


def _task(node, end):
    device = tf.DeviceSpec.from_string(node.attr[end].s.decode())
    return device.job, device.task
