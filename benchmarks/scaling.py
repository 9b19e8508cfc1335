"""How the cost of a step grows with workers and ps tasks."""

from typing import NamedTuple

import distributed  # first: it sets what TensorFlow reads when it is imported

# isort: split
import psutil
import tensorflow.compat.v1 as tf

import mnist_input
from benchmarks import contenders, report
from benchmarks.testbed.messages import num_tensors_sent
from runtime.cluster.membership import Membership
from runtime.cluster.task import Task
from runtime.data.sources import open_source
from runtime.launch import ports
from runtime.machine.session_config import make_session_config
from runtime.process import environment
from runtime.records.folder import RunFolder
from runtime.roles.member import Member

BATCH_SIZE = 100
MODELS = ("mlp", "cnn")
NUM_STEPS = {"mlp": 6000, "cnn": 800}
NUM_PS = (1, 2, 4)
NUM_WORKERS = (1, 2, 4, 8)
MODES = {"asynchronous": "--local_steps=1", "16 local steps": "--local_steps=16", "synchronous": "--sync_replicas"}


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
    return report.make_table(("messages per exchange", *(f"{num_ps} ps" for num_ps in NUM_PS)), rows)


def sent_in_a_run(num_ps: int, flags: list[str]) -> tuple[int, int]:
    """Return how many tensors one run of a worker's graph sends between tasks, and how many exchanges it has."""
    distributed.FLAGS(["", "--ps_strategy=greedy", "--local_steps=1", "--nosync_replicas", *flags])
    addresses = [f"localhost:{port}" for port in ports.choose_ports(num_ps + 1)]
    task = Task("worker", 0, tuple(addresses[:num_ps]), tuple(addresses[num_ps:]))
    cluster = tf.train.ClusterSpec(task.jobs)
    servers = [tf.train.Server(cluster, "ps", ps) for ps in range(num_ps)]
    servers.append(tf.train.Server(cluster, "worker", 0))
    source = open_source(distributed.FLAGS.data_dir, "train", mnist_input).share(0, 1)
    me = Member(distributed.FLAGS, task, RunFolder(""), make_session_config(task))
    me.membership = Membership(task, me.timeouts)
    environment.choose_behavior()
    with tf.Graph().as_default():
        batches, _, updates, *_ = distributed.build_graph(me, cluster, source)
        with tf.Session(servers[-1].target, config=me.session_config) as session:
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            session.run(tf.variables_initializer(updates.unsaved_variables))
            batches.start(session, 0)
            for hook in updates.hooks:
                hook.begin()
                hook.after_create_session(session, tf.train.Coordinator())
            num_sent = num_tensors_sent(session, updates.train_op)
    return num_sent, me.mode.exchanges_per_run


class Run(NamedTuple):
    """What a run with some number of tasks measured."""

    examples_per_sec: float
    secs_to_target: float | None  # None: never
    step_bytes: float  # sent between tasks for each global step

    def __str__(self) -> str:
        rate = f"{self.examples_per_sec / 1000:.{0 if self.examples_per_sec >= 10000 else 1}f}"
        return f"{rate} (never)" if self.secs_to_target is None else f"{rate} ({self.secs_to_target:.1f} s)"


def measure_processes(percent_of_steps: int = 100, max_workers: int = NUM_WORKERS[-1]) -> str:
    """Return a table for each number of tasks, asynchronous, with one step per exchange."""
    columns = [(model, num_ps) for model in MODELS for num_ps in NUM_PS]
    counts = [num_workers for num_workers in NUM_WORKERS if num_workers <= max_workers]
    runs = {
        (*column, num_workers): run_tasks(*column, num_workers, percent_of_steps)
        for num_workers in counts
        for column in columns
    }
    rows = [[str(num), *(str(run) for key, run in runs.items() if key[-1] == num)] for num in counts]
    lines = [report.make_table(("workers", *(f"`{model}`, {num_ps} ps" for model, num_ps in columns)), rows), ""]
    for model in MODELS:
        kilobytes = [run.step_bytes / 1000 for key, run in runs.items() if key[0] == model]
        lines.append(f"A step of `{model}` moves {min(kilobytes):.0f} to {max(kilobytes):.0f} kB.")
    return "\n".join(lines)


def run_tasks(model: str, num_ps: int, num_workers: int, percent_of_steps: int) -> Run:
    """Train once."""
    train_steps = NUM_STEPS[model] * percent_of_steps // 100
    flags = [f"--model={model}", "--ps_strategy=greedy", "--learning_rate=0.002", f"--train_steps={train_steps}"]
    num_bytes = _loopback_bytes()
    ours = contenders.BY_NAME[contenders.OURS_ASYNC]
    result = contenders.run(contenders.make_roles(ours, flags, num_ps, num_workers, snapshot_secs=0.5))
    print(*flags, f"{num_ps} ps, {num_workers} workers:", result, flush=True)
    step_bytes = (_loopback_bytes() - num_bytes) / train_steps  # with the few bytes of the start
    return Run(result["examples_per_sec"], result["secs_to_target"], step_bytes)


def _loopback_bytes() -> int:
    return int(psutil.net_io_counters(pernic=True)["lo"].bytes_sent)
