"""The arithmetic of updates, on real servers, against numbers worked out by hand.

Worker i's loss is (i + 1) * w: its gradient is the constant i + 1.
"""

import contextlib
import functools
import itertools
import json
import random
import re
import threading
import time
import types
from typing import ClassVar

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmarks.testbed.processes import poll_for
from runtime.cluster import status
from runtime.cluster.board import TRAINING, Record
from runtime.cluster.status import Status
from runtime.cluster.table import Table
from runtime.model.files import ScopedOptimizers
from runtime.model.function import Own
from runtime.model.roles import AVERAGE, SET, SUM
from runtime.model.variables import Lookups
from runtime.updates import lost_workers
from runtime.updates.aggregation import Aggregation
from runtime.updates.asynchronous import build_async_updates
from runtime.updates.exchange import GradientExchangeBuilder, Work
from runtime.updates.local_steps import Length, LocalStepsExchangeBuilder
from runtime.updates.meeting import Rule
from runtime.updates.mode import EXCHANGES_PER_RUN, make_optimizer
from runtime.updates.packing import Packing
from runtime.updates.ps_shard import Gradient, PsShard
from runtime.updates.schedule import Schedule
from runtime.updates.synchronous import build_sync_updates
from tests.models import make_batches

LEARNING_RATE = 0.5
N = EXCHANGES_PER_RUN
NO_LOOKUPS = Lookups({}, [])


@pytest.fixture(autouse=True)
def _stop_threads():
    """Stop the workers' threads after each test: what they log is of no other test."""
    yield
    for coordinator in Worker.coordinators:
        coordinator.request_stop()
    Worker.coordinators.clear()
    for thread in threading.enumerate():
        if thread.name == "look":
            thread.join(60)


@pytest.fixture(autouse=True)
def refused(monkeypatch):
    """The addresses of workers that do not answer: no server of this process can end, however long it stalls."""
    addresses = set()
    monkeypatch.setattr(status, "ask", lambda address: Status(reason=status.REFUSED if address in addresses else ""))
    return addresses


def make_nothing(num_batches):
    """Return batches that a loss without examples ignores."""
    return make_batches(tf.zeros([num_batches, 1], tf.int32))


STATE = {"assigned": SET, "counted": SUM, "averaged": AVERAGE}


def gradients_of(build_loss, changes=None):
    """Return what builds the loss of a weight, and its gradient, beside changes of state."""

    def build_gradients(parameters, columns, samples):
        loss = build_loss(parameters["w"])
        (gradient,) = tf.gradients(loss, parameters["w"])
        return loss, {"w": gradient, **{name: tf.constant(change) for name, change in (changes or {}).items()}}

    return build_gradients


class Worker:
    """A worker that takes a step when told to."""

    coordinators: ClassVar[list] = []

    def __init__(
        self,
        servers,
        index,
        replicas=None,
        initialize=True,
        local_steps=1,
        train_steps=100,
        loss=None,
        exchanges=1,
        optimizer="sgd",
        lr_schedule="constant",
        dtype=tf.float32,
        max_staleness=None,
        changes=None,
    ):
        membership = servers.membership("worker", index)
        task = membership.task
        with tf.Graph().as_default() as graph:
            spec = tf.train.ClusterSpec(task.jobs)
            with tf.device(tf.train.replica_device_setter(worker_device=task.device, cluster=spec)):
                self.global_step = tf.train.create_global_step()
                self.weight = tf.get_variable("w", shape=[], initializer=tf.zeros_initializer())
                state = {name: tf.get_variable(name, [], initializer=tf.zeros_initializer()) for name in changes or {}}
                self.state = list(state.values())
                packing = Packing({"w": self.weight, **state}, {name: STATE[name] for name in state})
                schedule = Schedule(lr_schedule, LEARNING_RATE, None, train_steps)

                def make_optimizer_of_ps(rate):
                    return make_optimizer(rate, optimizer, Own(), tf.train.get_global_step())

                rates = Schedule("constant", 1.0, None, train_steps) if local_steps > 1 else schedule
                shards = [
                    PsShard(packing, of, make_optimizer_of_ps, rates.build, train_steps) for of in packing.variables
                ]

                build_loss = loss or (lambda weight: (index + 1) * weight)
                batches = make_nothing(N * local_steps)
                with tf.device(task.device):
                    work = Work(packing, gradients_of(build_loss, changes), batches, dtype, [task.device])
                    if local_steps == 1:
                        builder = GradientExchangeBuilder(work)
                    else:
                        pace = 1 if replicas else len(task.worker_hosts)
                        length = Length(local_steps, train_steps, num_shares=1, pace=pace)
                        make_sgd = functools.partial(make_optimizer, name="sgd", own=Own())
                        builder = LocalStepsExchangeBuilder(work, make_sgd, schedule, length)
                num_workers = len(task.worker_hosts)
                rule = Rule(num_workers, replicas or num_workers, local_steps)
                selections = packing.select([NO_LOOKUPS] * (exchanges if replicas else N))
                how = packing, selections, shards, builder.build_exchange
                if replicas is None:
                    max_pending = 0 if local_steps == 1 else 1
                    updates = build_async_updates(*how, max_pending, rule, membership, max_staleness)
                else:
                    updates = build_sync_updates(*how, rule, membership)
            initializers = [tf.global_variables_initializer(), tf.variables_initializer(updates.unsaved_variables)]
            local_initializer = tf.local_variables_initializer()
            self.updates, self.train_op, self.hooks = updates, updates.train_op, updates.hooks
            for hook in updates.hooks:
                hook.begin()
        self.index, self.session = index, servers.worker_session(index, graph)
        if task.is_chief and initialize:
            for initializer in initializers:
                self.session.run(initializer)
        self.session.run(local_initializer)
        self.coord = tf.train.Coordinator()
        self.coordinators.append(self.coord)
        for hook in updates.hooks:
            hook.after_create_session(self.session, self.coord)

    def step(self):
        for hook in self.hooks:
            hook.before_run(None)
        self.session.run(self.train_op)
        for hook in self.hooks:
            hook.after_run(None, None)

    def start_step(self):
        thread = threading.Thread(target=self.step, daemon=True)
        thread.start()
        return thread

    def read(self):
        return self.session.run([self.weight, self.global_step])


def step_together(*workers):
    for thread in [worker.start_step() for worker in workers]:
        thread.join(60)
        assert not thread.is_alive(), "nobody has woken a worker"


