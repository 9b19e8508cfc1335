"""The classic way to train an example: `replica_device_setter`, `feed_dict` from numpy, one update for each batch.

It runs in the folder of an example, such as examples/languages, and trains the model of its two files. Without a
--job_name it is one plain process.
"""

import json
import time

import numpy as np
import tensorflow.compat.v1 as tf
from absl import app, flags

import mnist_input
import model
from runtime.data.sources import open_source

FLAGS = flags.FLAGS
flags.DEFINE_enum("job_name", None, ["ps", "worker"], "job of this process")
flags.DEFINE_integer("task_index", 0, "index of this process within its job")
flags.DEFINE_string("ps_hosts", "", "host:port of the ps")
flags.DEFINE_list("worker_hosts", [], "host:port of the workers")
flags.DEFINE_string("data_dir", None, "folder of the examples")
flags.DEFINE_integer("train_steps", None, "global step at which training ends")
flags.DEFINE_float("learning_rate", None, "of the optimizers")
flags.DEFINE_boolean("falls", False, "whether the rate falls to 0 at the end")
BATCH_SIZE, TEST_SIZE = 100, 1000


def main(_: list[str]) -> None:
    """Serve as the ps, or train as a worker; worker 0 prints the result."""
    tf.disable_eager_execution()
    target, worker, setter = "", "", None
    if FLAGS.job_name:
        cluster = tf.train.ClusterSpec({"ps": [FLAGS.ps_hosts], "worker": FLAGS.worker_hosts})
        server = tf.train.Server(cluster, FLAGS.job_name, FLAGS.task_index)
        if FLAGS.job_name == "ps":
            server.join()
        target, worker = server.target, f"/job:worker/task:{FLAGS.task_index}"
        setter = tf.train.replica_device_setter(worker_device=worker, cluster=cluster)
    source = open_source(FLAGS.data_dir, "train", mnist_input)
    own = [column[FLAGS.task_index :: len(FLAGS.worker_hosts) or 1] for column in source.load()]
    columns = [tf.placeholder(column.dtype, [None, *column.shape[1:]]) for column in own]
    with tf.device(setter):
        global_step = tf.train.create_global_step()
        inputs, labels = mnist_input.decode(*tf.nest.pack_sequence_as(source.signature, columns))
        logits = model.build_logits(inputs, True)
        train_op = build_train_op(model.build_loss(logits, labels), global_step)
    with tf.device(worker):
        metrics = model.build_metrics(logits, labels)
    batches, step, started = next_batches(own), 0, None
    with tf.train.MonitoredTrainingSession(target, is_chief=FLAGS.task_index == 0) as session:
        while step < FLAGS.train_steps:
            feed_dict = dict(zip(columns, next(batches), strict=True))
            _, step = session.run([train_op, global_step], feed_dict)
            started = started or (time.monotonic(), step)
        secs, steps = time.monotonic() - started[0], step - started[1]
        if FLAGS.task_index == 0:
            result = {"examples_per_sec": BATCH_SIZE * steps / secs, "train_secs": secs}
            print(json.dumps({**test(session, columns, metrics), **result}), flush=True)


def build_train_op(loss, global_step):
    """Build a step of the optimizers of the model, each for the variables of its scope; else of gradient descent."""
    rate = FLAGS.learning_rate
    if FLAGS.falls:
        rate = tf.train.polynomial_decay(rate, global_step, FLAGS.train_steps, 0.0)
    build_optimizer = getattr(model, "build_optimizer", lambda rate: {"": tf.train.GradientDescentOptimizer(rate)})
    optimizers = build_optimizer(rate).items()
    updates = [optimizer.minimize(loss, var_list=tf.trainable_variables(scope)) for scope, optimizer in optimizers]
    with tf.control_dependencies(updates):
        return global_step.assign_add(1)


def next_batches(columns):
    """Yield batches of examples, each example once in an epoch, in an order that is new in each."""
    generator = np.random.default_rng(FLAGS.task_index)
    while True:
        order = generator.permutation(len(columns[0]))
        for start in range(0, len(order) - BATCH_SIZE + 1, BATCH_SIZE):
            yield [column[order[start : start + BATCH_SIZE]] for column in columns]


def test(session, columns, metrics):
    """Return the metrics of all test examples: means over batches, or the last values of pairs as of `tf.metrics`."""
    examples = open_source(FLAGS.data_dir, "t10k", mnist_input).load()
    pairs = {name: metric for name, metric in metrics.items() if isinstance(metric, tuple)}
    means = {name: metric for name, metric in metrics.items() if name not in pairs}
    sums = dict.fromkeys(means, 0.0)
    for start in range(0, len(examples[0]), TEST_SIZE):
        batch = [column[start : start + TEST_SIZE] for column in examples]
        feed_dict = dict(zip(columns, batch, strict=True))
        found, _ = session.run([means, {name: update for name, (_, update) in pairs.items()}], feed_dict)
        sums = {name: total + len(batch[0]) * float(found[name]) for name, total in sums.items()}
    values = session.run({name: value for name, (value, _) in pairs.items()})
    figures = {**{name: total / len(examples[0]) for name, total in sums.items()}, **values}
    return {f"test_{name}": float(value) for name, value in figures.items()}


if __name__ == "__main__":
    app.run(main)
