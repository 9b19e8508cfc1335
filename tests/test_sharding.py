"""Examples that workers take while they train: each is read once, by whoever comes for it."""

import contextlib
import pathlib
import re
import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import distributed
import mnist_input
from runtime.cluster.membership import Membership
from runtime.cluster.table import Table
from runtime.data import pipeline
from runtime.data.files import name_of
from runtime.data.memory import MemorySource
from runtime.data.sources import open_source
from runtime.records.folder import RunFolder
from runtime.roles.member import Member

NUM_EXAMPLES, BATCH_SIZE = 400, 5
RUN_SIZE = 8 * BATCH_SIZE
IMAGES = np.zeros((NUM_EXAMPLES, 784), np.uint8)
IMAGES[:, 0], IMAGES[:, 1] = np.divmod(np.arange(NUM_EXAMPLES), 256)
EXAMPLES = mnist_input.Examples(IMAGES, np.zeros(NUM_EXAMPLES, np.uint8))
STATIC, DYNAMIC = "--sharding=static", "--sharding=dynamic"


class Listing:
    """The mnist_input.py of a user who lists files."""

    INPUT = mnist_input.INPUT

    @staticmethod
    def list_files(data_dir, split):
        return sorted(pathlib.Path(data_dir).glob(f"{split}-*"))

    @staticmethod
    def build_dataset(files, split):
        return tf.data.TFRecordDataset(files).batch(8).map(lambda records: tuple(mnist_input.parse(records))).unbatch()


ALSO_IN_MEMORY = pytest.mark.parametrize("open_files", [None, mnist_input, Listing], indirect=True)


@pytest.fixture(params=[mnist_input, Listing], ids=["records", "listed"])
def open_files(tmp_path, request):
    """A function that returns the same examples in some files, or in memory; of those, each has every n-th."""

    def open_files(num_files):
        if not request.param:
            return MemorySource(EXAMPLES)
        folder = tmp_path / f"{num_files}-files"
        folder.mkdir()
        for index in range(num_files):
            with tf.io.TFRecordWriter(str(folder / name_of("train", index, num_files))) as writer:
                for image in IMAGES[index::num_files]:
                    example = tf.train.Example()
                    example.features.feature["image"].bytes_list.value.append(image.tobytes())
                    example.features.feature["label"].int64_list.value.append(0)
                    writer.write(example.SerializeToString())
        return open_source(str(folder), "train", request.param)

    return open_files


class Worker:
    """A worker with a session of its own, which notes the numbers of the examples that it trains on."""

    def __init__(self, servers, index, source, restore_from=None, first_batch=0):
        task = servers.task("worker", index)
        with tf.Graph().as_default() as graph:
            me = Member(distributed.FLAGS, task, RunFolder(""), servers.connection("worker", index).config)
            me.membership = Membership(task, me.timeouts)
            batches, _, updates, *_ = distributed.build_graph(me, tf.train.ClusterSpec(task.jobs), me.share_of(source))
            columns = batches.columns(tf.reshape(batches.inputs, [-1]))
            self._run = [*updates.train_op, columns[0]]
            self._saver = tf.train.Saver(sharded=True)
            self.coord, self.batches = tf.train.Coordinator(), batches
            self.session = servers.worker_session(index, graph)
            if restore_from:
                self._saver.restore(self.session, restore_from)
            elif index == 0 and not first_batch:
                self.session.run(tf.global_variables_initializer())
                self.session.run(tf.variables_initializer(updates.unsaved_variables))
            self.session.run(tf.local_variables_initializer())
            batches.start(self.session, first_batch, self.coord)
        self._servers, self._index, self.numbers = servers, index, []

    def make_session(self):
        self.session = self._servers.worker_session(self._index, self.session.graph)
        return self.session

    def train(self, num_runs=1):
        for _ in range(num_runs):
            *_, images = self.session.run(self._run)
            self.numbers += (256 * images[:, 0].astype(int) + images[:, 1]).tolist()

    def save(self, path):
        return self._saver.save(self.session, path)


@pytest.fixture
def start(local_servers, set_flags):
    """Start a worker of a cluster with several ps tasks."""

    def start(source, *flags):
        set_flags(f"--batch_size={BATCH_SIZE}", *flags)
        servers = local_servers(2, 3)
        return lambda index, **others: Worker(servers, index, source, **others)

    return start


def count(numbers):
    return np.bincount(numbers, minlength=NUM_EXAMPLES).tolist()


