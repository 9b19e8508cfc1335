"""This project: `distributed.py` as a user launches it, with one ps and two workers by default.

Flags that are not defined here are passed on to it. This process reads the parameters from the ps tasks while they are
trained, as any client of a TensorFlow server can. A global step is one worker's batch (asynchronous) or one batch of
each (synchronous).
"""

import contextlib
import functools
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from absl import app, flags

import mnist_input
import model
from benchmarks.peers import input_cost, measure, problem
from runtime.cluster.probes import probe
from runtime.launch import ports
from runtime.updates.placement import PS_STRATEGIES, make_strategy

FLAGS = flags.FLAGS
flags.DEFINE_integer("ps", 1, "number of ps tasks")
flags.DEFINE_integer("workers", problem.NUM_WORKERS, "number of workers")
flags.DEFINE_enum("model", "mlp", model.MODELS, "model")
flags.DEFINE_enum("ps_strategy", "round_robin", PS_STRATEGIES, "how variables are spread over the ps tasks")
flags.DEFINE_integer("local_steps", 1, "steps between exchanges")
flags.DEFINE_boolean("sync_replicas", False, "synchronous updates")
flags.DEFINE_boolean("constant_batch", False, "train on the same batch in every odd second")
DEADLINE_SECS = 600.0


def main(argv: list[str]) -> None:
    """Start all tasks, watch their training, and print the result."""
    addresses = [f"localhost:{port}" for port in ports.choose_ports(FLAGS.ps + FLAGS.workers)]
    ps_hosts, worker_hosts = addresses[: FLAGS.ps], addresses[FLAGS.ps :]
    script = ["-m", "benchmarks.peers.constant_batch"] if FLAGS.constant_batch else ["distributed.py"]
    command = [sys.executable, *script, *argv[1:]]
    command += [f"--ps_hosts={','.join(ps_hosts)}", f"--worker_hosts={','.join(worker_hosts)}"]
    names = "data_dir model optimizer learning_rate train_steps seed local_steps sync_replicas ps_strategy"
    command += [f"--{name}={FLAGS[name].value}" for name in names.split()]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # runs the `finally` below
    tasks: dict[pathlib.Path, subprocess.Popen[bytes]] = {}  # by their logs
    deadline = time.monotonic() + DEADLINE_SECS

    def check() -> None:
        for log, task in tasks.items():
            if task.poll():
                sys.exit(f"error: {log.name} ended with status {task.poll()}:\n{log.read_text()[-2000:]}")
        if time.monotonic() > deadline:
            sys.exit(f"error: this has not ended after {DEADLINE_SECS:.0f} s")

    with tempfile.TemporaryDirectory() as folder:
        try:
            for job_name, hosts in (("ps", ps_hosts), ("worker", worker_hosts)):
                for index in range(len(hosts)):
                    log = pathlib.Path(folder, f"{job_name} {index}")
                    with open(log, "wb") as file:
                        role = [f"--job_name={job_name}", f"--task_index={index}"]
                        tasks[log] = subprocess.Popen([*command, *role], stdout=file, stderr=file)
            watch(ps_hosts, worker_hosts, check)
            for task in tasks.values():
                task.wait(30)
            check()
        finally:
            for task in tasks.values():
                task.kill()
                task.wait()


def watch(ps_hosts: list[str], worker_hosts: list[str], check: Callable[[], None]) -> None:
    """Keep snapshots of the parameters until the last step, and print the result; `check` raises if a task fails."""
    strategy = make_strategy(FLAGS.ps_strategy, len(ps_hosts))
    with tf.Graph().as_default() as graph:
        ps_tasks = tf.train.replica_device_setter(len(ps_hosts), worker_device="/job:ps/task:0", ps_strategy=strategy)
        with tf.device(ps_tasks):
            global_step = tf.train.create_global_step()
            variables = model.build_parameters(FLAGS.model, problem.HIDDEN_UNITS)
            values = [variable.read_value() for variable in (global_step, *variables.values())]
    for address in [*ps_hosts, *worker_hosts]:
        while probe(address):
            check()
            time.sleep(0.02)
    clock = measure.make_clock(problem.BATCH_SIZE * (FLAGS.workers if FLAGS.sync_replicas else 1))
    # Without the filter the session would wait for the workers, and without a timeout for a ps that has ended.
    config = tf.ConfigProto(device_filters=["/job:ps"], operation_timeout_in_ms=10_000)
    session = tf.Session(f"grpc://{ps_hosts[0]}", graph, config)

    def read() -> tuple[int, list[Any]]:
        step, *parameters = session.run(values)
        return int(step), parameters

    step = 0
    while step == 0:
        check()
        time.sleep(0.01)
        with contextlib.suppress(tf.errors.FailedPreconditionError):  # nothing is initialised yet
            step, parameters = read()
    clock.start(step)
    progress = [(time.time(), step)]
    while step < FLAGS.train_steps:
        check()
        time.sleep(FLAGS.snapshot_secs)
        step, parameters = read()
        clock.keep(step, parameters)
        progress.append((time.time(), step))
        if step < FLAGS.train_steps:  # at the last step, training may have ended earlier
            clock.stop(step)
    session.close()  # now, because it would wait for ps tasks that have ended
    ratio = (
        {"constant_batch_ratio": round(input_cost.constant_batch_ratio(progress), 4)} if FLAGS.constant_batch else {}
    )
    measure.print_result(clock, parameters, functools.partial(compute_logits, list(variables)), ratio)


def compute_logits(names: Sequence[str], parameters: Sequence[Any], inputs: Any) -> Any:
    """Return the model's logits, float32 [n, 10], from its parameters, their names, and images, float32 [n, 784]."""
    with tf.Graph().as_default(), tf.Session() as session:
        constants = {name: tf.constant(value) for name, value in zip(names, parameters, strict=True)}
        images = tf.placeholder(tf.float32, [None, mnist_input.NUM_PIXELS])
        logits = model.build_logits(constants, images)
        return np.concatenate([session.run(logits, {images: part}) for part in np.split(inputs, 10)])


if __name__ == "__main__":
    app.run(main, flags_parser=lambda argv: FLAGS(argv, known_only=True))
