"""Tables, of which a step touches a few rows: their arithmetic on real servers, against numpy, and what is refused."""

import dataclasses
import functools
import itertools
import re
import threading
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import distributed
from benchmarks.testbed.messages import tensors_sent
from runtime.cluster.task import Task
from runtime.machine.session_config import Connection, make_session_config
from runtime.model.variables import Lookups, TableVariable, check_size, make_variables
from runtime.process import phases
from runtime.process.errors import UnusableError
from runtime.records.folder import RunFolder
from runtime.roles.member import Member
from runtime.updates.mode import Mode, build_updates
from runtime.updates.packing import Packing
from runtime.updates.placement import make_strategy
from tests.models import make_batches, make_files, make_model

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


IDS = tf.TensorSpec([3], tf.int32, "ids")


def make_model_of_tables(tables=("table",), num_firsts=3, **options):
    """Make a model whose tables and variable learn to add up to what the ids of an example say.

    Each table is looked up at `num_firsts` ids of an example, and then at those that are left, if any are.
    """

    def build_logits(ids, is_training):
        sums = tf.get_variable("bias", [DIM], initializer=tf.zeros_initializer())
        for name in tables:
            table = tf.get_variable(name, [ROWS_OF[name], DIM], initializer=tf.zeros_initializer())
            for part in (ids[:, :num_firsts], ids[:, num_firsts:]):
                if part.shape[1]:
                    sums = sums + tf.reduce_sum(tf.nn.embedding_lookup(table, part % ROWS_OF[name]), axis=1)
        return sums

    def build_loss(sums, target):
        return tf.reduce_mean(tf.reduce_sum((sums - target) ** 2, axis=1)) / 2

    def decode(ids):
        return ids, target_of(tf.cast(ids, tf.float32))

    return make_model(build_logits, build_loss, IDS, decode, **options)


class Worker:
    """A worker that trains such a model; `delay` builds a factor of what a step sends, of its loss."""

    def __init__(
        self,
        servers,
        index,
        mode,
        replication="between_graph",
        tables=("table",),
        strategy=None,
        delay=None,
        num_firsts=3,
    ):
        model = make_model_of_tables(tables, num_firsts, is_stepwise=mode.local_steps == 1)
        assert model.tables == [*tables]
        membership = servers.membership("worker", index)
        task = membership.task = dataclasses.replace(membership.task, replication=replication)
        with tf.Graph().as_default() as graph:
            spec = tf.train.ClusterSpec(task.jobs)
            setter = tf.train.replica_device_setter(worker_device=task.device, cluster=spec, ps_strategy=strategy)
            with tf.device(setter):
                tf.train.create_global_step()
                if strategy:
                    tf.get_variable("large", [100])  # so the other variables come together elsewhere
                self.parameters = make_variables(model.training, model.tables, len(task.ps_hosts))
                packing = Packing(self.parameters)
                ids = [make_ids(worker, mode.num_batches) for worker in range(task.batches_per_step)]
                inputs = np.concatenate(ids, axis=1) if task.batches_per_step > 1 else make_ids(index, len(ids[0]))

                def build_gradients(parameters, columns, samples):
                    loss, gradients = model.build_gradients(parameters, columns, samples)
                    factor = delay(loss) if delay else 1.0
                    return loss, {name: factor * gradient for name, gradient in gradients.items()}

                slow = types.SimpleNamespace(
                    build_gradients=build_gradients, in_training=model.in_training, own=model.own
                )
                batches = make_batches(tf.constant(inputs))
                self.updates = build_updates(packing, slow, batches, mode, membership, tf.ConfigProto())
                with tf.device(task.device):
                    ids = {name: tf.range(tf.constant(ROWS_OF[name], tf.int64)) for name in tables}
                    self.all_rows = packing.fetch(Lookups(ids, []))
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
    common |= {"local_steps": 1, "sync_replicas": False, "replicas_to_aggregate": None, "max_staleness": None}
    common |= {"exchange_dtype": "float32"}
    common |= {"clip_norm": None, "ema_decay": None}
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


