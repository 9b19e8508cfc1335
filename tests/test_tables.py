"""Tables, of which a step touches a few rows: their arithmetic on real servers, against numpy, and what is refused."""

import dataclasses
import functools
import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmarks.testbed.messages import tensors_sent
from runtime.cluster.probes import Connection
from runtime.errors import UnusableError
from runtime.machine.session_config import make_session_config
from runtime.tables import Table, build_ids, look_up, make_variables
from runtime.updates.mode import Mode, build_updates
from runtime.updates.packing import Packing
from runtime.updates.placement import make_strategy

ROWS, DIM = 11, 2
RATE, MOMENTUM, BETA_1, BETA_2 = 0.1, 0.9, 0.9, 0.999
NUM_RUNS = 2
ROWS_OF = {"table": ROWS, "other": 5}  # the ids of the other table are those of the first, modulo 5
FIRST_ROWS_OF = {
    name: np.linspace(-1, 1, rows * DIM, dtype=np.float32).reshape(rows, DIM) for name, rows in ROWS_OF.items()
}
FIRST_ROWS = FIRST_ROWS_OF["table"]
# Of every batch some ids repeat, and rows 4 to 7, a slice of three, are in none.
USED_ROWS = np.array([0, 1, 2, 3, 8, 9, 10])


@pytest.fixture(autouse=True)
def exchanges_per_run(monkeypatch):
    """A run of two exchanges: a graph of eight takes four times as long to make, and shows nothing more."""
    monkeypatch.setattr("runtime.updates.mode.EXCHANGES_PER_RUN", 2)


@pytest.fixture(scope="module")
def servers_of(local_servers):
    """Servers of so many ps tasks and workers, which several tests use: they cannot be stopped, and take memory."""
    return functools.cache(local_servers)


def make_ids(worker, num_batches):
    """Return the ids of all batches of a worker: int32 [num_batches, examples, ids of each]."""
    return np.random.default_rng(worker).choice(USED_ROWS, [num_batches, 4, 3]).astype(np.int32)


def target_of(ids):
    return ids[..., :1] / 10 + 1


class Worker:
    """A worker with a table and a variable, which learn to add up to what the ids of an example say."""

    def __init__(
        self, servers, index, mode, replication="between_graph", tables=("table",), strategy=None, delay=tf.identity
    ):
        task = dataclasses.replace(servers.task("worker", index), replication=replication)
        with tf.Graph().as_default() as graph:
            spec = tf.train.ClusterSpec(task.jobs)
            setter = tf.train.replica_device_setter(worker_device=task.device, cluster=spec, ps_strategy=strategy)
            with tf.device(setter):
                tf.train.create_global_step()
                if strategy:
                    tf.get_variable("large", [100])  # so the other variables come together elsewhere
                bias = tf.get_variable("bias", [DIM], initializer=tf.zeros_initializer())
                parameters = {name: Table(ROWS_OF[name], DIM, tf.zeros_initializer()) for name in tables}
                self.parameters = make_variables(parameters | {"bias": bias}, len(task.ps_hosts))
                packing = Packing(self.parameters)
                ids = [make_ids(worker, mode.num_batches) for worker in range(task.batches_per_step)]
                inputs = np.concatenate(ids, axis=1) if task.batches_per_step > 1 else make_ids(index, len(ids[0]))

                def build_ids(ids):
                    return {name: ids % ROWS_OF[name] for name in tables}

                def build_loss(parameters, ids):
                    parameters = look_up(parameters, build_ids(ids))
                    sums = sum(tf.reduce_sum(parameters[name], axis=1) for name in tables) + parameters["bias"]
                    target = tf.cast(ids[:, :1], tf.float32) / 10 + 1
                    return delay(tf.reduce_mean(tf.reduce_sum((sums - target) ** 2, axis=1)) / 2)

                self.updates = build_updates(
                    packing, build_loss, build_ids, tf.constant(inputs), mode, task, tf.ConfigProto()
                )
                with tf.device(task.device):
                    self.all_rows = packing.fetch({name: np.arange(ROWS_OF[name]) for name in tables})
            initializers = [tf.global_variables_initializer(), tf.variables_initializer(self.updates.unsaved_variables)]
            local = tf.local_variables_initializer()
            self.saver = tf.train.Saver(sharded=True)
            first = []
            for name in tables:
                slices = self.parameters[name].slices
                rows = tf.split(FIRST_ROWS_OF[name], [slice.shape[0] for slice in slices])
                first += [slice.assign(of_slice) for slice, of_slice in zip(slices, rows, strict=True)]
        self.session = Connection(servers.workers[index].target, make_session_config(task)).session(graph)
        if task.is_chief:
            for initializer in (*initializers, first):
                self.session.run(initializer)
        self.session.run(local)

    def read(self):
        """Return the values of all parameters: the tables, and the bias."""
        found = self.session.run(self.all_rows)
        bias = found.pop("bias")
        for name, rows in found.items():
            np.testing.assert_array_equal(rows.ids, np.arange(ROWS_OF[name]))
        return *(rows.values for rows in found.values()), bias


