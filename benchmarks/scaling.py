"""How the cost of a step grows with workers, ps tasks and the network, and what a simple model says of it.

    .venv/bin/python benchmarks/scaling.py messages     # what crosses between tasks, counted in TensorFlow's graphs
    .venv/bin/python benchmarks/scaling.py processes    # 1 to 8 workers, 1 to 4 ps, both models
    .venv/bin/python benchmarks/scaling.py network      # each task on a host of its own, with slow links between them

It prints tables of Markdown. The last needs what `testbed/network.py` needs (Linux, `unshare`, `ip`, `/dev/net/tun`),
and `tests/requirements.txt`.
"""

import argparse
import pathlib
import re
import sys
import tempfile
import time
from typing import NamedTuple

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # the project is run from its checkout, not installed

import distributed  # first: it sets what TensorFlow reads when it is imported

# isort: split
import compare
import psutil
import tensorflow.compat.v1 as tf

import mnist_input
from benchmarks.testbed.messages import num_tensors_sent
from benchmarks.testbed.network import Network
from benchmarks.testbed.processes import Cluster, poll_for
from runtime import cluster, placement, ports, updates

BATCH_SIZE = 100
MODELS = ("mlp", "cnn")
ADAM = "adam 0.002"
NUM_STEPS = {"mlp": 6000, "cnn": 800}
NUM_PS = (1, 2, 4)
NUM_WORKERS = (1, 2, 4, 8)

LINKS = {  # seconds of a round trip, and bits per second of each host, each way
    "no limit": (0.0, float("inf")),
    "1 ms of delay": (2e-3, float("inf")),
    "10 ms of delay": (20e-3, float("inf")),
    "1 Gbit/s": (0.0, 1e9),
    "100 Mbit/s": (0.0, 1e8),
}
NETWORK_WORKERS = 2
LOCAL_STEPS = (1, 4, 16, 64)
MEASURED_SECS = 8.0
PROGRESS = re.compile(r"global step (\d+)/\d+, local step \d+, loss")


def count_messages() -> None:
    """Print how many calls an exchange takes: one for each tensor that is sent, and two to each ps for each run."""
    tf.disable_eager_execution()
    tf.disable_control_flow_v2()
    print("| model | ps | mode | tensors sent | calls of the run | calls for each exchange |")
    print("| --- | --- | --- | --- | --- | --- |")
    modes = {"H = 1": "--local_steps=1", "H = 16": "--local_steps=16", "synchronous": "--sync_replicas"}
    for model in MODELS:
        for num_ps in NUM_PS:
            for mode, flag in modes.items():
                num_sent, num_exchanges = sent_in_a_run(num_ps, [f"--model={model}", flag])
                num_calls = 2 * num_ps
                figures = f"{num_sent} | {num_calls} | {(num_sent + num_calls) / num_exchanges:.1f}"
                print(f"| {model} | {num_ps} | {mode} | {figures} |", flush=True)


def sent_in_a_run(num_ps: int, flags: list[str]) -> tuple[int, int]:
    """Return how many tensors one run of a worker's graph sends between tasks, and how many exchanges it has."""
    distributed.FLAGS(["", "--ps_strategy=greedy", "--local_steps=1", "--nosync_replicas", *flags])
    addresses = [f"localhost:{port}" for port in ports.choose_ports(num_ps + 1)]
    task = cluster.Task("worker", 0, tuple(addresses[:num_ps]), tuple(addresses[num_ps:]))
    cluster_spec = tf.train.ClusterSpec(task.jobs)
    servers = [tf.train.Server(cluster_spec, "ps", ps) for ps in range(num_ps)]
    servers.append(tf.train.Server(cluster_spec, "worker", 0))
    with tf.Graph().as_default():
        strategy = placement.make_strategy("greedy", num_ps)
        with tf.device(
            tf.train.replica_device_setter(worker_device=task.device, cluster=cluster_spec, ps_strategy=strategy)
        ):
            training = distributed.build_training(task, mnist_input.load(distributed.FLAGS.data_dir, "train"))
        with tf.Session(servers[-1].target, config=cluster.session_config(task)) as session:
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            session.run(tf.variables_initializer(training.updates.unsaved_variables))
            session.run(training.batches.initializer, training.batches.feed_dict)
            for hook in training.updates.hooks:
                hook.begin()
                hook.after_create_session(session, tf.train.Coordinator())
            num_sent = num_tensors_sent(session, training.updates.train_op)
    return num_sent, 1 if distributed.FLAGS.sync_replicas else updates.EXCHANGES_PER_RUN


