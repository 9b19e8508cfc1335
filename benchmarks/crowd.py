"""What many workers cost a ps beside their training, and whether a cluster of many workers keeps its promises."""

import concurrent.futures
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable

from runtime.process import environment  # noqa: F401  # first: it sets what TensorFlow reads when it is imported

# isort: split
import psutil

from benchmarks import report
from benchmarks.testbed.processes import Cluster, Process, poll_for
from runtime.cluster.board import TRAINING, Record
from runtime.cluster.status import ask, ask_through, open_channel
from runtime.cluster.table import Table
from runtime.cluster.waiting import look_secs
from runtime.launch.ports import choose_ports
from runtime.process.end import allow_many_files

NUM_SIMULATED = (10, 100, 500, 1000)
WORDS_PER_SEC = 2  # of all workers: one comes, and another one leaves
MEASURED_SECS = 20
NUM_PS, NUM_WORKERS, NUM_KILLED = 2, 24, 6
DEADLINE_SECS = 900.0
TRAIN_STEPS = 60_000
PROGRESS = r"worker \d+: global step (\d+)/\d+, local step"


def measure_simulated(measured_secs: int = MEASURED_SECS) -> str:
    """Return a table of the share of a core that a ps uses, for each number of workers that are not there."""
    allow_many_files()  # each simulated worker has a connection
    rows = []
    for num_workers in NUM_SIMULATED:
        idle, busy = (measure_ps(num_workers, num_channels, measured_secs) for num_channels in (0, num_workers))
        rows.append([str(num_workers), f"{100 * idle:.1f} %", f"{100 * busy:.1f} %"])
        print(*rows[-1], flush=True)
    return report.make_table(("workers", "listening alone", "with heartbeats, joins and leaves"), rows)


def measure_ps(num_workers: int, num_channels: int, measured_secs: int) -> float:
    """Return the processor seconds per second of a ps which `num_channels` of its `num_workers` ask."""
    (port,) = choose_ports(1)
    address = f"localhost:{port}"
    workers = ",".join(f"worker-{index}.invalid:2222" for index in range(num_workers))
    command = [sys.executable, "distributed.py", "--job_name=ps", "--task_index=0", f"--ps_hosts={address}"]
    command += [f"--worker_hosts={workers}"]
    with tempfile.NamedTemporaryFile() as log:
        ps = Process(command, log.name, cwd=report.PROJECT)
        try:
            poll_for(lambda: not ask(address).reason or not ps.is_running(), "ps")
            if not ps.is_running():
                sys.exit(f"error: the ps has ended:\n{ps.output()[-2000:]}")
            return _measure_with(num_channels, address, psutil.Process(ps.pid), measured_secs)
        finally:
            ps.kill()


def _measure_with(num_channels: int, address: str, ps: psutil.Process, measured_secs: int) -> float:
    """Ask through all channels once a period; some workers say something. Return the processor seconds per second."""
    channels = [open_channel(address) for _ in range(num_channels)]
    tables = [Table(address) for _ in range(min(num_channels, WORDS_PER_SEC))]
    period_secs = look_secs(num_channels)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        started_at = before = 0.0
        num_periods = max(1, round(measured_secs / period_secs))
        for period in range(-3, num_periods):  # in the first of these, the channels connect
            due_at = time.monotonic() + period_secs
            if period == 0:
                started_at, before = time.monotonic(), sum(ps.cpu_times()[:2])
            if reasons := {status.reason for status in pool.map(ask_through, channels) if status.reason}:
                sys.exit(f"error: the ps does not answer: {', '.join(reasons)}")
            for worker, table in enumerate(tables):
                table.write({worker: json.dumps(Record(TRAINING, str(period)))})
                table.close()  # as a worker that has said so
            time.sleep(max(0.0, due_at - time.monotonic()))
        return float(sum(ps.cpu_times()[:2]) - before) / (time.monotonic() - started_at)


def measure_real(num_workers: int = NUM_WORKERS, num_killed: int = NUM_KILLED, train_steps: int = TRAIN_STEPS) -> str:
    """Return a table of how long many workers take to come, and to come back; exit with an error if one fails."""
    workers = [f"worker {index}" for index in range(num_workers)]
    killed = workers[-num_killed:]
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        flags = [f"--train_steps={train_steps}", "--startup_timeout_secs=600", f"--train_dir={folder}/train"]
        with Cluster(folder, NUM_PS, num_workers, *flags) as cluster:

            def time_until(what: str, is_so: Callable[[], bool]) -> None:
                started_at = time.monotonic()
                poll_for(lambda: _check(cluster) and is_so(), what, DEADLINE_SECS)
                rows.append([what, f"{time.monotonic() - started_at:.0f}"])
                print(*rows[-1], flush=True)

            cluster.start()
            time_until("until all train", lambda: all(_trains(cluster, name, 0) for name in workers))
            for name in killed:
                cluster[name].kill()
            said = {name: len(cluster[name].output()) for name in killed}
            cluster.start(*killed)
            what = f"until the {len(killed)} killed workers train again"
            time_until(what, lambda: all(_trains(cluster, name, since) for name, since in said.items()))
            time_until("until all have ended", lambda: not any(task.is_running() for task in cluster.tasks.values()))
            _check(cluster)
    return report.make_table((f"{NUM_PS} ps, {num_workers} workers", "seconds"), rows)


def _trains(cluster: Cluster, name: str, since: int) -> bool:
    has_ended = not cluster[name].is_running()  # asked first, because it may take steps and end meanwhile
    trains = bool(re.search(PROGRESS, cluster[name].output()[since:]))
    if has_ended and not trains:
        sys.exit(f"error: the run ended before {name} took a step: raise --train_steps")
    return trains


def _check(cluster: Cluster) -> bool:
    """Return True, or exit with an error if a task has ended with a status other than 0."""
    if failed := {name: task.status for name, task in cluster.tasks.items() if task.status}:
        sys.exit(f"error: these have failed: {failed}\n{cluster[next(iter(failed))].output()[-2000:]}")
    return True