def make_mode(**fields):
    common = {"learning_rate": RATE, "lr_schedule": "constant", "warmup_steps": None, "train_steps": 10_000}
    common |= {"local_steps": 1, "sync_replicas": False, "replicas_to_aggregate": None, "exchange_dtype": "float32"}
    return Mode(**(common | fields))


def run_together(workers):
    for _ in range(NUM_RUNS):
        threads = [
            threading.Thread(target=worker.session.run, args=(worker.updates.train_op,), daemon=True)
            for worker in workers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()


class Reference:
    """The same in numpy: what every optimizer does to the rows that a gradient has."""

    def __init__(self, optimizer, tables=("table",)):
        self.optimizer, self.num_updates, self.tables = optimizer, 0, tables
        self.values = {name: FIRST_ROWS_OF[name].astype(np.float64) for name in tables} | {"bias": np.zeros(DIM)}
        self.slots = {name: [np.zeros_like(v), np.zeros_like(v)] for name, v in self.values.items()}
        if optimizer == "adagrad":
            for name, value in self.values.items():
                self.slots[name][0] = np.full_like(value, 0.1)

    def gradient(self, ids, values=None):
        values = values or self.values
        sums = sum(values[name][ids % ROWS_OF[name]].sum(axis=1) for name in self.tables) + values["bias"]
        error = (sums - target_of(ids)) / len(ids)
        gradients = {"bias": error.sum(axis=0)}
        for name in self.tables:
            gradients[name] = np.zeros((ROWS_OF[name], DIM))
            np.add.at(gradients[name], ids % ROWS_OF[name], error[:, None, :])
        return gradients

    def apply(self, gradients, touched):
        """Apply the mean of the gradients; of a table only the rows that are in one of them."""
        self.num_updates += 1
        for name, (first, second) in self.slots.items():
            gradient = np.mean([gradient[name] for gradient in gradients], axis=0)
            rows = np.unique(touched % ROWS_OF[name]) if name in self.tables else slice(None)
            g, value = gradient[rows], self.values[name]
            if self.optimizer == "sgd":
                value[rows] -= RATE * g
            elif self.optimizer in ("momentum", "nesterov"):
                first[rows] = MOMENTUM * first[rows] + g
                value[rows] -= RATE * (g + MOMENTUM * first[rows] if self.optimizer == "nesterov" else first[rows])
            elif self.optimizer == "adagrad":
                first[rows] += g**2
                value[rows] -= RATE * g / np.sqrt(first[rows])
            else:
                first[rows] = BETA_1 * first[rows] + (1 - BETA_1) * g
                second[rows] = BETA_2 * second[rows] + (1 - BETA_2) * g**2
                rate = RATE * np.sqrt(1 - BETA_2**self.num_updates) / (1 - BETA_1**self.num_updates)
                value[rows] -= rate * first[rows] / (np.sqrt(second[rows]) + 1e-8)

    def change(self, batches):
        """Return what local steps take off the parameters."""
        values = {name: value.copy() for name, value in self.values.items()}
        for ids in batches:
            for name, gradient in self.gradient(ids, values).items():
                values[name] -= RATE * gradient
        return {name: self.values[name] - value for name, value in values.items()}

    def assert_equals(self, found, **tolerance):
        for name, value in zip((*self.tables, "bias"), found, strict=True):
            np.testing.assert_allclose(value, self.values[name], **({"rtol": 1e-4, "atol": 2e-5} | tolerance))


OPTIMIZERS = ["adam", "adagrad", "momentum", "nesterov", "sgd"]


@pytest.mark.parametrize("num_ps", [1, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_asynchronous_updates_change_the_rows_of_a_batch_and_no_others(servers_of, optimizer, num_ps):
    mode, expected = make_mode(optimizer=optimizer), Reference(optimizer)
    worker = Worker(servers_of(num_ps, 1), 0, mode)
    run_together([worker])
    for ids in [*make_ids(0, mode.num_batches)] * NUM_RUNS:
        expected.apply([expected.gradient(ids)], ids)
    expected.assert_equals(worker.read())
    np.testing.assert_array_equal(worker.read()[0][4:8], FIRST_ROWS[4:8])


@pytest.mark.parametrize("num_ps", [1, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_synchronous_update_averages_what_all_workers_sent_for_a_row(servers_of, optimizer, num_ps):
    mode, expected = make_mode(optimizer=optimizer, sync_replicas=True), Reference(optimizer)
    servers = servers_of(num_ps, 2)
    workers = [Worker(servers, index, mode) for index in range(2)]
    run_together(workers)
    for pair in [*zip(*(make_ids(worker, mode.num_batches) for worker in range(2)), strict=True)] * NUM_RUNS:
        expected.apply([expected.gradient(ids) for ids in pair], np.concatenate(pair))
    expected.assert_equals(workers[1].read())


@pytest.mark.parametrize("num_ps", [1, 3])
def test_in_graph_replication_equals_a_batch_of_all_workers(servers_of, num_ps):
    mode, expected = make_mode(optimizer="adagrad"), Reference("adagrad")
    servers = servers_of(num_ps, 2)
    worker = Worker(servers, 0, mode, replication="in_graph")
    run_together([worker])
    batches = np.concatenate([make_ids(worker, mode.num_batches) for worker in range(2)], axis=1)
    for ids in [*batches] * NUM_RUNS:
        expected.apply([expected.gradient(ids)], ids)
    expected.assert_equals(worker.read())


@pytest.mark.parametrize("num_ps", [1, 3])
@pytest.mark.parametrize("sync_replicas", [False, True])
def test_local_steps_send_the_change_of_the_rows_that_they_used(servers_of, sync_replicas, num_ps):
    num_workers, local_steps = 1 + sync_replicas, 3
    mode = make_mode(optimizer="sgd", local_steps=local_steps, sync_replicas=sync_replicas)
    expected = Reference("sgd")
    servers = servers_of(num_ps, num_workers)
    workers = [Worker(servers, index, mode) for index in range(num_workers)]
    run_together(workers)
    exchanges = [
        make_ids(worker, mode.num_batches).reshape(mode.exchanges_per_run, local_steps, 4, 3)
        for worker in range(num_workers)
    ]
    for of_workers in [*zip(*exchanges, strict=True)] * NUM_RUNS:
        changes = [expected.change(batches) for batches in of_workers]
        for name, value in expected.values.items():
            value -= np.mean([change[name] for change in changes], axis=0)
    expected.assert_equals(workers[0].read())


@pytest.mark.parametrize("num_ps", [1, 3])
@pytest.mark.parametrize("sync_replicas", [False, True])
def test_a_model_may_have_two_tables(servers_of, sync_replicas, num_ps):
    mode, tables = make_mode(optimizer="adagrad", sync_replicas=sync_replicas), ("table", "other")
    expected, num_workers = Reference("adagrad", tables), 1 + sync_replicas
    servers = servers_of(num_ps, num_workers)
    workers = [Worker(servers, index, mode, tables=tables) for index in range(num_workers)]
    run_together(workers)
    batches = [make_ids(worker, mode.num_batches) for worker in range(num_workers)]
    for of_workers in [*zip(*batches, strict=True)] * NUM_RUNS:
        expected.apply([expected.gradient(ids) for ids in of_workers], np.concatenate(of_workers))
    expected.assert_equals(workers[0].read())


@pytest.mark.parametrize("num_ps", [1, 3])
def test_the_rows_of_a_backup_worker_that_comes_late_are_dropped(servers_of, num_ps):
    def make_queue(name):
        with tf.device("/job:worker/task:1"):
            return tf.FIFOQueue(-1, tf.float32, [()], shared_name=name)

    def delay(loss):
        with tf.control_dependencies([loss]):
            has_read = make_queue("has_read").enqueue(1.0)
        with tf.control_dependencies([has_read]):
            return loss * make_queue("may_go_on").dequeue()

    mode, expected = make_mode(optimizer="adagrad", sync_replicas=True, replicas_to_aggregate=1), Reference("adagrad")
    servers = servers_of(num_ps, 2)
    fast, slow = Worker(servers, 0, mode), Worker(servers, 1, mode, delay=delay)
    with tf.Graph().as_default() as graph:
        has_read = make_queue("has_read").dequeue()
        go_on = make_queue("may_go_on").enqueue_many([tf.ones([mode.num_batches])])
    session = Connection(servers.workers[1].target, make_session_config(servers.task("worker", 1))).session(graph)
    late = threading.Thread(target=slow.session.run, args=(slow.updates.train_op,), daemon=True)
    late.start()
    session.run(has_read)
    fast.session.run(fast.updates.train_op)
    session.run(go_on)
    late.join(120)
    assert not late.is_alive()
    for ids in [*make_ids(0, mode.num_batches), *make_ids(1, mode.num_batches)[1:]]:
        expected.apply([expected.gradient(ids)], ids)
    expected.assert_equals(fast.read())


@pytest.mark.parametrize("sync_replicas", [False, True])
def test_two_slices_of_a_table_may_lie_on_one_ps(servers_of, tmp_path, sync_replicas):
    mode, expected = make_mode(optimizer="adagrad", sync_replicas=sync_replicas), Reference("adagrad")
    worker = Worker(servers_of(3, 1), 0, mode, strategy=make_strategy("greedy", 3))
    assert [slice.device for slice in worker.parameters["table"].slices] == [f"/job:ps/task:{ps}" for ps in (0, 2, 0)]
    run_together([worker])
    for ids in [*make_ids(0, mode.num_batches)] * NUM_RUNS:
        expected.apply([expected.gradient(ids)], ids)
    expected.assert_equals(worker.read())

    path = worker.saver.save(worker.session, str(tmp_path / "model.ckpt"), write_meta_graph=False)
    other = Worker(servers_of(1, 1), 0, make_mode(optimizer="adagrad"))
    other.saver.restore(other.session, path)
    expected.assert_equals(other.read())


def test_rows_travel_in_bfloat16_like_all_else(servers_of):
    mode, expected = make_mode(optimizer="sgd", exchange_dtype="bfloat16"), Reference("sgd")
    worker = Worker(servers_of(2, 1), 0, mode)
    run_together([worker])
    for ids in [*make_ids(0, mode.num_batches)] * NUM_RUNS:
        expected.apply([expected.gradient(ids)], ids)
    expected.assert_equals(worker.read(), rtol=0.05, atol=0.02)
    assert np.abs(worker.read()[0] - expected.values["table"]).max() > 1e-5


def test_an_exchange_keeps_its_messages_and_the_ids_of_a_run_are_one_more(servers_of):
    mode = make_mode(optimizer="sgd")
    worker = Worker(servers_of(3, 1), 0, mode)
    sent = tensors_sent(worker.session, worker.updates.train_op)
    for ps in range(3):
        assert sent[("ps", ps), ("worker", 0)] == mode.exchanges_per_run
        assert sent[("worker", 0), ("ps", ps)] == mode.exchanges_per_run + 1


@pytest.mark.parametrize("num_ps", [1, 4])
def test_a_checkpoint_of_three_ps_restores_into_any_number_of_them(servers_of, tmp_path, num_ps):
    saving = Worker(servers_of(3, 1), 0, make_mode(optimizer="adagrad"))
    run_together([saving])
    path = saving.saver.save(saving.session, str(tmp_path / "model.ckpt"), write_meta_graph=False)
    restoring = Worker(servers_of(num_ps, 1), 0, make_mode(optimizer="adagrad"))
    restoring.saver.restore(restoring.session, path)
    for found, expected in zip(restoring.read(), saving.read(), strict=True):
        np.testing.assert_array_equal(found, expected)
    for worker in (saving, restoring):  # the slots too: both learn alike from there
        run_together([worker])
    np.testing.assert_array_equal(restoring.read()[0], saving.read()[0])


@pytest.mark.parametrize("wrong", [-1, ROWS])
def test_an_id_of_no_row_is_told(graph, wrong):
    tf.train.create_global_step()
    packing = Packing(make_variables({"table": Table(ROWS, DIM)}))
    ids = tf.placeholder(tf.int64, [None, 2])
    parameters = packing.fetch({"table": ids})
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        text = rf"ids from 0 to 10 for table table, found\] \[{min(3, wrong)}\] \[{max(3, wrong)}\]"
        with pytest.raises(tf.errors.InvalidArgumentError, match=text):
            session.run(parameters, {ids: [[3, wrong]]})


@pytest.mark.parametrize(("ids", "found"), [({}, "no table"), ({"tabel": [0]}, r"\['tabel'\]")])
def test_ids_of_other_tables_are_refused(graph, ids, found):
    packing = Packing(make_variables({"table": Table(ROWS, DIM)}))
    with pytest.raises(UnusableError, match=rf"must return the ids of \['table'\], found those of {found}"):
        packing.select([ids])


def test_ids_that_differ_from_one_time_to_the_next_are_told(graph):
    packing = Packing(make_variables({"table": Table(ROWS, DIM)}))
    parameters = packing.fetch({"table": tf.constant([3, 5])})
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(look_up(parameters, {"table": tf.constant([[5, 5], [3, 5]])}))["table"].shape == (2, 2, DIM)
        for missing in (4, 9):
            vectors = look_up(parameters, {"table": tf.constant([3, missing])})
            with pytest.raises(tf.errors.InvalidArgumentError, match="the same ids whenever it gets the same examples"):
                session.run(vectors)


def test_a_table_of_bytes_takes_ids_of_bytes(graph):
    packing = Packing(make_variables({"table": Table(256, DIM)}))
    parameters = packing.fetch({"table": tf.constant([255, 0, 255], tf.uint8)})
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(parameters["table"].ids).tolist() == [0, 255]


class Model:
    """A user's model.py, whose functions return what they are told."""

    def __init__(self, ids=None, parameters=None):
        self.build_ids, self.build_parameters = lambda inputs: ids(), lambda model, hidden_units: parameters()


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        (lambda: None, "a dict of the ids by the name of their table, found NoneType"),
        (lambda: [tf.constant([1])], "a dict of the ids by the name of their table, found list"),
        (lambda: tf.sparse.from_dense([[1, 2]]), "a dict of the ids by the name of their table, found SparseTensor"),
        (lambda: {"t": None}, "integers for table t, as a dense tensor, found NoneType"),
        (lambda: {"t": tf.sparse.from_dense([[1, 2]])}, "integers for table t, as a dense tensor, found SparseTensor"),
        (lambda: {"t": tf.ragged.constant([[1], [2, 3]])}, "integers for table t, as a dense tensor, found Ragged"),
        (lambda: {"t": tf.constant([1.0])}, "integers for table t, as a dense tensor, found a tensor of float32"),
    ],
)
def test_what_is_no_id_is_refused(graph, ids, found):
    with pytest.raises(UnusableError, match=rf"model\.py: build_ids\(\) must return {found}"):
        build_ids(Model(ids), tf.zeros([2, 3]))


def test_ids_may_be_a_list(graph):
    assert build_ids(Model(lambda: {"t": [[1, 2]]}), tf.zeros([2, 3]))["t"].dtype == tf.int32


def test_a_table_whose_name_has_a_space_is_refused():
    with pytest.raises(UnusableError, match="a table is named 'my table', expected letters, digits, and"):
        Table(5, 2).check("my table", 1, "ps")


@pytest.mark.parametrize("table", [Table(0, 1), Table(2**31, 1), Table(1, 0), Table(50.0, 4), Table(4, "2")])
def test_a_table_of_an_impossible_size_is_refused(table):
    with pytest.raises(UnusableError, match=r"expected 1 to 2147483647 rows of one number or more, each an int"):
        table.check("t", 1, "ps")


def test_what_the_chief_cannot_save_is_refused():
    table = Table(30_000_000, 20)
    table.check("t", 1, "ps")
    table.check("t", 2, "chief")
    with pytest.raises(UnusableError, match=r"2400000000 bytes, .* give more ps tasks, or --checkpoints=ps"):
        table.check("t", 1, "chief")


@pytest.mark.parametrize("optimizer", ["adam", "adagrad", "momentum", "nesterov"])
def test_local_steps_on_a_table_need_an_optimizer_without_state(optimizer):
    make_mode(optimizer=optimizer, local_steps=1).check_table("t")
    make_mode(optimizer="sgd", local_steps=2).check_table("t")
    with pytest.raises(UnusableError, match=f"--local_steps=2 and --optimizer={optimizer}: .* give --optimizer=sgd"):
        make_mode(optimizer=optimizer, local_steps=2).check_table("t")
