"""What the network between hosts does to the speed: each task has a host of its own, one ps and two workers.

It needs Linux, `unshare`, `ip` and `/dev/net/tun`, and the encryption also WireGuard.
"""

import tempfile
import time
from typing import NamedTuple

import runtime.environment  # noqa: F401  (first: it sets what TensorFlow reads when it is imported)

# isort: split
from benchmarks import report
from benchmarks.testbed.encrypted import EncryptedNetwork
from benchmarks.testbed.network import Network
from benchmarks.testbed.processes import Cluster
from runtime.updates.asynchronous import EXCHANGES_PER_RUN

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


class Rate(NamedTuple):
    """The rates of a cluster of one ps and two workers, per second."""

    exchanges: float  # of both workers
    bytes: float  # that the ps sent and received


def measure_network(measured_secs: int = MEASURED_SECS) -> str:
    """Return a table of 1000 examples/s over each link, and of what the model predicts: see `predict()`."""
    rows = []
    unlimited: dict[tuple[int, str], Rate] = {}
    for link, (round_trip_secs, bits_per_sec) in LINKS.items():
        row = [link]
        for local_steps, dtype in EXCHANGES:
            rate = measure_rate(measured_secs, local_steps, dtype, round_trip_secs, bits_per_sec)
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
) -> Rate:
    """Train for a while on one ps and two workers, each on a host of its own."""
    with tempfile.TemporaryDirectory() as folder, kind(1 + NETWORK_WORKERS) as network:
        flags = [*FLAGS, f"--local_steps={local_steps}", f"--exchange_dtype={dtype}"]
        with Cluster(folder, 1, NETWORK_WORKERS, *flags, network=network) as tasks:
            tasks.start()
            for worker in range(NETWORK_WORKERS):
                tasks[f"worker {worker}"].wait_for_output(PROGRESS)
            network.set_delay(round_trip_secs / 2)
            network.set_bits_per_sec(bits_per_sec)
            time.sleep(2)  # until everything on its way has arrived
            secs, step, num_bytes = _read(tasks, network)
            time.sleep(measured_secs)
            secs_after, step_after, num_bytes_after = _read(tasks, network)
            for name in tasks.names:
                tasks[name].kill()
    secs = secs_after - secs
    return Rate((step_after - step) / local_steps / secs, (num_bytes_after - num_bytes) / secs)


def _read(tasks: Cluster, network: Network) -> tuple[float, int, int]:
    """Return the time, the global step and the bytes so far, as soon as the chief has logged its next line."""
    step = int(tasks["worker 0"].wait_for_new_output(PROGRESS))
    return time.monotonic(), step, network.num_bytes(0)
