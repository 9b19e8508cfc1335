"""The classic distributed MNIST script of many tutorials, made to run on TensorFlow 2.21.

One ps and two asynchronous workers: `feed_dict` from numpy, a cross-entropy summed over the batch, `Supervisor`, and a
line printed for each step. A global step is one worker's batch. Three things are not in the tutorials: each worker
trains on a shard of the data, the clock runs, and who starts the ps also ends it.
"""

import tempfile
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import tensorflow.compat.v1 as tf
from absl import flags

import mnist_input
from benchmarks.peers import measure, problem, tensorflow2

FLAGS = flags.FLAGS
flags.DEFINE_enum("job_name", None, ["ps", "worker"], "job of this process")
flags.DEFINE_integer("task_index", 0, "index of this process within its job")
flags.DEFINE_list("ps_hosts", [], "host:port of the ps tasks")
flags.DEFINE_list("worker_hosts", [], "host:port of the workers")

Images = npt.NDArray[np.float32]  # [n, 784], in [0, 1]
Labels = npt.NDArray[np.float32]  # [n, 10], one-hot


def main() -> None:
    """Serve as a ps, or train as a worker."""
    tf.disable_v2_behavior()
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts, "worker": FLAGS.worker_hosts})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
    else:
        train(cluster, server)


def train(cluster: tf.train.ClusterSpec, server: tf.train.Server) -> None:
    """Train, and print the result as worker 0."""
    is_chief = FLAGS.task_index == 0
    batches = next_batches(*load_train())
    clock = measure.make_clock()
    tf.set_random_seed(FLAGS.seed)
    worker_device = f"/job:worker/task:{FLAGS.task_index}"
    with tf.device(tf.train.replica_device_setter(worker_device=worker_device, cluster=cluster)):
        global_step = tf.Variable(0, name="global_step", trainable=False)
        images = tf.placeholder(tf.float32, [None, mnist_input.NUM_PIXELS])
        labels = tf.placeholder(tf.float32, [None, mnist_input.NUM_CLASSES])
        hidden, *hidden_variables = dense(images, problem.HIDDEN_UNITS)
        logits, *logits_variables = dense(tf.nn.relu(hidden), mnist_input.NUM_CLASSES)
        variables = [*hidden_variables, *logits_variables]
        probabilities = tf.nn.softmax(logits)
        loss = -tf.reduce_sum(labels * tf.log(tf.clip_by_value(probabilities, 1e-10, 1.0)))
        # The loss is a sum over the batch, and so are its gradients. Divided by the batch size, a learning rate means
        # the same as for the peers, whose loss is a mean.
        train_op = tensorflow2.make_optimizer(global_step, 1 / problem.BATCH_SIZE).minimize(
            loss, global_step=global_step
        )
        init_op = tf.global_variables_initializer()

    logdir = tempfile.TemporaryDirectory()  # nobody reads its checkpoints
    supervisor = tf.train.Supervisor(
        is_chief=is_chief,
        logdir=logdir.name,
        init_op=init_op,
        recovery_wait_secs=1,
        global_step=global_step,
    )
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
                # The other worker may still wait for the variables; the clock is for a complete cluster.
                while (first_step := int(session.run(global_step))) < problem.NUM_WORKERS:
                    time.sleep(0.01)
                clock.start(first_step)
            elif is_chief and clock.is_due():
                step_now, values = session.run([global_step, variables])
                clock.keep(int(step_now), problem.Parameters(*values))
        if is_chief:
            clock.stop(int(session.run(global_step)))
            measure.print_result(clock, problem.Parameters(*session.run(variables)))


def dense(inputs: tf.Tensor, num_outputs: int) -> tuple[tf.Tensor, tf.Variable, tf.Variable]:
    """Build a layer without activation; return its output, its weights and its biases."""
    num_inputs = int(inputs.shape[1])
    weights = tf.Variable(tf.truncated_normal([num_inputs, num_outputs], stddev=num_inputs**-0.5))
    biases = tf.Variable(tf.zeros([num_outputs]))
    return tf.matmul(inputs, weights) + biases, weights, biases


def load_train() -> tuple[Images, Labels]:
    """Read this worker's training examples."""
    images, labels = problem.load_train(FLAGS.task_index, problem.NUM_WORKERS)
    return np.divide(images, 255, dtype=np.float32), np.eye(mnist_input.NUM_CLASSES, dtype=np.float32)[labels]


def next_batches(images: Images, labels: Labels) -> Iterator[tuple[Images, Labels]]:
    """Yield batches as slices of arrays that are shuffled anew each epoch, as the reader of the tutorials does."""
    generator = np.random.default_rng([FLAGS.seed, FLAGS.task_index])
    while True:
        order = generator.permutation(len(labels))
        images, labels = images[order], labels[order]
        for start in range(0, len(labels) - problem.BATCH_SIZE + 1, problem.BATCH_SIZE):
            stop = start + problem.BATCH_SIZE
            yield images[start:stop], labels[start:stop]
