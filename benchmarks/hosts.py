"""What the network between hosts does to the speed: each task has a host of its own.

It needs Linux, `unshare`, `ip` and `/dev/net/tun`, and the encryption also WireGuard.
"""

import functools
import itertools
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import NamedTuple

import runtime.process.environment  # noqa: F401  (first: it sets what TensorFlow reads when it is imported)

# isort: split
from benchmarks import report, tables
from benchmarks.testbed.encrypted import EncryptedNetwork
from benchmarks.testbed.network import Network
from benchmarks.testbed.processes import Cluster
from runtime.updates.mode import EXCHANGES_PER_RUN

BATCH_SIZE = 100
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
MEASURED_SECS = 8
FLAGS = ("--train_steps=100000000", "--log_every_secs=0.1", "--optimizer=sgd")
PROGRESS = r"global step (\d+)/\d+, local step \d+, loss"

SLOW = LINKS["100 Mbit/s"][1]
NUM_WORKERS_OF_PS, NUM_PS = (4, 8), (1, 2, 4)
MODELS = {  # the flags of each; the bytes of `mlp` are spread evenly over the ps tasks
    "`mlp`": ("--ps_strategy=greedy", "--partition_bytes=80000"),
    "a table": (tables.TABLE, "--rows=1000000", "--data_dir=."),
}


class Rate(NamedTuple):
    """The rates of a cluster, per second."""

    exchanges: float  # of all workers
    bytes: float  # that all ps tasks sent and received


def measure_network(measured_secs: int = MEASURED_SECS, max_local_steps: int = LOCAL_STEPS[-1]) -> str:
    """Return a table of 1000 examples/s over each link, and of what the model predicts: see `predict()`."""
    rows = []
    exchanges = [(local_steps, dtype) for local_steps, dtype in EXCHANGES if local_steps <= max_local_steps]
    unlimited: dict[tuple[int, str], Rate] = {}
    for link, (round_trip_secs, bits_per_sec) in LINKS.items():
        row = [link]
        for local_steps, dtype in exchanges:
            rate = measure_rate(measured_secs, local_steps, dtype, round_trip_secs, bits_per_sec)
            print(f"{link}, {local_steps} local steps, {dtype}: {rate}", flush=True)
            base = unlimited.setdefault((local_steps, dtype), rate)
            examples = local_steps * BATCH_SIZE / 1000
            predicted = examples * predict(base, local_steps, round_trip_secs, bits_per_sec)
            row.append(f"{examples * rate.exchanges:.1f} ({predicted:.1f})")
        rows.append(row)
    names = [f"H = {local_steps}" + (", bfloat16" if dtype == "bfloat16" else "") for local_steps, dtype in exchanges]
    rows.append(["kB of an exchange", *(f"{rate.bytes / rate.exchanges / 1000:.0f}" for rate in unlimited.values())])
    return report.make_table(("link", *names), rows)


def predict(
    unlimited: Rate,
    local_steps: int,
    round_trip_secs: float,
    bits_per_sec: float,
    num_workers: int = NETWORK_WORKERS,
    num_ps: int = 1,
) -> float:
    """Return the exchanges per second of all workers over a link, predicted from their rate without limits.

    An exchange takes a round trip and the time of its bytes, half of them each way. With H = 1 a worker waits for it
    before it computes. With more local steps, a worker computes while two exchanges are on their way. The start and the
    end of a run take two more round trips, which its exchanges share. The links of the ps tasks carry the bytes of all
    workers, each its even part.
    """
    max_pending = 0 if local_steps == 1 else 1
    busy_secs = num_workers / unlimited.exchanges
    exchange_bytes = unlimited.bytes / unlimited.exchanges
    link_secs = round_trip_secs + 8 * exchange_bytes / bits_per_sec
    worker_secs = max(busy_secs, (busy_secs + link_secs) / (1 + max_pending))
    worker_secs += 2 * round_trip_secs / EXCHANGES_PER_RUN
    ps_link_secs = num_workers * 8 * exchange_bytes / 2 / num_ps / bits_per_sec
    return num_workers / max(worker_secs, ps_link_secs)