MODES = pytest.mark.parametrize(("sync_replicas", "num_ps"), [(False, 1), (True, 3)])
OPTIMIZERS = ["adam", "adagrad", "momentum", "nesterov", "sgd"]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_asynchronous_updates_change_the_rows_of_a_batch_and_no_others(servers_of, optimizer):
    mode, expected = make_mode(optimizer=optimizer), Reference(optimizer)
    worker = Worker(servers_of(1, 1), 0, mode)
    run_together([worker])
    for ids in [*make_ids(0, mode.num_batches)] * NUM_RUNS:
        expected.apply([expected.gradient(ids)], ids)
    expected.assert_equals(worker.read())
    np.testing.assert_array_equal(worker.read()[0][4:8], FIRST_ROWS[4:8])


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_synchronous_update_averages_what_all_workers_sent_for_a_row(servers_of, optimizer):
    mode, expected = make_mode(optimizer=optimizer, sync_replicas=True), Reference(optimizer)
    servers = servers_of(3, 2)
    workers = [Worker(servers, index, mode) for index in range(2)]
    run_together(workers)
    for pair in [*zip(*(make_ids(worker, mode.num_batches) for worker in range(2)), strict=True)] * NUM_RUNS:
        expected.apply([expected.gradient(ids) for ids in pair], np.concatenate(pair))
    expected.assert_equals(workers[1].read())


def test_in_graph_replication_equals_a_batch_of_all_workers(servers_of):
    mode, expected = make_mode(optimizer="adagrad"), Reference("adagrad")
    servers = servers_of(3, 2)
    worker = Worker(servers, 0, mode, replication="in_graph")
    run_together([worker])
    batches = np.concatenate([make_ids(worker, mode.num_batches) for worker in range(2)], axis=1)
    for ids in [*batches] * NUM_RUNS:
        expected.apply([expected.gradient(ids)], ids)
    expected.assert_equals(worker.read())


@pytest.mark.slow
@MODES
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


@pytest.mark.slow
@MODES
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


@pytest.mark.slow
def test_the_rows_of_a_backup_worker_that_comes_late_are_dropped(servers_of):
    def make_queue(name):
        with tf.device("/job:worker/task:1"):
            return tf.FIFOQueue(-1, tf.float32, [()], shared_name=name)

    def delay(loss):
        with tf.control_dependencies([loss]):
            has_read = make_queue("has_read").enqueue(1.0)
        with tf.control_dependencies([has_read]):
            return make_queue("may_go_on").dequeue()

    mode, expected = make_mode(optimizer="adagrad", sync_replicas=True, replicas_to_aggregate=1), Reference("adagrad")
    servers = servers_of(3, 2)
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@MODES
def test_a_table_may_be_looked_up_twice(servers_of, sync_replicas, num_ps):
    mode, expected = make_mode(optimizer="adagrad", sync_replicas=sync_replicas), Reference("adagrad")
    num_workers = 1 + sync_replicas
    servers = servers_of(num_ps, num_workers)
    workers = [Worker(servers, index, mode, num_firsts=1) for index in range(num_workers)]
    run_together(workers)
    batches = [make_ids(worker, mode.num_batches) for worker in range(num_workers)]
    for of_workers in [*zip(*batches, strict=True)] * NUM_RUNS:
        expected.apply([expected.gradient(ids) for ids in of_workers], np.concatenate(of_workers))
    expected.assert_equals(workers[0].read())


def train_alone(servers, model, mode, num_devices=1):
    """Let a worker take a run, and return by how much that has lowered each row of a table that began with zeros."""
    task = servers.task("worker", 0)
    with tf.Graph().as_default() as graph:
        with tf.device(
            tf.train.replica_device_setter(worker_device=task.device, cluster=tf.train.ClusterSpec(task.jobs))
        ):
            tf.train.create_global_step()
            variables = make_variables(model.training, model.tables, len(task.ps_hosts))
            updates = build_updates(
                Packing(variables),
                model,
                make_batches(tf.zeros([mode.num_batches, 4, 3], tf.int32)),
                mode,
                servers.membership("worker", 0),
                tf.ConfigProto(device_count={"CPU": num_devices}),
            )
        initializers = [tf.global_variables_initializer(), tf.variables_initializer(updates.unsaved_variables)]
    with servers.worker_session(0, graph) as session:
        for initializer in initializers:
            session.run(initializer)
        session.run(updates.train_op)
        return -np.concatenate(session.run(variables["table"].slices))