@pytest.mark.promises("asynchronous")
def test_asynchronous_updates_are_applied_one_by_one(local_servers):
    servers = local_servers(1, 2)
    workers = [Worker(servers, index) for index in range(2)]
    workers[0].step()
    assert workers[1].read() == [0 - 0.5 * 1 * N, N], "a run takes several steps"
    workers[1].step()
    workers[1].step()
    assert workers[0].read() == [0 - 0.5 * (1 + 2 + 2) * N, 3 * N]


def test_each_step_computes_on_what_the_one_before_has_made(local_servers):
    worker = Worker(local_servers(2, 1), 0, loss=lambda weight: (weight - 1) ** 2 / 2)
    worker.step()
    assert worker.read() == [1 - 0.5**N, N], "each step halves the way to 1"


@pytest.mark.parametrize("num_ps", [1, 2])
def test_what_is_left_of_a_run_after_the_last_step_applies_nothing(local_servers, num_ps):
    worker = Worker(local_servers(num_ps, 1), 0, train_steps=N + 1)
    for _ in range(3):
        worker.step()
    assert worker.read() == [0 - 0.5 * (N + 1), N + 1]


@pytest.mark.promises("synchronous")
def test_synchronous_updates_average_all_gradients(local_servers):
    servers = local_servers(2, 3)
    workers = [Worker(servers, index, replicas=3) for index in range(3)]
    for step in range(1, 5):
        step_together(*workers)
        assert workers[step % 3].read() == [0 - 0.5 * (1 + 2 + 3) / 3 * step, step]


def test_of_state_synchronous_workers_count_together_and_the_last_assignment_stands(local_servers):
    servers = local_servers(2, 3)
    workers = []
    for index in range(3):
        changes = {"assigned": 10.0 + index, "counted": -1.0, "averaged": -1.0 - index}  # by how much they lower it
        workers.append(Worker(servers, index, replicas=3, changes=changes))
    for step in range(1, 4):
        step_together(*workers)
        assigned, counted, averaged = workers[0].session.run(workers[0].state)
        assert assigned in (10.0, 11.0, 12.0)
        assert (counted, averaged) == (3 * step, 2 * step)
        assert workers[step % 3].read() == [0 - 0.5 * (1 + 2 + 3) / 3 * step, step]


@pytest.mark.promises("synchronous")
def test_no_synchronous_update_happens_before_every_gradient_is_there(local_servers):
    servers = local_servers(1, 2)
    workers = [Worker(servers, index, replicas=2) for index in range(2)]
    early = workers[0].start_step()
    early.join(0.5)
    assert early.is_alive(), "it must wait"
    assert workers[1].read() == [0, 0]
    workers[1].step()
    early.join(60)
    assert workers[1].read() == [0 - 0.5 * (1 + 2) / 2, 1]


@pytest.mark.promises("backup-workers")
def test_the_gradients_of_a_backup_worker_are_dropped(local_servers):
    def make_queue(name):
        with tf.device("/job:worker/task:1"):
            return tf.FIFOQueue(1, tf.float32, [()], shared_name=name)

    def loss(weight):
        with tf.control_dependencies([weight]):
            has_read = make_queue("has_read").enqueue(1.0)
        with tf.control_dependencies([has_read]):
            return 2 * weight * make_queue("may_go_on").dequeue()

    servers = local_servers(1, 2)
    fast, slow = (Worker(servers, index, replicas=1, loss=loss if index else None) for index in range(2))
    with tf.Graph().as_default() as graph:
        has_read, go_on = make_queue("has_read").dequeue(), make_queue("may_go_on").enqueue(1.0)
    with servers.worker_session(1, graph) as session:
        late = slow.start_step()
        session.run(has_read)
        fast.step()
        assert fast.read() == [0 - 0.5 * 1, 1], "one gradient is enough"
        session.run(go_on)
        late.join(60)
        assert fast.read() == [0 - 0.5 * 1, 1], "that of step 0 is stale"
        session.run(go_on)
        slow.step()
    assert [worker.read() for worker in (fast, slow)] == 2 * [[0 - 0.5 * (1 + 2), 2]]


@pytest.mark.slow
@pytest.mark.promises("synchronous-need-chief")
@pytest.mark.parametrize("replicas", [1, 2])
def test_synchronous_workers_wait_for_the_chief_unless_the_others_are_enough(local_servers, replicas):
    servers = local_servers(1, 2)
    chief, other = (Worker(servers, index, replicas) for index in range(2))
    chief.coord.join(stop_grace_period_secs=0.1, ignore_live_threads=True)  # nobody looks who is lost
    chief.session.close()
    step = other.start_step()
    step.join(1 if replicas == 2 else 60)
    assert step.is_alive() == (replicas == 2)
    if step.is_alive():
        Worker(servers, 0, replicas, initialize=False).step()
        step.join(60)
    assert other.read() == [0 - 0.5 * (1.5 if replicas == 2 else 2), 1]


class ClassicWorker:
    """A worker whose updates `tf.train.SyncReplicasOptimizer` makes."""

    def __init__(self, servers, index, loss, optimizer):
        membership = servers.membership("worker", index)
        task = membership.task
        with tf.Graph().as_default() as graph:
            spec = tf.train.ClusterSpec(task.jobs)
            with tf.device(tf.train.replica_device_setter(worker_device=task.device, cluster=spec)):
                self.global_step = tf.train.create_global_step()
                self.weight = tf.get_variable("w", shape=[], initializer=tf.zeros_initializer())
                classic = tf.train.SyncReplicasOptimizer(make_optimizer(LEARNING_RATE, optimizer, Own()), 2)
                self.train_op = classic.minimize(loss(self.weight), self.global_step)
            initializer = tf.global_variables_initializer()
        self.session, self.hooks = servers.worker_session(index, graph), []
        if task.is_chief:
            self.session.run(initializer)
        self.session.run(classic.chief_init_op if task.is_chief else classic.local_step_init_op)
        if task.is_chief:
            coord = tf.train.Coordinator()
            Worker.coordinators.append(coord)
            classic.get_chief_queue_runner().create_threads(self.session, coord=coord, daemon=True, start=True)

    step, start_step, read = Worker.step, Worker.start_step, Worker.read


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_synchronous_updates_do_what_sync_replicas_optimizer_does(local_servers, optimizer):
    losses = [lambda weight: (weight - 1) ** 2 / 2, lambda weight: (weight - 2) ** 2 / 2]
    servers = local_servers(2, 2)
    workers = [Worker(servers, i, 2, loss=losses[i], exchanges=5, optimizer=optimizer) for i in range(2)]
    step_together(*workers)

    servers = local_servers(2, 2)
    classic_workers = [ClassicWorker(servers, i, losses[i], optimizer) for i in range(2)]
    for _ in range(5):
        step_together(*classic_workers)
    weight, step = classic_workers[0].read()
    assert workers[0].read() == [pytest.approx(weight, rel=1e-5), step]
    if optimizer == "sgd":
        assert [weight, step] == [1.5 * (1 - 0.5**5), 5], "each update halves the way to the mean"


