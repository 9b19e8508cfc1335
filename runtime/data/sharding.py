"""How the examples are dealt out to the workers."""

import sys

import tensorflow.compat.v1 as tf

SHARDINGS = ("static", "dynamic")


def build_first_position(run_size: int) -> tf.Tensor:
    """Build where the next piece of the stream that all workers share begins, int64 []; each run takes a new one.

    ps 0 counts the runs that have taken one, in a variable of the model: so a checkpoint has it, and whoever restores
    the parameters goes on where they were. Counting is one op on the ps, which no other worker can come between:
    `assign_add()` would read the sum with another op.

    Args:
      run_size: how many examples a run takes; the same for all workers.
    """
    with tf.device("/job:ps/task:0"), tf.name_scope("sharding/"):
        num_runs = tf.Variable(tf.zeros([], tf.int64), trainable=False, name="runs_dealt_out")
        number = tf.raw_ops.ResourceCountUpTo(resource=num_runs.handle, limit=sys.maxsize, T=tf.int64)
    return number * run_size
