"""Watches a cluster of this project, whose tasks run as a user starts them, and measures it.

It reads the parameters from the ps tasks while they are trained, as any client of a TensorFlow server can. A global
step is one worker's batch (asynchronous) or one batch of each (synchronous).
"""

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from runtime.process import environment  # noqa: F401  # first: it sets what TensorFlow reads when it is imported

# isort: split
import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

import mnist_input
import model
from benchmarks.peers import measure, problem
from runtime.cluster.status import ask
from runtime.process.threads import close_in_background
from runtime.updates.placement import PS_STRATEGIES, make_strategy

FLAGS = flags.FLAGS
flags.DEFINE_list("ps_hosts", [], "host:port of the ps tasks")
flags.DEFINE_list("worker_hosts", [], "host:port of the workers")
flags.DEFINE_enum("ps_strategy", "round_robin", PS_STRATEGIES, "how variables are spread over the ps tasks")
flags.DEFINE_boolean("sync_replicas", False, "synchronous updates")


def main() -> None:
    """Keep snapshots of the parameters until the last step, and print the result."""
    ps_hosts = FLAGS.ps_hosts
    strategy = make_strategy(FLAGS.ps_strategy, len(ps_hosts))
    with tf.Graph().as_default() as graph:
        ps_tasks = tf.train.replica_device_setter(len(ps_hosts), worker_device="/job:ps/task:0", ps_strategy=strategy)
        with tf.device(ps_tasks):
            global_step = tf.train.create_global_step()
            model.build_logits(tf.placeholder(tf.float32, [None, mnist_input.NUM_PIXELS]), is_training=False)
            values = [variable.read_value() for variable in (global_step, *tf.trainable_variables())]
    for address in [*ps_hosts, *FLAGS.worker_hosts]:
        while ask(address).reason:
            time.sleep(0.02)
    clock = measure.make_clock(problem.BATCH_SIZE * (len(FLAGS.worker_hosts) if FLAGS.sync_replicas else 1))
    # Without the filter the session would wait for the workers, and without a timeout for a ps that has ended.
    config = tf.ConfigProto(device_filters=["/job:ps"], operation_timeout_in_ms=10_000)
    session = tf.Session(f"grpc://{ps_hosts[0]}", graph, config)

    def read() -> tuple[int, list[Any]]:
        step, *parameters = session.run(values)
        return int(step), parameters

    step = 0
    while step == 0:
        time.sleep(0.01)
        with contextlib.suppress(tf.errors.FailedPreconditionError):  # nothing is initialised yet
            step, parameters = read()
    clock.start(step)
    is_stopped = False
    while step < FLAGS.train_steps:
        time.sleep(FLAGS.snapshot_secs)
        try:
            step, parameters = read()
        except (tf.errors.UnavailableError, tf.errors.DeadlineExceededError):
            if not is_stopped:
                raise
            break  # the last step and the end of the ps came since the last look
        clock.keep(step, parameters)
        if step < FLAGS.train_steps or not is_stopped:  # at the last step, training may have ended earlier
            clock.stop(step)
            is_stopped = True
    close_in_background(session)  # it would wait for ps tasks that have ended
    measure.print_result(clock, parameters, compute_logits)


def compute_logits(parameters: Sequence[Any], inputs: Any) -> Any:
    """Return the model's logits, float32 [n, 10], from its parameters and images, float32 [n, 784]."""
    with tf.Graph().as_default(), tf.Session() as session:
        images = tf.placeholder(tf.float32, [None, mnist_input.NUM_PIXELS])
        logits = model.build_logits(images, is_training=False)
        for variable, value in zip(tf.trainable_variables(), parameters, strict=True):
            variable.load(value, session)
        return np.concatenate([session.run(logits, {images: part}) for part in np.split(inputs, 10)])