def num_gradients(servers):
    """Return how many gradients each ps has for the next update."""
    with tf.Graph().as_default() as graph:
        counts = []
        for ps, size in enumerate((0, 1)):
            with tf.device(f"/job:ps/task:{ps}"):
                counts.append(tf.ConditionalAccumulator(tf.float32, [size], "gradients").num_accumulated())
    with servers.worker_session(0, graph) as session:
        return session.run(counts)


def start_step_without_update(servers, worker):
    """Start a step that is alone in its update, and return its thread once each ps has its gradient."""
    thread = worker.start_step()
    poll_for(lambda: num_gradients(servers) == [1, 1], "gradient on each ps")
    return thread


@pytest.mark.slow
@pytest.mark.promises("synchronous")
def test_a_fast_worker_waits_for_a_slow_one_in_each_update_of_a_run(local_servers):
    def slow(weight):
        return 2 * weight * tf.numpy_function(lambda: np.float32(time.sleep(0.01) is None), [], tf.float32)

    servers = local_servers(2, 2)
    workers = [Worker(servers, index, 2, exchanges=N, loss=loss) for index, loss in enumerate((None, slow))]
    for run in range(1, 4):
        step_together(*workers)
        assert workers[0].read() == [0 - 0.5 * (1 + 2) / 2 * N * run, N * run]


def test_a_ps_without_parameters_counts_no_step_before_it_is_computed(graph):
    cluster = tf.train.ClusterSpec({"ps": ["ps:1", "ps:2"], "worker": ["worker:1"]})
    with tf.device(tf.train.replica_device_setter(cluster=cluster)):
        tf.train.create_global_step()  # ps 0 holds nothing else
        packing = Packing({"w": tf.get_variable("w", [3])})
    devices = ["/job:worker/task:0"]
    builder = GradientExchangeBuilder(Work(packing, gradients_of(tf.reduce_sum), make_nothing(1), tf.float32, devices))
    (selection,) = packing.select([NO_LOOKUPS])
    exchange = builder.build_exchange(packing.read(selection), selection, [], 0)
    (nothing,) = [gradient for gradient in exchange.gradients if gradient.shape == [0]]
    before, ops = set(), [nothing.op]
    while ops:
        op = ops.pop()
        before.add(op)
        ops += {tensor.op for tensor in op.inputs} | set(op.control_inputs) - before
    assert exchange.loss.op in before


