"""The classic way to train a table: `embedding_lookup` under `replica_device_setter`, one update for each batch.

It runs beside the files of examples/languages, and trains their model.
"""

import json
import sys
import time

import numpy as np
import tensorflow.compat.v1 as tf

import mnist_input
import model

BATCH_SIZE, NUM_WORKERS = 100, 2


def main(job_name: str, task_index: int, ps_host: str, worker_hosts: str, train_steps: int, rate: float) -> None:
    """Serve as the ps, or train as a worker; worker 0 prints the result."""
    tf.disable_eager_execution()
    cluster = tf.train.ClusterSpec({"ps": [ps_host], "worker": worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name, task_index)
    if job_name == "ps":
        server.join()
    examples = mnist_input.load("/usr/share/dict", "train")
    own = mnist_input.Examples(*(column[task_index::NUM_WORKERS] for column in examples))
    worker = f"/job:worker/task:{task_index}"
    with tf.device(tf.train.replica_device_setter(worker_device=worker, cluster=cluster)):
        global_step = tf.train.create_global_step()
        parameters = model.build_parameters("ngrams", 0)
        rows, dim, _ = parameters["ngrams"]
        table = tf.get_variable("table", [rows, dim], initializer=tf.random_uniform_initializer(-1 / dim, 1 / dim))
        words, labels = tf.placeholder(tf.int32, [None, model.MAX_LETTERS]), tf.placeholder(tf.int32, [None])
        vectors = tf.nn.embedding_lookup(table, model.build_ids(words)["ngrams"])
        logits = model.build_logits({**parameters, "ngrams": vectors}, words)
        falling = tf.train.polynomial_decay(float(rate), global_step, train_steps, 0.0)
        train_op = tf.train.GradientDescentOptimizer(falling).minimize(model.build_loss(logits, labels), global_step)
        accuracy = model.build_accuracy(logits, labels)
    generator, step, started = np.random.default_rng(task_index), 0, None
    with tf.train.MonitoredTrainingSession(server.target, is_chief=task_index == 0) as session:
        while step < train_steps:
            batch = generator.integers(len(own.labels), size=BATCH_SIZE)
            _, step = session.run([train_op, global_step], {words: own.words[batch], labels: own.labels[batch]})
            started = started or (time.monotonic(), step)
        secs, steps = time.monotonic() - started[0], step - started[1]
        if task_index == 0:
            test = mnist_input.load("/usr/share/dict", "t10k")
            parts = np.array_split(np.arange(len(test.labels)), 120)
            right = [
                len(p) * float(session.run(accuracy, {words: test.words[p], labels: test.labels[p]})) for p in parts
            ]
            result = {"test_accuracy": sum(right) / len(test.labels), "examples_per_sec": BATCH_SIZE * steps / secs}
            print(json.dumps({**result, "train_secs": secs}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:5], int(sys.argv[5]), float(sys.argv[6]))
