"""How the cost of a step grows with workers, ps tasks and the network, and what a simple model says of it.

    .venv/bin/python benchmarks/scaling.py messages     # what crosses between tasks, counted in TensorFlow's graphs
    .venv/bin/python benchmarks/scaling.py processes    # 1 to 8 workers, 1 to 4 ps, both models
    .venv/bin/python benchmarks/scaling.py replication  # one graph for each worker, one for all, towers on two devices
    .venv/bin/python benchmarks/scaling.py network      # each task on a host of its own, with slow links between them
    .venv/bin/python benchmarks/scaling.py encryption   # the same hosts, without and with WireGuard

Each writes a table into `docs/scaling.md`, but replication into `docs/replication.md`, and encryption into
`docs/security.md`. The last two need Linux, `unshare`, `ip` and `/dev/net/tun`, and the last also WireGuard.
"""

import argparse
import pathlib
import re
import sys
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # the project is run from its checkout, not installed

import distributed  # first: it sets what TensorFlow reads when it is imported

# isort: split
import psutil
import tensorflow.compat.v1 as tf

import mnist_input
from benchmarks import contenders, replication, report
from benchmarks.isolation import isolate
from benchmarks.testbed.encrypted import EncryptedNetwork
from benchmarks.testbed.messages import num_tensors_sent
from benchmarks.testbed.network import Network
from benchmarks.testbed.processes import Cluster, poll_for
from runtime.cluster.task import Task
from runtime.data.sources import open_source
from runtime.launch import ports
from runtime.machine.session_config import make_session_config
from runtime.updates.asynchronous import EXCHANGES_PER_RUN
from runtime.updates.mode import Mode

BATCH_SIZE = 100
MODELS = ("mlp", "cnn")
ADAM = "adam 0.002"
NUM_STEPS = {"mlp": 6000, "cnn": 800}
NUM_PS = (1, 2, 4)
NUM_WORKERS = (1, 2, 4, 8)
MODES = {"asynchronous": "--local_steps=1", "16 local steps": "--local_steps=16", "synchronous": "--sync_replicas"}

LINKS = {  # seconds of a round trip, and bits per second of each host, each way
    "no limit": (0.0, float("inf")),
    "1 ms of delay": (2e-3, float("inf")),
    "10 ms of delay": (20e-3, float("inf")),
    "1 Gbit/s": (0.0, 1e9),
    "100 Mbit/s": (0.0, 1e8),
}
NETWORK_WORKERS = 2
LOCAL_STEPS = (1, 4, 16, 64)
EXCHANGES = [(local_steps, "float32") for local_steps in LOCAL_STEPS] + [(1, "bfloat16"), (16, "bfloat16")]
MEASURED_SECS = 8.0
PROGRESS = re.compile(r"global step (\d+)/\d+, local step \d+, loss")


def count_messages() -> str:
    """Return a table of the calls of an exchange: one for each tensor sent, and its share of the calls of a run.

    Starting a run and cleaning up after it takes two calls to each ps, which the exchanges of the run share.
    """
    rows = []
    for model in MODELS:
        for mode, flag in MODES.items():
            row = [f"`{model}`, {mode}"]
            for num_ps in NUM_PS:
                num_sent, num_exchanges = sent_in_a_run(num_ps, [f"--model={model}", flag])
                row.append(f"{(num_sent + 2 * num_ps) / num_exchanges:.1f}")
            rows.append(row)
    return report.make_table(("calls from task to task", *(f"{num_ps} ps" for num_ps in NUM_PS)), rows)