SAMPLES = 4


def build_sampled_logits(ids, is_training):
    """Build what lowers, by a rate of 1, place [i, i] of a table once for each time that a random i was drawn."""
    table = tf.get_variable("table", [ROWS, ROWS], initializer=tf.zeros_initializer())
    sampled = tf.random_uniform([SAMPLES], 0, ROWS, tf.int64)
    return tf.nn.embedding_lookup(table, sampled) * tf.one_hot(sampled, ROWS)


def sum_up(logits, labels):
    return tf.reduce_sum(logits)


@pytest.mark.slow
@MODES
def test_the_loss_uses_the_random_rows_that_were_fetched_for_it(local_servers, sync_replicas, num_ps, monkeypatch):
    monkeypatch.setattr("runtime.model.template._numbers", itertools.count(1))  # these make the seeds of copies
    model, mode = make_model(build_sampled_logits, sum_up, IDS), make_mode(optimizer="sgd", learning_rate=1.0)
    assert model.tables == ["table"]
    mode = mode._replace(sync_replicas=sync_replicas)
    lowered = train_alone(local_servers(num_ps, 1), model, mode)  # a row has another size there
    counts = np.diag(lowered)
    np.testing.assert_array_equal(lowered, np.diag(counts))
    assert counts.sum() == SAMPLES * mode.num_batches
    assert not (counts % mode.num_batches == 0).all(), "each exchange draws its own"


def test_random_rows_are_refused_where_a_worker_divides_a_batch(local_servers):
    model, mode = make_model(build_sampled_logits, sum_up, IDS), make_mode(optimizer="sgd", learning_rate=1.0)
    with pytest.raises(UnusableError, match=r"table: rows are drawn at random .*: run one worker for each GPU"):
        train_alone(local_servers(1, 1), model, mode, num_devices=2)


def check_sampled(ids, is_training):
    """Build 0 if what is looked up are the rows of the random numbers, and of other ones in a test and a summary."""
    table = tf.get_variable("table", [ROWS, DIM], initializer=tf.constant_initializer(FIRST_ROWS))
    for number in range(1 if is_training else 2):
        sampled = tf.random_uniform([SAMPLES], 0, ROWS, tf.int64)
        error = tf.reduce_sum(tf.abs(tf.nn.embedding_lookup(table, sampled) - tf.gather(FIRST_ROWS, sampled)))
        tf.summary.scalar(f"error_{number}", error)
    if is_training:
        other = tf.get_variable("other", [ROWS, DIM], initializer=tf.zeros_initializer())
        error += tf.reduce_sum(tf.nn.embedding_lookup(other, ids))
    return error


def test_tests_and_summaries_use_the_random_rows_that_were_fetched_for_them_and_so_do_whole_tables(graph):
    model = make_model(check_sampled, sum_up, IDS)
    assert sorted(model.tables) == ["other", "table"]
    tf.train.create_global_step()
    variables, columns = make_variables(model.training, model.tables, num_slices=3), [tf.zeros([4, 3], tf.int32)]
    packing = Packing(variables)
    tested, shown = model.in_tests.build_lookups(columns), model.in_summaries.build_lookups(columns)
    whole = {name: tf.concat(table.slices, axis=0) for name, table in variables.items()}
    losses = [
        model.build_measures(packing.fetch(tested), columns, tested.samples).loss,
        model.build_measures(whole, columns).loss,
    ]
    summaries = model.build_summaries(packing.fetch(shown), columns, shown.samples)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            found, (shown_error,) = session.run([losses, summaries])
            assert found == [0, 0]
            assert tf.Summary.FromString(shown_error).value[0].simple_value == 0


