"""Examples that workers take from one stream: each is read once, by whoever comes for it."""

import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import distributed
import mnist_input
from runtime.data import convert
from runtime.data.memory import MemorySource
from runtime.data.sources import open_source
from runtime.records.folder import RunFolder
from runtime.roles.member import Member

NUM_EXAMPLES, BATCH_SIZE = 400, 5
IMAGES = np.zeros((NUM_EXAMPLES, 784), np.uint8)
IMAGES[:, 0], IMAGES[:, 1] = np.divmod(np.arange(NUM_EXAMPLES), 256)
EXAMPLES = mnist_input.Examples(IMAGES, np.zeros(NUM_EXAMPLES, np.uint8))


@pytest.fixture
def sources(tmp_path):
    """The same examples in memory and in files."""
    folder = str(tmp_path / "shards")
    convert.convert(lambda *_: EXAMPLES, "", folder, 3)
    return {"memory": MemorySource(EXAMPLES), "files": open_source(folder, "train", mnist_input)}


class Worker:
    """A worker with a session of its own, which notes the numbers of the examples that it trains on."""

    def __init__(self, servers, index, source):
        task = servers.task("worker", index)
        with tf.Graph().as_default() as graph:
            me = Member(distributed.FLAGS, task, RunFolder(""), servers.connection("worker", index).config)
            batches, _, updates, *_ = distributed.build_graph(me, tf.train.ClusterSpec(task.jobs), source)
            flat = tf.reshape(batches.inputs, [-1, *batches.inputs.shape[2:]])
            self._run = [*updates.train_op, batches.access.build_columns(flat)[0]]
            self._saver = tf.train.Saver(sharded=True)
            self.session = servers.worker_session(index, graph)
            if index == 0:
                self.session.run(tf.global_variables_initializer())
                self.session.run(tf.variables_initializer(updates.unsaved_variables))
            self.session.run([tf.local_variables_initializer(), batches.initializer], batches.feed_dict(0))
        self.numbers = []

    def train(self, num_runs):
        for _ in range(num_runs):
            *_, images = self.session.run(self._run)
            self.numbers += list(256 * images[:, 0].astype(int) + images[:, 1])

    def save(self, path):
        return self._saver.save(self.session, path)

    def restore(self, path):
        self._saver.restore(self.session, path)


@pytest.fixture
def start(local_servers, set_flags):
    """Start a worker of a cluster with several ps tasks."""

    def start(source, *flags):
        set_flags("--sharding=dynamic", f"--batch_size={BATCH_SIZE}", *flags)
        servers = local_servers(2, 3)
        return lambda index: Worker(servers, index, source)

    return start


@pytest.mark.parametrize(
    ("kind", "flags", "num_runs"),
    [("memory", [], 20), ("files", ["--local_steps=2"], 10)],  # of 8 batches, or of 16; so two epochs
)
def test_every_example_is_read_once_in_an_epoch_whoever_comes_and_goes(sources, start, kind, flags, num_runs):
    start_worker = start(sources[kind], *flags)
    first, leaving = start_worker(0), start_worker(1)
    leaving.train(3)
    leaving.session.close()
    first.train(1)
    late = start_worker(2)
    threads = [threading.Thread(target=worker.train, args=((num_runs - 4) // 2,)) for worker in (first, late)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numbers = [*first.numbers, *leaving.numbers, *late.numbers]
    assert len(late.numbers) > 0
    assert np.bincount(numbers).tolist() == [2] * NUM_EXAMPLES


def test_a_restored_model_goes_on_where_it_was(sources, start, tmp_path):
    worker = start(sources["memory"])(0)
    worker.train(3)
    path = worker.save(str(tmp_path / "model"))
    worker.train(4)
    worker.restore(path)
    lost = worker.numbers[3 * 8 * BATCH_SIZE :]
    del worker.numbers[3 * 8 * BATCH_SIZE :]
    worker.train(7)
    assert worker.numbers[3 * 8 * BATCH_SIZE :][: len(lost)] == lost
    assert np.bincount(worker.numbers).tolist() == [1] * NUM_EXAMPLES