def measure_ps(
    measured_secs: int = MEASURED_SECS, max_workers: int = NUM_WORKERS_OF_PS[-1], max_ps: int = NUM_PS[-1]
) -> str:
    """Return a table of 1000 examples/s with more workers and more ps tasks over slow links, and what is predicted."""
    counts = [num_workers for num_workers in NUM_WORKERS_OF_PS if num_workers <= max_workers]
    nums_ps = [num_ps for num_ps in NUM_PS if num_ps <= max_ps]
    if not counts:
        sys.exit(f"error: --max_workers must be {NUM_WORKERS_OF_PS[0]} or more")
    rows = []
    for name, flags in MODELS.items():
        for num_workers, local_steps in itertools.product(counts, (1, 16)):
            row = [name, str(num_workers), str(local_steps)]
            measure = functools.partial(measure_rate, measured_secs, local_steps, num_workers=num_workers, flags=flags)
            base = measure()
            for num_ps in nums_ps:
                rate = measure(bits_per_sec=SLOW, num_ps=num_ps)
                predicted = predict(base, local_steps, 0.0, SLOW, num_workers, num_ps)
                examples = local_steps * BATCH_SIZE / 1000
                row.append(f"{examples * rate.exchanges:.1f} ({examples * predicted:.1f})")
            print(*row, flush=True)
            rows.append(row)
    headings = ("model", "workers", "local steps", *(f"{num_ps} ps" for num_ps in nums_ps))
    return report.make_table(headings, rows)


def measure_encryption(measured_secs: int = MEASURED_SECS) -> str:
    """Return a table of 1000 examples/s without encryption and with it, and of the ratio."""
    columns = []
    for local_steps in LOCAL_STEPS:
        rates = [measure_rate(measured_secs, local_steps, kind=kind).exchanges for kind in (Network, EncryptedNetwork)]
        opened, encrypted = (local_steps * BATCH_SIZE / 1000 * rate for rate in rates)
        columns.append([f"H = {local_steps}", f"{opened:.1f}", f"{encrypted:.1f}", f"{encrypted / opened:.2f}"])
    headings, *rows = zip(["network", "open", "WireGuard", "ratio"], *columns, strict=True)
    return report.make_table(headings, rows)


def measure_rate(
    measured_secs: int,
    local_steps: int,
    dtype: str = "float32",
    round_trip_secs: float = 0.0,
    bits_per_sec: float = float("inf"),
    kind: type[Network] = Network,
    num_ps: int = 1,
    num_workers: int = NETWORK_WORKERS,
    flags: Sequence[str] = (),
) -> Rate:
    """Train for a while, with each task on a host of its own."""
    with tempfile.TemporaryDirectory() as folder, kind(num_ps + num_workers) as network:
        all_flags = [*FLAGS, f"--local_steps={local_steps}", f"--exchange_dtype={dtype}", *flags]
        with Cluster(folder, num_ps, num_workers, *all_flags, network=network) as tasks:
            tasks.start()
            for worker in range(num_workers):
                tasks[f"worker {worker}"].wait_for_output(PROGRESS)
            network.set_delay(round_trip_secs / 2)
            network.set_bits_per_sec(bits_per_sec)
            time.sleep(2)  # until everything on its way has arrived
            secs, step, num_bytes = _read(tasks, network, num_ps)
            time.sleep(measured_secs)
            secs_after, step_after, num_bytes_after = _read(tasks, network, num_ps)
            for name in tasks.names:
                tasks[name].kill()
    secs = secs_after - secs
    return Rate((step_after - step) / local_steps / secs, (num_bytes_after - num_bytes) / secs)


def _read(tasks: Cluster, network: Network, num_ps: int) -> tuple[float, int, int]:
    """Return the time, the global step and the bytes so far, as soon as the chief has logged its next line."""
    step = int(tasks["worker 0"].wait_for_new_output(PROGRESS))
    return time.monotonic(), step, sum(network.num_bytes(host) for host in range(num_ps))