@pytest.mark.slow
@pytest.mark.parametrize("dying", [0, 1])
def test_a_worker_that_dies_and_returns_before_its_update_counts_once(local_servers, dying):
    servers = local_servers(2, 2)
    workers = [Worker(servers, index, 2, train_steps=5) for index in range(2)]
    step_together(*workers)

    def step(worker):
        with contextlib.suppress(tf.errors.OpError, RuntimeError):  # of a session that is closed
            while worker.read()[1] < 5:
                worker.step()

    threading.Thread(target=step, args=(workers[dying],), daemon=True).start()
    poll_for(lambda: num_gradients(servers) == [1, 1], "gradient on each ps")
    workers[dying].coord.request_stop()
    workers[dying].session.close()
    workers[dying] = Worker(servers, dying, 2, initialize=False, train_steps=5)
    threads = [threading.Thread(target=step, args=(worker,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert workers[0].read() == [0 - 0.5 * (1 + 2) / 2 * 5, 5]


@pytest.mark.slow
def test_synchronous_training_ends_at_the_last_step_and_nobody_waits_after_it(local_servers):
    servers = local_servers(2, 2)
    workers = [Worker(servers, index, 2, exchanges=N, train_steps=N + 3) for index in range(2)]
    for _ in range(3):
        step_together(*workers)
    assert workers[0].read() == [0 - 0.5 * (1 + 2) / 2 * (N + 3), N + 3]


@pytest.fixture
def away(refused, monkeypatch):
    """The addresses of workers that do not answer the chief, which looks often, but not while they change."""
    looking, look = threading.Lock(), lost_workers.LostWorkersHook.look

    def look_alone(hook, session, coord):
        with looking:
            return look(hook, session, coord)

    def change(how):
        def change_alone(*addresses):
            with looking:
                how(*addresses)

        return change_alone

    monkeypatch.setattr(lost_workers, "LOOK_SECS", 0.05)
    monkeypatch.setattr(lost_workers.LostWorkersHook, "look", look_alone)
    return types.SimpleNamespace(**{name: change(getattr(refused, name)) for name in ("add", "update", "clear")})


def come_back(chief, *workers):
    """Let workers that were lost begin a step, of which the updates wait for them; return their threads."""
    hook, _ = chief.hooks
    threads = [worker.start_step() for worker in workers]
    awaited = [aggregation.are_awaited for aggregation in hook.meetings]

    def are_awaited():
        return all(of_ps[worker.index] for of_ps in chief.session.run(awaited) for worker in workers)

    poll_for(are_awaited, "updates that wait for them")
    return threads


def step_on_ps(worker, ps):
    """Take the part of a step that is on one ps, as a worker that dies may do."""
    worker.session.run([op for op in worker.train_op if op.device.startswith(f"/job:ps/task:{ps}")])


def train_on(threads, workers):
    """Let each worker, of which a thread takes a step, take one after the other until there are three updates."""
    deadline = time.monotonic() + 60
    while workers[0].read()[1] < 3:
        assert time.monotonic() < deadline, "nobody goes on"
        threads = [t if t.is_alive() else worker.start_step() for t, worker in zip(threads, workers, strict=True)]
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.promises("staleness-bound")
@pytest.mark.parametrize(("num_ps", "local_steps", "max_staleness"), [(1, 1, 2), (2, 1, 0), (2, 3, 2)])
def test_no_worker_is_further_ahead_of_the_slowest_than_it_may_be(local_servers, num_ps, local_steps, max_staleness):
    servers = local_servers(num_ps, 2)
    workers = [Worker(servers, index, local_steps=local_steps, max_staleness=max_staleness) for index in range(2)]
    waiting = workers[0].start_step()
    num_begun = max_staleness + (1 if local_steps == 1 else 2)  # local steps are computed ahead
    num_there = (max_staleness + 1) * local_steps
    poll_for(lambda: workers[0].read()[1] >= num_there, "exchanges that may be ahead")
    for _ in range(20):
        assert workers[0].read()[1] <= num_begun * local_steps, "it goes on"
    assert waiting.is_alive()
    workers[1].step()
    waiting.join(60)
    assert not waiting.is_alive(), "nobody has woken it"
    assert workers[0].read()[1] == 2 * N * local_steps


@pytest.mark.slow
@pytest.mark.promises("staleness-of-the-lost")
def test_a_lost_worker_keeps_nobody_waiting_and_begins_where_the_slowest_is(local_servers, away, caplog):
    servers = local_servers(1, 3)
    workers = [Worker(servers, index, max_staleness=1, train_steps=1000) for index in range(3)]
    away.add(servers.task("worker", 2).address)
    step_together(*workers[:2])
    assert workers[0].read()[1] == 2 * N
    assert re.search(r"worker 0: from exchange \d+ on: 2 of 3 workers keep pace, without worker 2", caplog.text)
    away.clear()
    waiting = workers[2].start_step()
    poll_for(lambda: workers[0].read()[1] == 2 * N + 2, "what it does before it waits for the others")
    step_together(*workers[:2])
    waiting.join(60)
    assert not waiting.is_alive()
    assert workers[0].read()[1] == 5 * N


@pytest.mark.slow
def test_nobody_waits_for_the_slowest_after_the_last_step(local_servers):
    servers = local_servers(1, 2)
    workers = [Worker(servers, index, max_staleness=N, train_steps=N + 2) for index in range(2)]
    workers[0].step()
    last = workers[0].start_step()
    poll_for(lambda: workers[0].read()[1] == N + 1, "a worker that waits")
    workers[1].step()
    last.join(60)
    assert not last.is_alive()
    assert workers[0].read()[1] == N + 2


@pytest.mark.slow
@pytest.mark.promises("nothing-after-the-goal")
@pytest.mark.parametrize(
    ("num_ps", "mode"),
    [(1, {}), (2, {"local_steps": 2}), (2, {"max_staleness": 0}), (2, {"replicas": 2}), (1, {"replicas": 1})],
)
def test_a_finished_model_ends_waiting_and_late_workers(local_servers, num_ps, mode):
    servers = local_servers(num_ps, 2)
    workers = [Worker(servers, index, **mode) for index in range(2)]
    step_together(*workers)
    assert workers[1].session.run(workers[1].updates.last_step_now)
    step = workers[1].start_step()  # strictly synchronous, it waits for the chief
    workers[0].session.run(workers[0].updates.end)
    step.join(60)
    assert not step.is_alive(), "nobody has woken it"
    at_end = workers[0].read()
    for worker in workers:
        assert worker.session.run([worker.updates.train_op, worker.updates.last_step])[1] == 0
    late = Worker(servers, 1, initialize=False, **mode)
    assert late.session.run(late.updates.last_step_now) == 0
    assert late.read() == at_end, "training is over"


@pytest.mark.slow
@pytest.mark.promises("fewer-gradients")
def test_an_update_averages_the_gradients_of_the_workers_that_answer(local_servers, away, caplog):
    servers = local_servers(2, 3)
    workers = [Worker(servers, index, replicas=3) for index in range(3)]
    step_together(*workers)
    away.add(servers.worker_hosts[1])
    step_together(workers[0], workers[2])
    step_together(workers[0], workers[2])
    assert workers[0].read() == [0 - 0.5 * ((1 + 2 + 3) / 3 + 2 * (1 + 3) / 2), 3]
    without = (
        r"worker 0: from synchronous update \d on: the average of 2 of 3 gradients, without worker 1 at"
        rf" {servers.worker_hosts[1]} \(connection refused\)\n"
    )
    poll_for(lambda: re.search(without, caplog.text), "news of the loss")
    away.clear()
    (back,) = come_back(workers[0], workers[1])
    step_together(workers[0], workers[2])
    back.join(60)
    assert workers[0].read() == [0 - 0.5 * (2 * (1 + 2 + 3) / 3 + 2 * (1 + 3) / 2), 4]
    poll_for(lambda: re.search(r"update \d on: the average of 3 of 3 gradients\n", caplog.text), "news of the return")


@pytest.mark.promises("back-from-first-step")
def test_no_update_waits_for_who_came_in_the_place_of_a_worker(local_servers, monkeypatch, caplog):
    """However fast that was, and however long it reads its data."""
    monkeypatch.setattr(lost_workers, "LOOK_SECS", 0.05)
    servers = local_servers(1, 2)
    chief, other = (Worker(servers, index, replicas=2) for index in range(2))
    table, record = Table(servers.ps_hosts[0]), Record(TRAINING, "1")
    table.write({0: json.dumps(record), 1: json.dumps(record)})
    monkeypatch.setattr(status, "ask", lambda _: Status("1"))
    step_together(chief, other)
    monkeypatch.setattr(status, "ask", lambda address: Status("2" if address == servers.worker_hosts[1] else "1"))
    step_together(chief)
    poll_for(lambda: f"without worker 1 at {servers.worker_hosts[1]} (still starting)" in caplog.text, "news")
    table.write({1: json.dumps(record._replace(incarnation="2"))})
    (back,) = come_back(chief, other)
    step_together(chief)
    back.join(60)
    assert chief.read() == [0 - 0.5 * ((1 + 2) / 2 + 1 + (1 + 2) / 2), 3]


@pytest.mark.slow
def test_no_worker_takes_over_after_others_were_lost_and_are_back(local_servers, away):
    servers = local_servers(2, 4)
    workers = [Worker(servers, index, replicas=3) for index in range(4)]
    step_together(*workers[:3])
    for lost in [servers.worker_hosts[2:], servers.worker_hosts[1:]]:
        away.update(lost)
        step_together(*workers[: 4 - len(lost)])
        away.clear()
        back = come_back(workers[0], *workers[4 - len(lost) : 3])
        step_together(*workers[: 4 - len(lost)][:3])
        for thread in back:
            thread.join(60)
    before = workers[0].read()
    early = workers[0].start_step()
    early.join(1)
    assert early.is_alive(), "it must wait, however often it is woken"
    assert workers[0].read() == before
    step_together(*workers[1:3])
    early.join(60)
    assert workers[0].read() == [before[0] - 0.5 * (1 + 2 + 3) / 3, before[1] + 1]


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [2, 3])
def test_a_restarted_worker_has_one_gradient_in_an_update(local_servers, away, replicas):
    servers = local_servers(2, 3)
    workers = [Worker(servers, index, replicas) for index in range(3)]

    def step(worker):
        with contextlib.suppress(tf.errors.OpError, RuntimeError):  # of a session that is closed
            worker.step()

    threading.Thread(target=step, args=(workers[1],), daemon=True).start()
    poll_for(lambda: num_gradients(servers) == [1, 1], "gradient on each ps")
    workers[1].session.close()
    threads = [workers[0].start_step()] if replicas == 3 else []
    poll_for(lambda: num_gradients(servers) == 2 * [replicas - 1], "gradients on each ps")
    restarted = Worker(servers, 1, replicas).start_step()
    restarted.join(1)
    assert restarted.is_alive(), "it must wait for the update that has its gradient"
    assert num_gradients(servers) == 2 * [replicas - 1]
    threads.append(workers[2].start_step())
    for thread in [restarted, *threads]:
        thread.join(60)
        assert not thread.is_alive()
    gradients = [1, 2, 3][3 - replicas :]
    assert workers[0].read() == [0 - 0.5 * sum(gradients) / replicas, 1]


@pytest.mark.slow
def test_an_update_lacks_what_a_lost_worker_has_not_sent_to_each_ps(local_servers, away):
    servers = local_servers(2, 2)
    workers = [Worker(servers, index, replicas=2) for index in range(2)]
    waiting = start_step_without_update(servers, workers[0])
    step_on_ps(workers[1], 0)
    waiting.join(1)
    assert waiting.is_alive(), "the other may still send it"
    assert workers[0].read() == [0, 1]
    away.add(servers.worker_hosts[1])
    waiting.join(60)
    assert workers[0].read() == [0 - 0.5 * 1, 1]


@pytest.mark.slow
def test_a_worker_that_comes_back_sends_what_a_ps_has_not_got(local_servers, away):
    servers = local_servers(2, 2)
    workers = [Worker(servers, index, replicas=2) for index in range(2)]
    waiting = start_step_without_update(servers, workers[0])
    step_on_ps(workers[1], 0)
    back = Worker(servers, 1, replicas=2).start_step()
    waiting.join(60)
    assert workers[0].read() == [0 - 0.5 * (1 + 2) / 2, 1]
    assert back.is_alive(), "it is ahead on the other ps"
    step_on_ps(workers[0], 0)
    back.join(60)
    assert workers[0].read() == [0 - 0.5 * (1 + 2) / 2, 2]


class Parts:
    """A worker of three, of whose exchanges each part on each ps comes when a test says so."""

    def __init__(self, servers, index):
        task = servers.task("worker", index)
        with tf.Graph().as_default() as graph:
            with tf.device(tf.train.replica_device_setter(worker_device=task.device, cluster=task.jobs)):
                tf.train.create_global_step()
                packing = Packing({"w": tf.get_variable("w", shape=[], initializer=tf.zeros_initializer())})
            shards = [
                PsShard(packing, of, tf.train.GradientDescentOptimizer, lambda steps: tf.constant(1.0), 100)
                for of in packing.variables
            ]
            aggregations = [Aggregation(shard, Rule(3, 3, 1)) for shard in shards]
            unsaved = [variable for each in aggregations for variable in each.variables]
            unsaved += [variable for of in shards for variable in (of.ready_marker, of.last_step)]
            initializers = [tf.global_variables_initializer(), tf.variables_initializer(unsaved)]
            self.number, self.are_lost = tf.placeholder(tf.int64, []), tf.placeholder(tf.bool, [3])
            self.joins = [each.join(index, []) for each in aggregations]
            self.adds = [each.add(tf.ones([each.shard.size]), [], self.number, index) for each in aggregations]
            self.forgets = [each.build_forget(self.are_lost) for each in aggregations]
        self.session = servers.worker_session(index, graph)
        if index == 0:
            for initializer in initializers:
                self.session.run(initializer)

    def join(self, ps):
        return self.session.run(self.joins[ps])

    def add(self, ps, number):
        """Begin to add a gradient for the update after the first `number`, and return the thread that waits for it."""
        run = functools.partial(self.session.run, self.adds[ps], {self.number: number})
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def forget(self, *are_lost):
        self.session.run(self.forgets, {self.are_lost: are_lost})


def join_all(threads):
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a worker waits for ever"


@pytest.mark.slow
def test_workers_do_not_wait_for_each_other_though_each_ps_went_on_without_another_one_meanwhile(local_servers):
    servers = local_servers(2, 3)
    chief, first, second = (Parts(servers, index) for index in range(3))
    chief.forget(False, True, True)
    assert (first.join(ps=0), second.join(ps=1)) == (0, 0)
    chief.forget(False, True, True)  # they are taken for lost again
    join_all(chief.add(ps, chief.join(ps)) for ps in range(2))
    assert (first.join(ps=1), second.join(ps=0)) == (1, 1)
    join_all([first.add(ps=0, number=0), second.add(ps=1, number=0)])  # too late
    waiting = [first.add(ps=1, number=1), second.add(ps=0, number=1)]
    join_all([*waiting, *(chief.add(ps, chief.join(ps)) for ps in range(2))])
    assert {worker.join(ps) for worker in (chief, first, second) for ps in range(2)} == {2}


@pytest.mark.slow
def test_workers_that_are_taken_for_lost_while_they_train_never_wait_for_each_other(local_servers, away, monkeypatch):
    """Each ps makes its updates without others of them."""
    monkeypatch.setattr(lost_workers, "LOOK_SECS", 0.001)
    servers = local_servers(3, 3)
    workers = [Worker(servers, index, replicas=3, train_steps=150) for index in range(3)]
    has_ended, rng = threading.Event(), random.Random(1)

    def mislead():
        while not has_ended.wait(0.003):
            away.clear()
            away.update(rng.sample(servers.worker_hosts[1:], rng.randrange(3)))

    def train(worker):
        while worker.session.run(worker.global_step) < 150:
            worker.step()

    threads = [threading.Thread(target=train, args=(worker,), daemon=True) for worker in workers]
    for thread in [*threads, threading.Thread(target=mislead, daemon=True)]:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a worker waits for ever"
    has_ended.set()


@pytest.mark.slow
@pytest.mark.parametrize(("num_workers", "replicas", "is_counted"), [(2, 2, True), (4, 3, False)])
@pytest.mark.parametrize("ps_with_update", [[0], [1], [0, 1]])
def test_training_goes_on_after_a_worker_has_died_while_it_made_an_update(
    local_servers, away, num_workers, replicas, is_counted, ps_with_update
):
    servers = local_servers(2, num_workers)
    workers = [Worker(servers, index, replicas) for index in range(replicas)]
    waiting = [worker.start_step() for worker in workers[:-1]]
    poll_for(lambda: num_gradients(servers) == 2 * [replicas - 1], "the gradients of the others")
    with workers[0].session.graph.as_default():
        aggregations = [workers[0].hooks[0].meetings[ps] for ps in ps_with_update]
        taken = [aggregation._drop_gradients() for aggregation in aggregations]
        counted = [aggregation.number.assign_add(1) for aggregation in aggregations] if is_counted else []
    workers[0].session.run(taken)
    workers[0].session.run(counted)
    train_on([*waiting, workers[-1].start_step()], workers)
    num_updates = workers[0].read()[0] / (-0.5 * sum(range(1, replicas + 1)) / replicas)
    assert num_updates == int(num_updates) > 0, "each has averaged all"


@pytest.mark.slow
@pytest.mark.promises("begun-is-awaited")
def test_an_update_waits_for_a_worker_that_computes_however_long_that_takes(local_servers, away, caplog, monkeypatch):
    monkeypatch.setattr(lost_workers, "REMINDER_SECS", 1.0)
    servers = local_servers(1, 2)
    workers = [Worker(servers, index, replicas=2) for index in range(2)]
    step_together(*workers)
    waiting = workers[0].start_step()
    told = "worker 0: no synchronous update for 1 s: waiting for the gradient of worker 1; check what each reads"
    poll_for(lambda: told in caplog.text, "reminder")
    assert waiting.is_alive()
    step_together(workers[1])
    waiting.join(60)
    assert workers[0].read() == [0 - 0.5 * 2 * (1 + 2) / 2, 2]
    assert "from synchronous update" not in caplog.text


@pytest.mark.slow
def test_who_is_waited_for_is_named_though_another_is_lost(local_servers, away, caplog, monkeypatch):
    monkeypatch.setattr(lost_workers, "REMINDER_SECS", 1.0)
    servers = local_servers(2, 3)
    workers = [Worker(servers, index, replicas=3) for index in range(3)]
    step_together(*workers)
    away.add(servers.worker_hosts[1])
    waiting = workers[0].start_step()
    poll_for(lambda: "waiting for the gradient of worker 2;" in caplog.text, "reminder")
    step_together(workers[2])
    waiting.join(60)
    assert not waiting.is_alive()


@pytest.mark.slow
def test_after_the_end_nobody_is_lost(local_servers, away, caplog):
    servers = local_servers(1, 2)
    chief, other = (Worker(servers, index, replicas=1, train_steps=1) for index in range(2))
    other.step()
    away.add(servers.worker_hosts[1])  # the other has ended
    chief.step()  # none is left for it
    chief.coord.wait_for_stop(1)
    assert chief.read()[1] == 1
    assert "from synchronous update" not in caplog.text


@pytest.mark.slow
def test_nobody_waits_on_another_ps_for_a_chief_that_has_taken_its_last_step(local_servers, away):
    servers = local_servers(2, 2)
    workers = [Worker(servers, index, replicas=2, train_steps=1) for index in range(2)]
    waiting = start_step_without_update(servers, workers[1])
    hook, look = workers[0].hooks
    for of_chief in (hook, look):
        of_chief.before_run(None)
    step_on_ps(workers[0], 0)
    waiting.join(1)
    assert waiting.is_alive(), "the chief has not ended its step"
    hook.after_run(None, None)
    waiting.join(60)
    assert workers[0].read() == [0 - 0.5 * 2, 1]


@pytest.mark.slow
def test_nobody_waits_on_another_ps_for_a_chief_that_has_died_there_in_its_last_step(local_servers, away):
    servers = local_servers(2, 2)
    chief, other = (Worker(servers, index, replicas=2, train_steps=1) for index in range(2))
    waiting = start_step_without_update(servers, other)
    step_on_ps(chief, 0)
    next_chief, coord = Worker(servers, 0, replicas=2, train_steps=1, initialize=False), tf.train.Coordinator()
    waiting.join(1)
    assert waiting.is_alive()
    coord.request_stop()  # nothing is left for it to train
    next_chief.hooks[0].after_create_session(next_chief.session, coord)
    waiting.join(60)
    assert not waiting.is_alive()


@pytest.mark.slow
def test_what_wakes_workers_does_not_pile_up_for_those_that_are_away(local_servers, away):
    servers = local_servers(2, 3)
    workers = [Worker(servers, index, replicas=2, exchanges=N) for index in range(3)]
    for _ in range(2):
        step_together(*workers[:2])
    with tf.Graph().as_default() as graph:
        sizes = []
        for ps, name in itertools.product(range(2), ("even", "odd")):
            with tf.device(f"/job:ps/task:{ps}"):
                sizes.append(tf.FIFOQueue(-1, tf.bool, [()], shared_name=f"{name}_bell").size())
    with servers.worker_session(0, graph) as session:
        *of_ps_0, even_of_ps_1, odd_of_ps_1 = session.run(sizes)
    assert 0 < max(of_ps_0) <= 3
    assert even_of_ps_1 == odd_of_ps_1 == 0, "nobody waits for it"


def test_the_next_chief_goes_on_without_a_lost_worker_and_with_it_when_it_is_back(local_servers, away):
    servers = local_servers(1, 2)
    chief, other = (Worker(servers, index, replicas=2) for index in range(2))
    away.add(servers.worker_hosts[1])
    step_together(chief)
    chief.coord.request_stop()
    chief.coord.join(stop_grace_period_secs=60)
    away.clear()
    next_chief = Worker(servers, 0, replicas=2, initialize=False)
    step_together(next_chief)
    (back,) = come_back(next_chief, other)
    step_together(next_chief)
    back.join(60)
    assert other.read() == [0 - 0.5 * (1 + 1 + (1 + 2) / 2), 3]


@pytest.mark.parametrize("replicas", [None, 2])
def test_every_ps_has_something_that_is_initialised_after_the_whole_model(local_servers, replicas):
    updates = Worker(local_servers(2, 2), 0, replicas=replicas).updates
    assert {variable.device for variable in updates.unsaved_variables} == {"/job:ps/task:0", "/job:ps/task:1"}


def test_what_wakes_the_workers_serves_the_next_chief(local_servers):
    servers = local_servers(1, 2)
    chief, other = (Worker(servers, index, replicas=2) for index in range(2))
    step_together(chief, other)
    chief.coord.request_stop()  # as a session does when it ends
    chief.coord.join(stop_grace_period_secs=0.1, ignore_live_threads=True)
    chief.session.close()
    next_chief = Worker(servers, 0, replicas=2, initialize=False)
    step_together(next_chief, other)
    assert other.read() == [0 - 0.5 * 1.5 * 2, 2]


@pytest.mark.slow
@pytest.mark.promises("local-steps")
def test_local_steps_are_taken_on_a_copy_and_their_sum_is_added(local_servers):
    servers = local_servers(2, 2)
    first, second = (Worker(servers, index, local_steps=4) for index in range(2))
    first.step()
    assert second.read() == [0 - 4 * 0.5 * 1 * N, 4 * N], "global_step counts the batches"
    second.step()
    first.step()
    assert second.read() == [0 - 4 * 0.5 * (1 + 2 + 1) * N, 12 * N]


@pytest.mark.slow
@pytest.mark.promises("local-steps")
def test_a_pending_exchange_counts_once(local_servers):
    worker = Worker(local_servers(2, 1), 0, local_steps=2, train_steps=10**6, loss=lambda w: 0.01 * (w - 1) ** 2 / 2)
    for _ in range(20):
        worker.step()
    value, step = worker.read()
    assert step == 20 * 2 * N
    assert 1 - value == pytest.approx((1 - 0.5 * 0.01) ** step, rel=1e-5), "as if one step followed the other"


@pytest.mark.slow
@pytest.mark.promises("synchronous-local-steps")
def test_synchronous_local_steps_are_averaged(local_servers):
    servers = local_servers(2, 2)
    workers = [Worker(servers, index, replicas=2, local_steps=4) for index in range(2)]
    for update in range(1, 4):
        step_together(*workers)
        assert workers[0].read() == [0 - 4 * 0.5 * (1 + 2) / 2 * update, 4 * update]


@pytest.mark.parametrize("replicas", [None, 1])
def test_the_last_exchange_has_just_the_steps_that_are_left(local_servers, replicas):
    worker = Worker(local_servers(2, 1), 0, replicas, local_steps=4, train_steps=6)
    worker.step()
    worker.step()
    assert worker.read() == [0 - 6 * 0.5 * 1, 6]
    worker.step()
    assert worker.read() == [0 - 6 * 0.5 * 1, 6], "none is left"


def test_the_exchanges_become_shorter_near_the_end(graph):
    global_step = tf.train.create_global_step()
    num_steps = Length(max_steps=4, train_steps=100, num_shares=8, pace=1).build(global_step.read_value())
    num_steps_by_left = {}
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for left in (100, 25, 24, 9, 8, 1, 0, -7):
            global_step.load(100 - left, session)
            num_steps_by_left[left] = session.run(num_steps)
    assert num_steps_by_left == {100: 4, 25: 4, 24: 3, 9: 2, 8: 1, 1: 1, 0: 0, -7: 0}


@pytest.mark.slow
def test_what_does_not_fit_into_the_steps_that_others_have_left_is_not_applied(local_servers):
    def loss(weight):
        step = tf.train.get_global_step()  # the others take the first 4 meanwhile
        with tf.control_dependencies([tf.cond(step < 4, lambda: step.assign(4), step.read_value)]):
            return 1 * weight

    worker = Worker(local_servers(1, 1), 0, local_steps=4, train_steps=6, loss=loss)
    worker.step()
    worker.step()
    assert worker.read() == [0 - 2 * 0.5 * 1, 6], "the first exchange has 4 steps, of which 2 are too many"


def one_cycle(step, train_steps):
    """Return the learning rate at a global step, when 3 of 10 steps rise."""
    warmup_steps = 0.3 * train_steps
    return LEARNING_RATE * min((step + 1) / warmup_steps, (train_steps - step) / (train_steps - warmup_steps))


@pytest.mark.slow
def test_the_rate_follows_the_global_step_wherever_a_step_is_applied(local_servers):
    rates = [one_cycle(step, 40) for step in range(40)]
    for replicas in (None, 1):  # asynchronous, and synchronous
        servers = local_servers(2, 1)
        worker = Worker(servers, 0, replicas, exchanges=N, train_steps=40, lr_schedule="one_cycle")
        worker.step()
        assert worker.read() == [pytest.approx(-sum(rates[:N])), N]
        resumed = Worker(servers, 0, replicas, False, exchanges=N, train_steps=40, lr_schedule="one_cycle")
        for _ in range(5):
            resumed.step()
        assert resumed.read() == [pytest.approx(-sum(rates)), 40], "it goes on, and ends near 0"


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_every_optimizer_takes_the_rate_of_its_step(local_servers, optimizer):
    worker = Worker(local_servers(1, 1), 0, train_steps=10, lr_schedule="one_cycle", optimizer=optimizer)
    worker.step()
    speeds = [sum(0.9**k for k in range(step + 1)) if optimizer == "momentum" else 1 for step in range(N)]
    rates = [one_cycle(step, 10) for step in range(N)]
    assert worker.read() == [pytest.approx(-np.dot(rates, speeds), rel=1e-4), N]


@pytest.mark.slow
def test_the_rate_of_local_steps_follows_the_global_step(local_servers):
    servers = local_servers(2, 2)
    workers = [Worker(servers, i, 2, local_steps=4, train_steps=40, lr_schedule="one_cycle") for i in range(2)]
    for update in range(1, 11):
        step_together(*workers)
        rates = [one_cycle(step, 40) for step in range(4 * update)]
        assert workers[0].read() == [pytest.approx(-(1 + 2) / 2 * sum(rates), rel=1e-5), 4 * update]

    servers = local_servers(2, 2)
    workers = [Worker(servers, i, local_steps=2, train_steps=100, lr_schedule="one_cycle") for i in range(2)]
    workers[0].step()
    workers[1].step()
    rates = [one_cycle(2 * step, 100) + 2 * one_cycle(2 * N + 2 * step, 100) for step in range(2 * N)]
    assert workers[0].read() == [pytest.approx(-sum(rates), rel=1e-5), 4 * N], "as if the other were as fast"


GOAL = np.float32(1.1)  # which bfloat16 does not have


def to_bfloat16(value):
    return np.float32(tf.bfloat16.as_numpy_dtype(value))


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [None, 1])
def test_parameters_and_gradients_travel_rounded_and_are_kept_exact(local_servers, replicas):
    servers = local_servers(2, 1)
    worker = Worker(servers, 0, replicas, exchanges=N, loss=lambda w: (w - GOAL) ** 2 / 2, dtype=tf.bfloat16)
    worker.step()
    weight = np.float32(0)
    for _ in range(N):
        weight -= np.float32(0.5) * to_bfloat16(to_bfloat16(weight) - GOAL)
    assert worker.read() == [weight, N]
    assert weight != to_bfloat16(weight)


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [None, 1])
def test_the_changes_of_local_steps_travel_rounded_and_add_up_exactly(local_servers, replicas):
    options = {"local_steps": 2, "train_steps": 10**6, "loss": lambda w: (w - GOAL) ** 2 / 2, "dtype": tf.bfloat16}
    worker = Worker(local_servers(2, 1), 0, replicas, **options)
    weight, num_exchanges, num_runs = np.float32(0), 1 if replicas else N, 4
    for _ in range(num_runs):
        worker.step()
        pending = np.float32(0)
        for _ in range(num_exchanges):
            start = end = weight - pending
            for _ in range(2):
                end -= np.float32(0.5) * (end - GOAL)
            weight -= pending
            pending = to_bfloat16(start - end)
        weight -= pending
    assert worker.read() == [weight, 2 * num_exchanges * num_runs]
    assert weight != to_bfloat16(weight)