def measure_processes() -> None:
    """Print the figures for each number of tasks, asynchronous, each step exchanged."""
    print("| model | ps | workers | examples/s | s to 97.5 % | kB per step |\n| --- | --- | --- | --- | --- | --- |")
    for model in MODELS:
        for num_ps in NUM_PS:
            for num_workers in NUM_WORKERS:
                flags = (f"--model={model}", f"--ps={num_ps}", f"--workers={num_workers}", "--ps_strategy=greedy")
                contender = compare.Contender("ours", "ours", NUM_STEPS[model], (*flags, "--snapshot_secs=0.5"))
                num_bytes = _loopback_bytes()
                result = compare.run(contender, ADAM, seed=0)
                step_bytes = (_loopback_bytes() - num_bytes) / result["global_step"]  # all, with the start's few
                figures = f"{result['examples_per_sec']:.0f} | {result['secs_to_target']} | {step_bytes / 1000:.0f}"
                print(f"| {model} | {num_ps} | {num_workers} | {figures} |", flush=True)


def _loopback_bytes() -> int:
    return int(psutil.net_io_counters(pernic=True)["lo"].bytes_sent)


class Rate(NamedTuple):
    """What a cluster of one ps and two workers did in a second."""

    exchanges: float  # of both workers
    bytes: float  # that the ps sent and received


def measure_network() -> None:
    """Print what was measured over each link, and what the model says: see `predict()`."""
    print("| link | H | examples/s | predicted | kB per exchange |\n| --- | --- | --- | --- | --- |")
    free: dict[int, Rate] = {}
    for link, (round_trip_secs, bits_per_sec) in LINKS.items():
        for local_steps in LOCAL_STEPS:
            rate = measure_rate(local_steps, round_trip_secs, bits_per_sec)
            base = free.setdefault(local_steps, rate)
            examples = local_steps * BATCH_SIZE
            predicted = examples * predict(base, local_steps, round_trip_secs, bits_per_sec)
            kilobytes = rate.bytes / rate.exchanges / 1000
            figures = f"{examples * rate.exchanges:.0f} | {predicted:.0f} | {kilobytes:.0f}"
            print(f"| {link} | {local_steps} | {figures} |", flush=True)


def predict(free: Rate, local_steps: int, round_trip_secs: float, bits_per_sec: float) -> float:
    """Return the exchanges per second of two workers over a link, from those without its limits.

    An exchange is a round trip and its bytes, half of them each way. With H = 1 a worker waits for that, and then
    computes; with more, two are on their way at a time, and it computes meanwhile. The begin and the end of a run are
    two more round trips, which its exchanges share. And the link of the ps has to carry what both workers exchange.
    """
    max_pending = 0 if local_steps == 1 else 1
    busy_secs = NETWORK_WORKERS / free.exchanges
    exchange_bytes = free.bytes / free.exchanges
    link_secs = round_trip_secs + 8 * exchange_bytes / bits_per_sec
    worker_secs = max(busy_secs, (busy_secs + link_secs) / (1 + max_pending))
    worker_secs += 2 * round_trip_secs / updates.EXCHANGES_PER_RUN
    ps_link_secs = NETWORK_WORKERS * 8 * exchange_bytes / 2 / bits_per_sec
    return NETWORK_WORKERS / max(worker_secs, ps_link_secs)


def measure_rate(local_steps: int, round_trip_secs: float, bits_per_sec: float) -> Rate:
    """Train for a while on one ps and two workers, each on a host of its own."""
    with tempfile.TemporaryDirectory() as folder, Network(1 + NETWORK_WORKERS) as network:
        flags = ["--train_steps=100000000", f"--local_steps={local_steps}", "--log_every_secs=0.1", "--optimizer=sgd"]
        with Cluster(folder, 1, NETWORK_WORKERS, *flags, network=network) as tasks:
            tasks.start()
            for worker in range(NETWORK_WORKERS):
                tasks[f"worker {worker}"].wait_for_output(PROGRESS.pattern)
            network.set_delay(round_trip_secs / 2)
            network.set_bits_per_sec(bits_per_sec)
            time.sleep(2)  # until what is on its way has arrived
            secs, step, num_bytes = _read(tasks, network)
            time.sleep(MEASURED_SECS)
            secs_after, step_after, num_bytes_after = _read(tasks, network)
            for name in tasks.names:
                tasks[name].kill()
    secs = secs_after - secs
    return Rate((step_after - step) / local_steps / secs, (num_bytes_after - num_bytes) / secs)


def _read(tasks: Cluster, network: Network) -> tuple[float, int, int]:
    """Return the time, the global step and the bytes so far, as soon as the chief has logged its next line."""
    before = len(PROGRESS.findall(tasks["worker 0"].output()))
    lines = poll_for(lambda: PROGRESS.findall(tasks["worker 0"].output())[before:], "progress of worker 0")
    return time.monotonic(), int(lines[-1]), network.num_bytes(0)


def main() -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["messages", "processes", "network"])
    parser.add_argument("--no_isolation", action="store_true")
    options = parser.parse_args()
    if options.what == "network":
        measure_network()
        return
    if not options.no_isolation:
        compare.isolate()
    if options.what == "messages":
        count_messages()
    else:
        measure_processes()


if __name__ == "__main__":
    main()
