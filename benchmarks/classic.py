"""The classic distributed MNIST script, as one finds it again and again, made to run on TensorFlow 2.21.

One ps and two asynchronous workers; `feed_dict` from numpy, a cross-entropy that is a sum of logarithms, Adam with
a rate of 0.01, `Supervisor`, and a line printed each step. A global step is one worker's batch. What is not of the
classic: a worker's shard of the data, the clock, and an end of the ps, which the launcher kills.
"""

import tempfile
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import tensorflow.compat.v1 as tf
from absl import app, flags

import launch
import measure
import mnist_input
from runtime import ports

FLAGS = flags.FLAGS
flags.DEFINE_enum("job_name", None, ["ps", "worker"], "what this process is; if not given, all are started")
flags.DEFINE_integer("task_index", 0, "its index within the job")
flags.DEFINE_list("ps_hosts", [], "host:port of the ps tasks")
flags.DEFINE_list("worker_hosts", [], "host:port of the workers")
FLAGS.set_default("learning_rate", 0.01)


def main(_: object) -> None:
    """Serve as a ps, or train as a worker, or start all."""
    if FLAGS.job_name is None:
        start()
        return
    tf.disable_v2_behavior()
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts, "worker": FLAGS.worker_hosts})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
    else:
        train(cluster, server)


def start() -> None:
    """Run all processes."""
    ps, *workers = [f"localhost:{port}" for port in ports.choose_ports(1 + measure.NUM_WORKERS)]
    hosts = [f"--ps_hosts={ps}", f"--worker_hosts={','.join(workers)}"]
    children = [
        launch.Child(f"worker {index}", [*hosts, "--job_name=worker", f"--task_index={index}"])
        for index in range(measure.NUM_WORKERS)
    ]
    server = launch.Child("ps 0", [*hosts, "--job_name=ps"], ends_itself=False)
    print(launch.run([*children, server])[0])


def train(cluster: tf.train.ClusterSpec, server: tf.train.Server) -> None:
    """Train, and print the result as worker 0."""
    is_chief = FLAGS.task_index == 0
    tf.set_random_seed(FLAGS.seed)
    worker_device = f"/job:worker/task:{FLAGS.task_index}"
    with tf.device(tf.train.replica_device_setter(worker_device=worker_device, cluster=cluster)):
        global_step = tf.Variable(0, name="global_step", trainable=False)
        images = tf.placeholder(tf.float32, [None, mnist_input.NUM_PIXELS])
        labels = tf.placeholder(tf.float32, [None, mnist_input.NUM_CLASSES])
        hidden, *hidden_variables = dense(images, measure.HIDDEN_UNITS)
        logits, *logits_variables = dense(tf.nn.relu(hidden), mnist_input.NUM_CLASSES)
        variables = [*hidden_variables, *logits_variables]
        probabilities = tf.nn.softmax(logits)
        loss = -tf.reduce_sum(labels * tf.log(tf.clip_by_value(probabilities, 1e-10, 1.0)))
        train_op = make_optimizer().minimize(loss, global_step=global_step)
        init_op = tf.global_variables_initializer()

    logdir = tempfile.TemporaryDirectory()  # its checkpoints, which nobody reads
    supervisor = tf.train.Supervisor(
        is_chief=is_chief,
        logdir=logdir.name,
        init_op=init_op,
        recovery_wait_secs=1,
        global_step=global_step,
    )
    batches = next_batches(measure.load_train(FLAGS.task_index, measure.NUM_WORKERS))
    clock = measure.Clock()
    with supervisor.prepare_or_wait_for_session(server.target) as session:
        started_at, local_step, step = time.time(), 0, 0
        while step < FLAGS.train_steps:
            batch_images, batch_labels = next(batches)
            feed_dict = {images: batch_images, labels: batch_labels}
            _, loss_value, step = session.run([train_op, loss, global_step], feed_dict)
            local_step += 1
            print(
                f"{time.time() - started_at:f}: worker {FLAGS.task_index}: training step {local_step} done,"
                f" global step {step}, loss {loss_value:f}"
            )
            if is_chief and local_step == 1:
                # The clock is for a cluster that is complete, and the other worker may still be asleep.
                while session.run(global_step) < measure.NUM_WORKERS:
                    time.sleep(0.01)
                clock.start()
            elif is_chief and clock.is_due():
                step_now, values = session.run([global_step, variables])
                clock.keep(int(step_now), measure.Parameters(*values))
        if is_chief:
            clock.stop(int(session.run(global_step)))
            clock.print_result(measure.Parameters(*session.run(variables)))


def dense(inputs: tf.Tensor, num_outputs: int) -> tuple[tf.Tensor, tf.Variable, tf.Variable]:
    """Build a layer without activation; return its output, its weights and its biases."""
    num_inputs = int(inputs.shape[1])
    weights = tf.Variable(tf.truncated_normal([num_inputs, num_outputs], stddev=num_inputs**-0.5))
    biases = tf.Variable(tf.zeros([num_outputs]))
    return tf.matmul(inputs, weights) + biases, weights, biases


def make_optimizer() -> tf.train.Optimizer:
    """Return the optimizer of the flags; the loss is a sum, and so SGD needs a hundredth of the usual rate."""
    if FLAGS.optimizer == "adam":
        return tf.train.AdamOptimizer(FLAGS.learning_rate)
    if FLAGS.optimizer == "momentum":
        return tf.train.MomentumOptimizer(FLAGS.learning_rate, measure.MOMENTUM)
    return tf.train.GradientDescentOptimizer(FLAGS.learning_rate)


def next_batches(
    examples: mnist_input.Examples,
) -> Iterator[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]]:
    """Yield slices of arrays that are shuffled anew each epoch, as the tutorials' reader did.

    Images are float32 [b, 784] in [0, 1], labels one-hot, float32 [b, 10].
    """
    images = np.divide(examples.images, 255, dtype=np.float32)
    labels = np.eye(mnist_input.NUM_CLASSES, dtype=np.float32)[examples.labels]
    generator = np.random.default_rng([FLAGS.seed, FLAGS.task_index])
    while True:
        order = generator.permutation(len(labels))
        images, labels = images[order], labels[order]
        for start in range(0, len(labels) - measure.BATCH_SIZE + 1, measure.BATCH_SIZE):
            stop = start + measure.BATCH_SIZE
            yield images[start:stop], labels[start:stop]


if __name__ == "__main__":
    app.run(main)