@pytest.mark.parametrize(
    ("name", "warmup_steps", "expected"),
    [
        ("constant", None, [0.5, 0.5, 0.5, 0.5, 0.5]),
        ("constant", 4, [0.125, 0.5, 0.5, 0.5, 0.5]),
        ("one_cycle", 4, [0.125, 0.5, 0.5 * 2 / 6, 0.5 * 1 / 6, 0]),
        ("one_cycle", 0, [0.5, 0.5 * 7 / 10, 0.5 * 2 / 10, 0.5 * 1 / 10, 0]),
        ("one_cycle", None, [0.5 / 3, 0.5, 0.5 * 2 / 7, 0.5 * 1 / 7, 0]),
    ],
)
def test_schedules(graph, name, warmup_steps, expected):
    rates = Schedule(name, 0.5, warmup_steps, train_steps=10).build(tf.constant([0, 3, 8, 9, 12], tf.int64))
    with tf.Session() as session:
        assert session.run(rates) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sgd", 0 - 0.5 - 0.5),
        ("momentum", 0 - 0.5 - 0.5 * (1 + 0.9)),
        ("nesterov", 0 - 0.5 * (1 + 0.9 * 1) - 0.5 * (1 + 0.9 * (1 + 0.9))),
        ("adam", 0 - 0.5 - 0.5),  # of a constant gradient, whose size cancels out
    ],
)
def test_optimizers(graph, name, expected):
    weight = tf.get_variable("w", shape=[], initializer=tf.zeros_initializer())
    tf.train.create_global_step()
    train_op = make_optimizer(LEARNING_RATE, name, Own()).minimize(1 * weight)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train_op)
        session.run(train_op)
        assert session.run(weight) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["photocopies/w", "layer/copies/w"])