def sent_in_a_run(num_ps: int, flags: list[str]) -> tuple[int, int]:
    """Return how many tensors one run of a worker's graph sends between tasks, and how many exchanges it has."""
    distributed.FLAGS(["", "--ps_strategy=greedy", "--local_steps=1", "--nosync_replicas", *flags])
    addresses = [f"localhost:{port}" for port in ports.choose_ports(num_ps + 1)]
    task = Task("worker", 0, tuple(addresses[:num_ps]), tuple(addresses[num_ps:]))
    mode = Mode(**{name: getattr(distributed.FLAGS, name) for name in Mode._fields})
    cluster = tf.train.ClusterSpec(task.jobs)
    servers = [tf.train.Server(cluster, "ps", ps) for ps in range(num_ps)]
    servers.append(tf.train.Server(cluster, "worker", 0))
    source = open_source(distributed.FLAGS.data_dir, "train", mnist_input).share(0, 1)
    config = make_session_config(task)
    tf.disable_eager_execution()
    tf.disable_control_flow_v2()
    with tf.Graph().as_default():
        batches, updates, _ = distributed.build_training(task, cluster, mode, config, source)
        with tf.Session(servers[-1].target, config=config) as session:
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            session.run(tf.variables_initializer(updates.unsaved_variables))
            session.run(batches.initializer, batches.feed_dict(0))
            for hook in updates.hooks:
                hook.begin()
                hook.after_create_session(session, tf.train.Coordinator())
            num_sent = num_tensors_sent(session, updates.train_op)
    return num_sent, mode.exchanges_per_run


class Run(NamedTuple):
    """What a run with some number of tasks measured."""

    examples_per_sec: float
    secs_to_target: float | None  # None: never
    step_bytes: float  # sent between tasks for each global step

    def __str__(self) -> str:
        rate = f"{self.examples_per_sec / 1000:.{0 if self.examples_per_sec >= 10000 else 1}f}"
        return f"{rate} (never)" if self.secs_to_target is None else f"{rate} ({self.secs_to_target:.1f} s)"


def measure_processes() -> str:
    """Return a table for each number of tasks, asynchronous, with one step per exchange."""
    columns = [(model, num_ps) for model in MODELS for num_ps in NUM_PS]
    runs = {
        (*column, num_workers): run_tasks(*column, num_workers) for num_workers in NUM_WORKERS for column in columns
    }
    rows = [[str(num), *(str(run) for key, run in runs.items() if key[-1] == num)] for num in NUM_WORKERS]
    lines = [report.make_table(("workers", *(f"`{model}`, {num_ps} ps" for model, num_ps in columns)), rows), ""]
    for model in MODELS:
        kilobytes = [run.step_bytes / 1000 for key, run in runs.items() if key[0] == model]
        lines.append(f"A step of `{model}` moves {min(kilobytes):.0f} to {max(kilobytes):.0f} kB.")
    return "\n".join(lines)


def run_tasks(model: str, num_ps: int, num_workers: int) -> Run:
    """Train once."""
    flags = (f"--model={model}", f"--ps={num_ps}", f"--workers={num_workers}", "--ps_strategy=greedy")
    contender = contenders.Contender(f"{flags}", "ours", NUM_STEPS[model], (*flags, "--snapshot_secs=0.5"))
    num_bytes = _loopback_bytes()
    result = contenders.run(contender, ADAM, seed=0)
    step_bytes = (_loopback_bytes() - num_bytes) / result["global_step"]  # with the few bytes of the start
    return Run(result["examples_per_sec"], result["secs_to_target"], step_bytes)


def _loopback_bytes() -> int:
    return int(psutil.net_io_counters(pernic=True)["lo"].bytes_sent)


class Rate(NamedTuple):
    """The rates of a cluster of one ps and two workers, per second."""

    exchanges: float  # of both workers
    bytes: float  # that the ps sent and received


def measure_network() -> str:
    """Return a table of 1000 examples/s over each link, and of what the model predicts: see `predict()`."""
    rows = []
    unlimited: dict[tuple[int, str], Rate] = {}
    for link, (round_trip_secs, bits_per_sec) in LINKS.items():
        row = [link]
        for local_steps, dtype in EXCHANGES:
            rate = measure_rate(local_steps, round_trip_secs, bits_per_sec, dtype=dtype)
            print(f"{link}, {local_steps} local steps, {dtype}: {rate}", flush=True)
            base = unlimited.setdefault((local_steps, dtype), rate)
            examples = local_steps * BATCH_SIZE / 1000
            predicted = examples * predict(base, local_steps, round_trip_secs, bits_per_sec)
            row.append(f"{examples * rate.exchanges:.1f} ({predicted:.1f})")
        rows.append(row)
    names = [f"H = {local_steps}" + (", bfloat16" if dtype == "bfloat16" else "") for local_steps, dtype in EXCHANGES]
    rows.append(["kB of an exchange", *(f"{rate.bytes / rate.exchanges / 1000:.0f}" for rate in unlimited.values())])
    return report.make_table(("link", *names), rows)


