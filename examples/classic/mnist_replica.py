"""The classic parameter-server script of the TensorFlow 1 tutorials, on today's TensorFlow. See docs/tutorial.md.

It keeps the faults of the tutorials, so that you can see them. distributed.py has none of them.
"""

import gzip
import os

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()  # sessions and graphs, as in TensorFlow 1

flags = tf.app.flags
flags.DEFINE_string("job_name", None, "ps or worker")
flags.DEFINE_integer("task_index", 0, "index within the job; worker 0 is the chief")
flags.DEFINE_list("ps_hosts", "localhost:2222", "comma-separated host:port")
flags.DEFINE_list("worker_hosts", "localhost:2223,localhost:2224", "comma-separated host:port")
flags.DEFINE_string("data_dir", os.path.expanduser("~/.cache/distributed-mnist"), "folder with the four MNIST files")
flags.DEFINE_integer("train_steps", 10000, "global step at which training ends")
flags.DEFINE_integer("batch_size", 100, "examples in one step of one worker")
flags.DEFINE_boolean("issync", False, "synchronous updates")
FLAGS = flags.FLAGS


def load(split):
    """Read images, float32 [n, 784] in [0, 1], and one-hot labels, float32 [n, 10]."""
    arrays = []
    for kind, header in (("images-idx3", 16), ("labels-idx1", 8)):
        path = os.path.join(FLAGS.data_dir, f"{split}-{kind}-ubyte")
        with open(path, "rb") if os.path.exists(path) else gzip.open(f"{path}.gz") as file:
            arrays.append(np.frombuffer(file.read(), np.uint8, offset=header))
    return arrays[0].reshape(-1, 784).astype(np.float32) / 255, np.eye(10, dtype=np.float32)[arrays[1]]


def dense(inputs, num_inputs, num_outputs):
    """Build a fully connected layer without activation."""
    weights = tf.Variable(tf.truncated_normal([num_inputs, num_outputs], stddev=num_inputs**-0.5))
    return tf.matmul(inputs, weights) + tf.Variable(tf.zeros([num_outputs]))


def main(_):
    """Serve as a ps, or train as a worker."""
    # Each process knows the addresses of all processes and starts a server at its own.
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts, "worker": FLAGS.worker_hosts})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()  # it computes what the workers' sessions ask for, and never returns

    # The graph: each worker builds its own. Variables go to a ps, and computations to this worker.
    worker = f"/job:worker/task:{FLAGS.task_index}"
    with tf.device(tf.train.replica_device_setter(worker_device=worker, cluster=cluster)):
        global_step = tf.Variable(0, name="global_step", trainable=False)
        images = tf.placeholder(tf.float32, [None, 784])
        labels = tf.placeholder(tf.float32, [None, 10])
        logits = dense(tf.nn.relu(dense(images, 784, 100)), 100, 10)
        loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits_v2(labels=labels, logits=logits))
        train_op = tf.train.AdamOptimizer(0.001).minimize(loss, global_step=global_step)
        accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), tf.argmax(labels, 1)), tf.float32))
        init_op = tf.global_variables_initializer()

    # The session: the chief initialises the variables, and the others wait until it has.
    is_chief = FLAGS.task_index == 0
    supervisor = tf.train.Supervisor(is_chief=is_chief, init_op=init_op, global_step=global_step, recovery_wait_secs=1)
    train_images, train_labels = load("train")
    generator = np.random.default_rng(FLAGS.task_index)
    with supervisor.prepare_or_wait_for_session(server.target) as session:
        step, local_step = 0, 0
        while step < FLAGS.train_steps:
            batch = generator.integers(len(train_labels), size=FLAGS.batch_size)
            # One call: pull the variables from the ps, compute gradients here, push them to the ps, which applies them.
            feed_dict = {images: train_images[batch], labels: train_labels[batch]}
            _, loss_now, step = session.run([train_op, loss, global_step], feed_dict)
            local_step += 1
            if local_step % 100 == 0:
                print(f"worker {FLAGS.task_index}: local step {local_step}, global step {step}, loss {loss_now:.4f}")
        if is_chief:
            test_images, test_labels = load("t10k")
            print("test accuracy", session.run(accuracy, {images: test_images, labels: test_labels}))


if __name__ == "__main__":
    tf.app.run()