def test_a_users_optimizer_is_found_by_the_scope_of_the_variable(graph, name):
    weight = tf.get_variable(name, [], initializer=tf.zeros_initializer())
    scope = name.partition("/")[0]
    own = Own(lambda rate: ScopedOptimizers({scope: tf.train.GradientDescentOptimizer(rate)}, "model.py"))
    make_optimizer(LEARNING_RATE, "sgd", own).apply_gradients([(tf.constant(1.0), weight)])


def test_the_variables_of_a_users_optimizer_have_the_names_that_checkpoints_have(graph):
    tf.train.create_global_step()
    packing = Packing({"w": tf.get_variable("w", [1])})
    shard = PsShard(packing, "", tf.train.AdamOptimizer, lambda steps: tf.constant(LEARNING_RATE), 100)
    gradient, num_steps = Gradient(tf.zeros([1]), []), tf.constant(1, tf.int64)
    with tf.name_scope("exchange"):
        tf.cond(num_steps > 0, lambda: shard.apply(gradient, num_steps), lambda: num_steps)
    names = {variable.op.name for variable in tf.global_variables()}
    assert names == {"global_step", "w", "w/Adam", "w/Adam_1", "beta1_power", "beta2_power"}


def test_adam_on_a_ps_goes_on_from_a_checkpoint_of_tensorflows_own(tmp_path):
    """With split variables, whose slots are saved as parts of one."""

    def train(make, *restored):
        with tf.Graph().as_default() as graph, tf.variable_scope("", partitioner=lambda **_: [2, 1]):
            step = tf.train.create_global_step(graph)
            parts = list(tf.get_variable("hidden/weights", [4, 3], initializer=tf.ones_initializer()))
            gradients = [tf.cast(step + 1, tf.float32) * (part + number) for number, part in enumerate(parts)]
            train_op = make(step).apply_gradients(zip(gradients, parts, strict=True))
            with tf.control_dependencies([train_op]):
                train_op = step.assign_add(1)
            with tf.Session() as session:
                session.run(tf.global_variables_initializer())
                for path in restored:
                    tf.train.Saver().restore(session, path)
                for _ in range(3):
                    session.run(train_op)
                path = tf.train.Saver().save(session, str(tmp_path / "model.ckpt"), session.run(step))
        return path, {name: tf.train.load_variable(path, name) for name, _ in tf.train.list_variables(path)}

    def classic(_):
        return tf.train.AdamOptimizer(LEARNING_RATE)

    def counted(step):
        return make_optimizer(LEARNING_RATE, "adam", Own(), step)

    path, _ = train(classic)
    _, expected = train(classic, path)
    _, result = train(counted, path)
    assert result.keys() == {"global_step", "hidden/weights", "hidden/weights/Adam", "hidden/weights/Adam_1"}
    for name, value in result.items():
        assert value == pytest.approx(expected[name], rel=1e-4)  # they round the powers of beta differently