def predict(unlimited: Rate, local_steps: int, round_trip_secs: float, bits_per_sec: float) -> float:
    """Return the exchanges per second of two workers over a link, predicted from their rate without limits.

    An exchange takes a round trip and the time of its bytes, half of them each way. With H = 1 a worker waits for it
    before it computes. With more local steps, a worker computes while two exchanges are on their way. The start and the
    end of a run take two more round trips, which its exchanges share. The link of the ps carries the bytes of both
    workers.
    """
    max_pending = 0 if local_steps == 1 else 1
    busy_secs = NETWORK_WORKERS / unlimited.exchanges
    exchange_bytes = unlimited.bytes / unlimited.exchanges
    link_secs = round_trip_secs + 8 * exchange_bytes / bits_per_sec
    worker_secs = max(busy_secs, (busy_secs + link_secs) / (1 + max_pending))
    worker_secs += 2 * round_trip_secs / EXCHANGES_PER_RUN
    ps_link_secs = NETWORK_WORKERS * 8 * exchange_bytes / 2 / bits_per_sec
    return NETWORK_WORKERS / max(worker_secs, ps_link_secs)


def measure_encryption() -> str:
    """Return a table of 1000 examples/s without encryption and with it, and of the ratio."""
    rates = {
        name: [measure_rate(local_steps, 0.0, float("inf"), kind).exchanges for local_steps in LOCAL_STEPS]
        for name, kind in (("open", Network), ("WireGuard", EncryptedNetwork))
    }
    rows = [
        [
            name,
            *(
                f"{local_steps * BATCH_SIZE / 1000 * rate:.1f}"
                for local_steps, rate in zip(LOCAL_STEPS, row, strict=True)
            ),
        ]
        for name, row in rates.items()
    ]
    rows.append(["ratio", *(f"{encrypted / opened:.2f}" for opened, encrypted in zip(*rates.values(), strict=True))])
    return report.make_table(("network", *(f"H = {local_steps}" for local_steps in LOCAL_STEPS)), rows)


def measure_rate(
    local_steps: int,
    round_trip_secs: float,
    bits_per_sec: float,
    kind: type[Network] = Network,
    dtype: str = "float32",
) -> Rate:
    """Train for a while on one ps and two workers, each on a host of its own."""
    with tempfile.TemporaryDirectory() as folder, kind(1 + NETWORK_WORKERS) as network:
        flags = ["--train_steps=100000000", f"--local_steps={local_steps}", "--log_every_secs=0.1", "--optimizer=sgd"]
        flags.append(f"--exchange_dtype={dtype}")
        with Cluster(folder, 1, NETWORK_WORKERS, *flags, network=network) as tasks:
            tasks.start()
            for worker in range(NETWORK_WORKERS):
                tasks[f"worker {worker}"].wait_for_output(PROGRESS.pattern)
            network.set_delay(round_trip_secs / 2)
            network.set_bits_per_sec(bits_per_sec)
            time.sleep(2)  # until everything on its way has arrived
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


MEASUREMENTS: dict[str, Callable[[], str]] = {
    "messages": count_messages,
    "processes": measure_processes,
    "replication": replication.measure,
    "network": measure_network,
    "encryption": measure_encryption,
}
DOCUMENTS = {"replication": report.REPLICATION, "encryption": report.SECURITY}  # of the others, scaling.md
OF_HOSTS = ("network", "encryption")  # these have networks of their own


def main() -> None:
    """Measure what the command line names, and write its section of the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(MEASUREMENTS))
    parser.add_argument("--no_isolation", action="store_true", help="run in the machine's own network")
    options = parser.parse_args()
    if options.what not in OF_HOSTS and not options.no_isolation:
        isolate()
    header = report.run_header()
    text = MEASUREMENTS[options.what]()
    print(text)
    report.write_section(DOCUMENTS.get(options.what, report.SCALING), options.what, f"{header}\n\n{text}")


if __name__ == "__main__":
    main()