@pytest.mark.parametrize(
    ("replication", "local_steps", "tables"),
    [("between_graph", 1, ["table"]), ("between_graph", 4, []), ("in_graph", 1, [])],
)
def test_random_rows_are_chosen_in_advance_for_one_batch_alone(set_flags, replication, local_steps, tables):
    """Not for the batches of several local steps, or of the workers that one graph has."""
    set_flags("--optimizer=sgd", f"--local_steps={local_steps}")
    chief = Task("worker", 0, ("a:1",), ("b:1", "b:2"), replication)
    me = Member(distributed.FLAGS, chief, RunFolder(""), make_session_config(chief, "none"))
    files = make_files(build_sampled_logits, sum_up, IDS)
    assert me.trace(files, [tf.TensorSpec([3], tf.int32)]).tables == tables


@pytest.mark.parametrize(
    "draw",
    [
        lambda ids: tf.map_fn(lambda _: tf.random_uniform([], 0, ROWS, tf.int32), ids[:, 0]),
        lambda ids: tf.py_func(lambda ids: ids, [ids], tf.int32),
    ],
    ids=["in a loop", "by Python"],
)
def test_what_may_draw_ids_that_nobody_sees_gets_all_rows(draw):
    def build_logits(ids, is_training):
        return tf.nn.embedding_lookup(tf.get_variable("table", [ROWS, ROWS]), draw(ids))

    model = make_model(build_logits, sum_up, IDS)
    assert (model.tables, model.parameters) == ([], ["table"])


def get_table(rows=ROWS, dim=DIM, **options):
    return tf.get_variable("table", [rows, dim], **options)


def look_up_in_parts(ids):
    table = get_table(partitioner=tf.fixed_size_partitioner(3))
    return tf.nn.embedding_lookup(table, ids)


def look_up_in_a_loop(ids, table=None):
    table = get_table() if table is None else table
    return tf.map_fn(lambda of_example: tf.nn.embedding_lookup(table, of_example), ids, tf.float32)


def look_up_in_a_loop_as_a_whole(ids):
    return look_up_in_a_loop(ids, tf.identity(get_table()))


def look_up_and_multiply(ids):
    table = get_table()
    return tf.matmul(tf.reduce_sum(tf.nn.embedding_lookup(table, ids), axis=1), table, transpose_b=True)


def look_up_what_a_parameter_says(ids):
    table, scores = get_table(), tf.get_variable("scores", [3])
    return tf.nn.embedding_lookup(table, tf.argmax(tf.cast(ids, tf.float32) * scores, axis=1)) * tf.reduce_sum(scores)


def look_up_what_a_table_says(ids):
    table = get_table()
    return tf.nn.embedding_lookup(table, tf.cast(tf.abs(tf.nn.embedding_lookup(table, ids)[:, 0]), tf.int32) % ROWS)


@pytest.mark.parametrize(
    ("look_up", "tables"),
    [
        (lambda ids: tf.nn.embedding_lookup(get_table(), ids), ["table"]),
        (lambda ids: tf.gather(get_table(), tf.cast(ids, tf.int64)), ["table"]),
        (lambda ids: tf.gather(tf.Variable(tf.zeros([ROWS, DIM]), name="table"), ids), ["table"]),
        (look_up_in_parts, ["table"]),
        (look_up_in_a_loop_as_a_whole, []),
        (look_up_and_multiply, []),
        (look_up_what_a_parameter_says, []),
        (look_up_what_a_table_says, []),
        (lambda ids: tf.gather(tf.get_variable("of_rank_1", [ROWS]), ids), []),
        (lambda ids: tf.nn.embedding_lookup(get_table(trainable=False), ids) * tf.get_variable("w", []), []),
    ],
)
def test_a_variable_in_which_rows_are_looked_up_and_nothing_else_is_a_table(look_up, tables):
    model = make_model(lambda ids, is_training: look_up(ids), sum_up, IDS)
    assert model.tables == tables
    assert not set(model.tables) & set(model.parameters)