@pytest.mark.parametrize(
    ("name", "expected"),
    [("sgd", -3 * 0.5), ("momentum", -0.5 * (1 + 1.9 + 2.71)), ("adam", -3 * 0.5)],
)
def test_the_optimizer_of_local_steps_keeps_its_state_on_the_worker(graph, name, expected):
    global_step = tf.train.create_global_step()
    weight = tf.get_variable("w", shape=[], initializer=tf.zeros_initializer())
    packing = Packing({"w": weight})
    builder = LocalStepsExchangeBuilder(
        Work(packing, gradients_of(lambda weight: 1 * weight), make_nothing(2 * 3), tf.float32, [""]),
        functools.partial(make_optimizer, name=name, own=Own()),
        Schedule("constant", 0.5, None, train_steps=100),
        Length(max_steps=3, train_steps=100, num_shares=1, pace=1),
    )
    selections = packing.select([NO_LOOKUPS] * 2)
    exchanges = [builder.build_exchange(packing.read(s), s, [], number) for number, s in enumerate(selections)]
    assert tf.global_variables() == [global_step, weight]
    assert len(tf.local_variables()) == 1 + {"sgd": 0, "momentum": 1, "adam": 4}[name], "exchanges share it"
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        change, loss = session.run([exchanges[0].gradients[0], exchanges[0].loss])
    assert change == [pytest.approx(-expected, rel=1e-5)]
    assert loss == pytest.approx({"sgd": -2 * 0.5, "momentum": -0.5 * (1 + 1.9), "adam": -2 * 0.5}[name], rel=1e-5)
