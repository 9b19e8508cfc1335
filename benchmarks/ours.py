"""This project: `distributed.py` as a user launches it, with one ps and two workers by default.

Every other flag than those below and `measure`'s is handed on to it. What the parameters are while it trains, this
process reads off the ps tasks, as any client of a TensorFlow server can. A global step is one worker's batch
(asynchronous) or one batch of each (synchronous).
"""

import contextlib
import itertools
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

import measure
import mnist_input
import model
from runtime import cluster, placement, ports

FLAGS = flags.FLAGS
flags.DEFINE_integer("ps", 1, "ps tasks")
flags.DEFINE_integer("workers", measure.NUM_WORKERS, "workers")
flags.DEFINE_enum("model", "mlp", model.MODELS, "the model")
flags.DEFINE_enum("ps_strategy", "round_robin", placement.PS_STRATEGIES, "how variables are spread over the ps tasks")
flags.DEFINE_integer("local_steps", 1, "steps between exchanges")
flags.DEFINE_boolean("sync_replicas", False, "synchronous updates")
flags.DEFINE_boolean("constant_batch", False, "train on the same batch in every odd second: what are these faster by?")
DEADLINE_SECS = 600.0
SWITCH_SECS = 0.2  # what the workers run when the second begins is still of the one before


def main(argv: list[str]) -> None:
    """Start all tasks, watch them train, and print the result."""
    addresses = [f"localhost:{port}" for port in ports.choose_ports(FLAGS.ps + FLAGS.workers)]
    ps_hosts, worker_hosts = addresses[: FLAGS.ps], addresses[FLAGS.ps :]
    here = pathlib.Path(__file__).parent
    script = here / "constant_batch.py" if FLAGS.constant_batch else here.parent / "distributed.py"
    command = [sys.executable, str(script), *argv[1:]]
    command += [f"--ps_hosts={','.join(ps_hosts)}", f"--worker_hosts={','.join(worker_hosts)}"]
    names = "data_dir model optimizer learning_rate train_steps seed local_steps sync_replicas ps_strategy"
    command += [f"--{name}={FLAGS[name].value}" for name in names.split()]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that they are ended with us
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
            watch(ps_hosts, check)
            for task in tasks.values():
                task.wait(30)
            check()
        finally:
            for task in tasks.values():
                task.kill()
                task.wait()


def watch(ps_hosts: list[str], check: Callable[[], None]) -> None:
    """Keep snapshots of the parameters until the last step, and print the result; `check` ends it if it must."""
    strategy = placement.make_strategy(FLAGS.ps_strategy, len(ps_hosts))
    with tf.Graph().as_default() as graph:
        ps_tasks = tf.train.replica_device_setter(len(ps_hosts), worker_device="/job:ps/task:0", ps_strategy=strategy)
        with tf.device(ps_tasks):
            global_step = tf.train.create_global_step()
            model.build_logits(tf.zeros([1, mnist_input.NUM_PIXELS]), FLAGS.model, measure.HIDDEN_UNITS)
            values = [variable.read_value() for variable in (global_step, *tf.trainable_variables())]
    for address in ps_hosts:
        while cluster.probe(address):
            check()
            time.sleep(0.05)
    # Without the filter it would wait for the workers, and without a timeout for ever for a ps that has ended.
    config = tf.ConfigProto(device_filters=["/job:ps"], operation_timeout_in_ms=10_000)
    session = tf.Session(f"grpc://{ps_hosts[0]}", graph, config)

    def read() -> tuple[int, list[Any]]:
        step, *parameters = session.run(values)
        return int(step), parameters

    clock = measure.Clock(measure.BATCH_SIZE * (FLAGS.workers if FLAGS.sync_replicas else 1))
    step = 0
    while step == 0:
        check()
        time.sleep(0.01)
        with contextlib.suppress(tf.errors.FailedPreconditionError):  # nothing is initialised yet
            step, parameters = read()
    clock.start()
    progress = [(time.time(), step)]
    while step < FLAGS.train_steps:
        check()
        time.sleep(FLAGS.snapshot_secs)
        step, parameters = read()
        clock.keep(step, parameters)
        progress.append((time.time(), step))
        if step < FLAGS.train_steps:  # later it may have stood still
            clock.stop(step)
    session.close()  # while the ps tasks are there: without them it waits
    more = {"constant_batch_ratio": round(constant_batch_ratio(progress), 4)} if FLAGS.constant_batch else {}
    clock.print_result(parameters, compute_logits, more)


def constant_batch_ratio(progress: Sequence[tuple[float, int]]) -> float:
    """Return the rate of the odd seconds, those of a constant batch, as a ratio to that of the even ones.

    Args:
      progress: the time, as `time.time()`, and the global step then, again and again.
    """
    secs, steps = [0.0, 0.0], [0, 0]
    warm = progress[int(measure.WARM_UP * len(progress)) : -1]  # at the last step it may have stood still
    for (start, first_step), (end, last_step) in itertools.pairwise(warm):
        if int(start - SWITCH_SECS) == int(end):
            secs[int(end) % 2] += end - start
            steps[int(end) % 2] += last_step - first_step
    return (steps[1] / secs[1]) / (steps[0] / secs[0])


def compute_logits(parameters: Sequence[Any], inputs: Any) -> Any:
    """Return the model's logits, float32 [n, 10], from parameters in the order of its variables, and images."""
    values = iter(parameters)
    with (
        tf.Graph().as_default(),
        tf.variable_scope("", custom_getter=lambda *_, **__: tf.constant(next(values))),
        tf.Session() as session,
    ):
        images = tf.placeholder(tf.float32, [None, mnist_input.NUM_PIXELS])
        logits = model.build_logits(images, FLAGS.model, measure.HIDDEN_UNITS)
        return np.concatenate([session.run(logits, {images: part}) for part in np.split(inputs, 10)])


if __name__ == "__main__":
    app.run(main, flags_parser=lambda argv: FLAGS(argv, known_only=True))