def test_a_lookup_in_a_loop_is_refused_with_a_remedy():
    line = r"^tests/test_tables\.py, line \d+: .*a branch or a tf\.function looks up rows .* pass it tf\.identity\("
    with pytest.raises(UnusableError, match=line):
        make_model(lambda ids, is_training: look_up_in_a_loop(ids), sum_up, IDS)


def test_a_test_that_needs_all_of_a_variable_makes_it_no_table():
    def build_logits(ids, is_training):
        table = get_table()
        rows = tf.nn.embedding_lookup(table, ids)
        return rows if is_training else rows + tf.reduce_sum(table)

    model = make_model(build_logits, sum_up, IDS)
    assert (model.tables, model.parameters) == ([], ["table"])


@pytest.mark.parametrize("wrong", [-1, ROWS])
def test_an_id_of_no_row_is_told_as_a_mistake_of_the_user(graph, wrong, monkeypatch):
    monkeypatch.setattr(phases, "_has_stepped", False)
    monkeypatch.setattr(phases, "_find_users", lambda frames: [])  # what calls here is the program, not model.py
    tf.train.create_global_step()
    model = make_model(lambda ids, is_training: tf.nn.embedding_lookup(get_table(), ids), sum_up, IDS)
    packing = Packing(make_variables(model.training, model.tables))
    ids = tf.placeholder(tf.int32, [None, 3])
    parameters = packing.fetch(model.in_training.build_lookups([ids]))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        text = (
            rf"model\.py: the lookup needs ids from 0 to 10 of table, found\] \[{min(3, wrong)}\] \[{max(3, wrong)}\]"
        )
        with pytest.raises(tf.errors.InvalidArgumentError, match=text) as error:
            session.run(parameters, {ids: [[3, wrong, 3]]})
    status, line = phases.describe_failure(error.value)
    assert status == 2
    assert re.search(rf"{text}; correct model\.py, or the examples that it gets$", line)


def test_bytes_may_say_which_row(graph):
    spec = tf.TensorSpec([3], tf.uint8, "bytes")
    model = make_model(
        lambda ids, is_training: tf.nn.embedding_lookup(get_table(256), tf.cast(ids, tf.int32)), sum_up, spec
    )
    packing = Packing(make_variables(model.training, model.tables))
    parameters = packing.fetch(model.in_training.build_lookups([tf.constant([[255, 0, 255]], tf.uint8)]))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(parameters["table"].ids).tolist() == [0, 255]


def make_table(rows, dim, num_slices=1):
    """Make the variables of a table, which no session has."""
    with tf.Graph().as_default():
        return TableVariable(list(get_table(rows, dim, partitioner=tf.fixed_size_partitioner(num_slices))))


def test_what_the_chief_cannot_save_is_refused():
    check_size("t", make_table(30_000_000, 20), "ps")
    check_size("t", make_table(30_000_000, 20, num_slices=2), "chief")
    with pytest.raises(UnusableError, match=r"2400000000 bytes, .* give more ps tasks, or --checkpoints=ps"):
        check_size("t", make_table(30_000_000, 20), "chief")


def test_a_table_of_more_rows_than_ids_have_numbers_for_is_refused():
    check_size("t", make_table(2**31 - 1, 1), "ps")
    with pytest.raises(UnusableError, match="table t has 2147483648 rows, expected at most 2147483647"):
        check_size("t", make_table(2**31, 1, num_slices=2), "ps")


@pytest.mark.parametrize("own", [{}, {"build_optimizer": tf.train.GradientDescentOptimizer}], ids=["flag", "own"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("local_steps", [1, 2])
def test_a_table_is_sent_whole_where_local_steps_would_need_a_state_of_its_rows(caplog, local_steps, optimizer, own):
    mode = make_mode(optimizer=optimizer, local_steps=local_steps)
    options = {"may_have_tables": mode.may_have_tables, "is_stepwise": local_steps == 1}
    model = make_model_of_tables(**options, **own)
    is_table = local_steps == 1 or (optimizer == "sgd" and not own)
    assert (model.tables, model.parameters) == ((["table"], ["bias"]) if is_table else ([], ["bias", "table"]))
    assert ("table: sent as a whole, since only plain SGD takes local steps on rows" in caplog.text) != is_table
