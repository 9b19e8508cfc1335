"""Tables, of which a step touches a few rows: their arithmetic on real servers, against numpy, and what is refused."""

import dataclasses
import functools
import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmarks.testbed.messages import tensors_sent
from runtime.cluster.connection import Connection
from runtime.errors import UnusableError
from runtime.machine.session_config import make_session_config
from runtime.tables import Table, look_up, make_variables
from runtime.updates.mode import Mode, build_updates
from runtime.updates.packing import Packing

ROWS, DIM = 11, 2
RATE, MOMENTUM, BETA_1, BETA_2 = 0.1, 0.9, 0.9, 0.999
NUM_RUNS = 2
FIRST_ROWS = np.linspace(-1, 1, ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM)
# Of every batch some ids repeat, and rows 4 to 7, a slice of three, are in none.
USED_ROWS = np.array([0, 1, 2, 3, 8, 9, 10])


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

    def __init__(self, servers, index, mode, replication="between_graph"):
        task = dataclasses.replace(servers.task("worker", index), replication=replication)
        with tf.Graph().as_default() as graph:
            spec = tf.train.ClusterSpec(task.jobs)
            with tf.device(tf.train.replica_device_setter(worker_device=task.device, cluster=spec)):
                tf.train.create_global_step()
                table = Table(ROWS, DIM, tf.zeros_initializer())
                bias = tf.get_variable("bias", [DIM], initializer=tf.zeros_initializer())
                self.parameters = make_variables({"table": table, "bias": bias}, len(task.ps_hosts))
                packing = Packing(self.parameters)
                ids = [make_ids(worker, mode.num_batches) for worker in range(task.batches_per_step)]
                inputs = np.concatenate(ids, axis=1) if task.batches_per_step > 1 else make_ids(index, len(ids[0]))

                def build_loss(parameters, ids):
                    parameters = look_up(parameters, {"table": ids})
                    sums = tf.reduce_sum(parameters["table"], axis=1) + parameters["bias"]
                    target = tf.cast(ids[:, :1], tf.float32) / 10 + 1
                    return tf.reduce_mean(tf.reduce_sum((sums - target) ** 2, axis=1)) / 2

                self.updates = build_updates(
                    packing, build_loss, lambda ids: {"table": ids}, tf.constant(inputs), mode, task, tf.ConfigProto()
                )
                with tf.device(task.device):
                    self.all_rows = packing.fetch({"table": np.arange(ROWS)})
            initializers = [tf.global_variables_initializer(), tf.variables_initializer(self.updates.unsaved_variables)]
            local = tf.local_variables_initializer()
            self.saver = tf.train.Saver(sharded=True)
            first = tf.split(FIRST_ROWS, [slice.shape[0] for slice in self.parameters["table"].slices])
            first = [slice.assign(rows) for slice, rows in zip(self.parameters["table"].slices, first, strict=True)]
        self.session = Connection(servers.workers[index].target, make_session_config(task)).session(graph)
        if task.is_chief:
            for initializer in (*initializers, first):
                self.session.run(initializer)
        self.session.run(local)

    def read(self):
        rows = self.session.run(self.all_rows)
        np.testing.assert_array_equal(rows["table"].ids, np.arange(ROWS))
        return rows["table"].values, rows["bias"]


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

    def __init__(self, optimizer):
        self.optimizer, self.num_updates = optimizer, 0
        self.values = {"table": FIRST_ROWS.astype(np.float64), "bias": np.zeros(DIM)}
        self.slots = {name: [np.zeros_like(v), np.zeros_like(v)] for name, v in self.values.items()}
        if optimizer == "adagrad":
            for name, value in self.values.items():
                self.slots[name][0] = np.full_like(value, 0.1)

    def gradient(self, ids, values=None):
        values = values or self.values
        error = (values["table"][ids].sum(axis=1) + values["bias"] - target_of(ids)) / len(ids)
        table = np.zeros((ROWS, DIM))
        np.add.at(table, ids, error[:, None, :])
        return {"table": table, "bias": error.sum(axis=0)}

    def apply(self, gradients, touched):
        """Apply the mean of the gradients; of the table only the rows that are in one of them."""
        self.num_updates += 1
        for name, (first, second) in self.slots.items():
            gradient = np.mean([gradient[name] for gradient in gradients], axis=0)
            rows = np.unique(touched) if name == "table" else slice(None)
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
        for name, value in zip(("table", "bias"), found, strict=True):
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
    with pytest.raises(UnusableError, match="integers for table table, found float32"):
        packing.select([{"table": tf.constant([1.0])}])


@pytest.mark.parametrize("table", [Table(0, 1), Table(2**31, 1), Table(1, 0)])
def test_a_table_of_an_impossible_size_is_refused(table):
    with pytest.raises(UnusableError, match=r"expected 1 to 2147483647 rows of one number or more"):
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
