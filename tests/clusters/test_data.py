"""Examples in TFRecord files, which the workers share, with real processes that come late, are slow, and die."""

import re
import signal
import threading

import pytest
import tensorflow.compat.v1 as tf

import mnist_input
from benchmarks.testbed.processes import DEADLINE_SECS, Cluster
from runtime.data import convert
from runtime.updates.asynchronous import EXCHANGES_PER_RUN

PROGRESS = r"global step (\d+)/\d+, local step [1-9]"
TRAIN_STEPS = 3000


class Slowed:
    """While it is entered, a process runs for a third of the time."""

    def __init__(self, process):
        self._process, self._has_ended = process, threading.Event()
        self._thread = threading.Thread(target=self._slow_down, daemon=True)

    def __enter__(self):
        self._thread.start()

    def __exit__(self, *_):
        self._has_ended.set()
        self._thread.join()
        self._process.send(signal.SIGCONT)

    def _slow_down(self):
        while not self._has_ended.is_set():
            self._process.send(signal.SIGSTOP)
            self._has_ended.wait(0.2)
            self._process.send(signal.SIGCONT)
            self._has_ended.wait(0.1)


@pytest.fixture(scope="module")
def shards(tmp_path_factory, mnist_dir):
    """MNIST in TFRecord files, fewer than there are workers."""
    folder = tmp_path_factory.mktemp("data") / "shards"
    convert.convert(mnist_input.load, mnist_dir, str(folder), 2)
    return folder


@pytest.mark.long
def test_workers_that_come_and_go_share_what_is_left(tmp_path, shards):
    """Worker 2 comes late, worker 1 is slow and then dies for good: the pieces taken are the steps trained."""
    train_dir = tmp_path / "train"
    flags = ["--sharding=dynamic", "--optimizer=sgd", "--learning_rate=0.2", f"--train_steps={TRAIN_STEPS}"]
    flags += [f"--data_dir={shards}", f"--train_dir={train_dir}", "--log_every_secs=0.1"]
    with Cluster(tmp_path, 1, 3, *flags) as cluster:
        cluster.start("ps 0", "worker 0", "worker 1")
        for name in ("worker 0", "worker 1"):
            cluster[name].wait_for_output(PROGRESS)
        cluster["worker 0"].send(signal.SIGSTOP)  # so that something is left to train when worker 2 comes
        with Slowed(cluster["worker 1"]):
            cluster.start("worker 2").wait_for_output(PROGRESS)
        cluster["worker 1"].kill()
        cluster["worker 0"].send(signal.SIGCONT)
        assert [cluster[name].wait(2 * DEADLINE_SECS) for name in ("worker 0", "worker 2", "ps 0")] == [0, 0, 0]
        output = cluster["worker 0"].output()
    assert float(re.search(r"test accuracy (\d\.\d+)", output)[1]) > 0.95
    checkpoint = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(train_dir)))
    num_runs = checkpoint.get_tensor("sharding/runs_dealt_out")
    num_unused = EXCHANGES_PER_RUN * num_runs - checkpoint.get_tensor("global_step")
    # At most one run of the worker that died, and in the end, of the others, one each that came too late.
    assert 0 <= num_unused <= 3 * EXCHANGES_PER_RUN
