"""Files of tf.train.Example that workers share, with real processes that come late, are slow, die, and come back."""

import re
import signal
import threading

import pytest
import tensorflow.compat.v1 as tf

import mnist_input
from benchmarks.testbed.processes import DEADLINE_SECS, Cluster
from examples import convert
from tests.test_records import example, write

PROGRESS = r"global step (\d+)/\d+, local step [1-9]"
TRAIN_STEPS = 3500


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


@pytest.fixture
def make_files(tmp_path, mnist_dir):
    """A function that returns a folder with MNIST in some files."""

    def make_files(num_files):
        convert.convert(mnist_input.load, mnist_input.FEATURES, mnist_dir, str(tmp_path / "files"), num_files)
        return tmp_path / "files"

    return make_files


@pytest.mark.slow
def test_workers_that_come_and_go_share_what_is_left(tmp_path, make_files):
    """Worker 2 comes late, worker 1 is slow, dies, and comes back: what it held is told, and not read again."""
    flags = ["--sharding=dynamic", "--optimizer=sgd", "--learning_rate=0.2", f"--train_steps={TRAIN_STEPS}"]
    flags += [f"--data_dir={make_files(12)}", f"--train_dir={tmp_path / 'train'}", "--log_every_secs=0.1"]
    with Cluster(tmp_path, 1, 3, *flags) as cluster:
        cluster.start("ps 0", "worker 0", "worker 1")
        for name in ("worker 0", "worker 1"):
            cluster[name].wait_for_output(PROGRESS)
        cluster["worker 0"].send(signal.SIGSTOP)  # so that something is left to train when worker 2 comes
        with Slowed(cluster["worker 1"]):
            cluster.start("worker 2").wait_for_output(PROGRESS)
        cluster["worker 1"].kill()
        cluster["worker 2"].send(signal.SIGSTOP)
        held = r"the rest of \S+/train-000\d\d-of-00012.tfrecord, which this worker was reading when it ended"
        cluster.start("worker 1").wait_for_output(held)
        for name in ("worker 0", "worker 2"):
            cluster[name].send(signal.SIGCONT)
        names = ("worker 0", "worker 1", "worker 2", "ps 0")
        assert [cluster[name].wait(2 * DEADLINE_SECS) for name in names] == [0, 0, 0, 0]
        output = cluster["worker 0"].output()
    assert float(re.search(r"test accuracy (\d\.\d+)", output)[1]) > 0.95
    checkpoint = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(tmp_path / "train")))
    num_read = 100 * checkpoint.get_tensor("global_step")
    # What is dealt out, 5000 examples each, is read but for what some held: the dead one, and in the end all three.
    assert num_read - 5000 <= 5000 * checkpoint.get_tensor("sharding/pieces_dealt_out") <= num_read + 4 * 2 * 5000


@pytest.mark.promises("fault-while-training")
def test_a_record_that_is_corrupt_ends_its_worker_with_a_line_that_names_it(tmp_path, make_files):
    """With status 1, since the worker has trained by then on what comes before it in its file."""
    folder = make_files(2)
    path = folder / "train-00001-of-00002.tfrecord"
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    with Cluster(tmp_path, 1, 2, f"--data_dir={folder}", "--train_steps=1000000") as cluster:
        cluster.start()
        assert cluster["worker 1"].wait() == 1
        assert f"DataLostError: {path}: record 29999 is corrupt (" in cluster["worker 1"].output()
        for task in cluster.tasks.values():
            task.kill()


def test_a_worker_whose_files_are_sorted_by_class_says_so(tmp_path, mnist_dir):
    images, labels = mnist_input.load(mnist_dir, "train")
    for split, numbers in {"train": labels.argsort()[:1000], "t10k": range(100)}.items():
        records = [example(image=images[number].tobytes(), label=int(labels[number])) for number in numbers]
        write(tmp_path / f"{split}.tfrecord", records)
    with Cluster(tmp_path, 1, 1, f"--data_dir={tmp_path}", "--train_steps=1000000") as cluster:
        cluster.start()
        cluster["worker 0"].wait_for_output(r"worker 0: \d+ examples in a row have 1 of 10 classes")
        for task in cluster.tasks.values():
            task.kill()