@pytest.mark.slow
@pytest.mark.promises("undisturbed")
def test_examples_in_memory_are_read_once_whoever_comes_and_goes(start):
    start_worker = start(MemorySource(EXAMPLES), DYNAMIC)
    first, leaving = start_worker(0), start_worker(1)
    leaving.train(3)
    leaving.session.close()
    first.train(1)
    late = start_worker(2)
    threads = [threading.Thread(target=worker.train, args=[8]) for worker in (first, late)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(late.numbers) > 0
    assert count([*first.numbers, *leaving.numbers, *late.numbers]) == [2] * NUM_EXAMPLES


@pytest.mark.slow
@pytest.mark.promises("dynamic-pieces", "undisturbed")
@pytest.mark.parametrize(("num_files", "num_parts", "flags"), [(2, 3, ["--local_steps=2"]), (20, 0.5, [])])
def test_some_files_or_a_part_of_one_are_dealt_to_whoever_asks_next(
    start, open_files, monkeypatch, num_files, num_parts, flags
):
    monkeypatch.setattr(pipeline, "MAX_PIECES", 12)
    start_worker = start(open_files(num_files), DYNAMIC, *flags)
    workers = [start_worker(0), start_worker(1)]
    workers[0].train(2)
    workers.append(start_worker(2))
    size = int(NUM_EXAMPLES // (num_files * num_parts))
    numbers = []
    while len(numbers) < NUM_EXAMPLES + 3 * (size + 4 * RUN_SIZE):
        for worker in workers:
            worker.train()
        numbers = [number for worker in workers for number in worker.numbers]
    read = count(numbers)
    assert min(read) >= 1
    assert all(worker.numbers for worker in workers)
    assert all(set(worker.numbers) != set(range(NUM_EXAMPLES)) for worker in workers)


@pytest.mark.slow
@pytest.mark.promises("static-shares", "undisturbed")
@pytest.mark.parametrize(
    ("open_files", "num_files", "sizes"),
    [(mnist_input, 6, [134, 133, 133]), (mnist_input, 2, [134, 134, 132]), (Listing, 2, [134, 134, 132])],
    indirect=["open_files"],
)
def test_each_worker_reads_a_share_of_its_own_in_each_epoch(start, open_files, num_files, sizes, caplog):
    caplog.set_level("INFO", logger="absl")
    start_worker = start(open_files(num_files), STATIC)
    workers = [start_worker(index) for index in range(3)]
    for worker in workers:
        worker.train(7)
    first = [worker.numbers[:size] for worker, size in zip(workers, sizes, strict=True)]
    second = [worker.numbers[size : 2 * size] for worker, size in zip(workers, sizes, strict=True)]
    for epoch in (first, second):
        assert count(np.concatenate(epoch)) == [1] * NUM_EXAMPLES
    assert first[0] != second[0]
    assert len({number % num_files for number in first[0]}) == 2
    of_few = "2 files for 3 workers: each worker reads one in 3 examples of a file"
    assert (of_few in caplog.text) == (num_files == 2)


@pytest.mark.slow
@pytest.mark.promises("order-goes-on", "skipped")
@ALSO_IN_MEMORY
def test_a_share_goes_on_at_the_step_of_the_run(start, open_files):
    """As after a death, or when a run is resumed."""
    start_worker = start(open_files(6), STATIC)
    undisturbed = start_worker(0)
    undisturbed.train(9)
    undisturbed.session.close()
    later = start_worker(0, first_batch=8 * 4)
    later.train(5)
    assert later.numbers == undisturbed.numbers[4 * RUN_SIZE :]


@pytest.mark.slow
@pytest.mark.promises("held-by-the-dead", "never-back-in-files")
def test_of_a_killed_worker_only_what_it_held_is_not_read(start, open_files, caplog):
    caplog.set_level("INFO", logger="absl")
    start_worker = start(open_files(10), DYNAMIC)
    workers = [start_worker(0), start_worker(1)]
    for worker in workers:
        worker.train()
    workers[1].session.close()  # in the middle of a file, of which it has read the rest ahead
    for _ in range(12):
        workers[0].train()
    read = count(workers[0].numbers + workers[1].numbers)
    lost = [number for number, times in enumerate(read) if not times]
    assert 0 < len(lost) < 3 * RUN_SIZE
    assert len({number % 10 for number in lost}) <= 3
    start_worker(1).train()
    assert re.search(
        r"worker 1: the rest of \S+/train-0000\d-of-00010.tfrecord, which this worker was reading", caplog.text
    )
    workers[0].train(12)
    assert set(lost) <= set(workers[0].numbers), "the next epoch has them"


@pytest.mark.slow
@pytest.mark.parametrize("open_files", [mnist_input], indirect=True)
def test_a_session_ends_though_ps_0_has_no_answer_and_another_one_begins(start, open_files, monkeypatch):
    count_up, is_asked = Table.count_up, threading.Event()

    def never(table, variable):
        is_asked.set()
        raise tf.errors.UnavailableError(None, None, "no answer")

    worker = start(open_files(NUM_EXAMPLES // RUN_SIZE), DYNAMIC)(0)
    worker.train()
    monkeypatch.setattr(Table, "count_up", never)

    def train():
        with contextlib.suppress(tf.errors.OpError):
            worker.train(10)  # of which some step waits for a piece

    training = threading.Thread(target=train, daemon=True)
    training.start()
    assert is_asked.wait(60)
    worker.coord.request_stop()

    def begin_anew():
        worker.session.close()
        worker.batches.start(worker.make_session(), 0, tf.train.Coordinator())

    beginning = threading.Thread(target=begin_anew, daemon=True)
    beginning.start()
    for thread in (training, beginning):
        thread.join(60)
        assert not thread.is_alive()
    monkeypatch.setattr(Table, "count_up", count_up)
    worker.train()


@pytest.mark.slow
@pytest.mark.promises("dealt-out-goes-on")
@ALSO_IN_MEMORY
def test_what_is_dealt_out_goes_on_where_the_checkpoint_was(start, open_files, tmp_path):
    """In memory exactly; of files with what is not held when it is written."""
    start_worker = start(source := open_files(10), DYNAMIC)
    worker = start_worker(0)
    worker.train(3)
    path, before = worker.save(str(tmp_path / "model")), list(worker.numbers)
    worker.train(4)
    worker.session.close()
    again = start_worker(0, restore_from=path)
    again.train(4)
    assert again.numbers[:RUN_SIZE] == worker.numbers[3 * RUN_SIZE :][:RUN_SIZE] or not isinstance(source, MemorySource)
    assert not set(before) & set(again.numbers[: 2 * RUN_SIZE])
