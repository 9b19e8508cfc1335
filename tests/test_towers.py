"""A step that several devices or in-graph workers share, on real servers, is what numpy computes of their examples."""

import dataclasses
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import distributed
import mnist_input
from benchmarks.testbed.messages import tensors_sent
from runtime.cluster.membership import Membership
from runtime.cluster.task import Task
from runtime.data.memory import MemorySource
from runtime.launch.ports import choose_ports
from runtime.machine.session_config import Connection, make_session_config
from runtime.model.files import Files
from runtime.records.folder import RunFolder
from runtime.roles.member import Member
from runtime.updates.exchange import choose_devices
from runtime.updates.mode import EXCHANGES_PER_RUN

RANDOM = np.random.default_rng(0)
EXAMPLES = mnist_input.Examples(
    RANDOM.integers(0, 256, (200, 784), np.uint8), RANDOM.integers(0, 10, 200).astype(np.uint8)
)
FLAGS = ["--optimizer=sgd", "--learning_rate=0.5", "--batch_size=7", "--hidden_units=5"]
PS_HOSTS, WORKER_HOSTS = ("a:1", "b:2"), ("c:3", "d:4", "e:5")


class Client:
    """A worker that builds a graph, with a session of its own."""

    def __init__(self, task, connection, initialize=True, examples=EXAMPLES):
        source = MemorySource(examples).share(task.index, task.num_clients)
        self.shard = source.load()
        with tf.Graph().as_default() as graph:
            cluster = tf.train.ClusterSpec(task.jobs)
            me = Member(distributed.FLAGS, task, RunFolder(""), connection.config)
            me.membership = Membership(task, me.timeouts)
            batches, _, self.updates, *_ = distributed.build_graph(me, cluster, source)
            self.indices, self.parameters = batches.inputs, tf.trainable_variables()
            self.variables = tf.global_variables()
            initializers = [tf.global_variables_initializer(), tf.variables_initializer(self.updates.unsaved_variables)]
            local_initializer = tf.local_variables_initializer()
        self.session = connection.session(graph)
        for initializer in initializers if initialize else []:
            self.session.run(initializer)
        self.session.run(local_initializer)
        batches.start(self.session, 0)

    def read(self):
        """Return the parameters, in the order of their names: the biases and the weights of both layers."""
        parameters = sorted(self.parameters, key=lambda variable: variable.op.name)
        return self.session.run(parameters)

    def step(self):
        """Take a step; note the examples of the batches of the run, [batches, b] each, and the loss of the first."""
        fetches = [self.indices, self.updates.loss, self.updates.train_op]
        indices, self.loss, _ = self.session.run(fetches)
        self.images, self.labels = (column[indices] for column in self.shard)


@pytest.mark.slow
def test_of_what_towers_assign_the_last_counts_and_what_they_add_adds_up(set_flags, monkeypatch):
    def build_logits(images, is_training):
        largest, total, count, moving = (
            tf.get_variable(name, [], initializer=tf.ones_initializer(), trainable=False)
            for name in ("largest", "total", "count", "moving")
        )
        if is_training:
            for change in (
                largest.assign(tf.reduce_max(images)),
                total.assign_add(tf.reduce_sum(images)),
                count.assign_sub(1.0),
                tf.assign_sub(moving, 0.1 * (moving - tf.reduce_mean(images))),
            ):
                tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, change)
        return tf.get_variable("w", [10]) * tf.reduce_mean(images)

    model = types.SimpleNamespace(build_logits=build_logits, build_loss=lambda logits, _: tf.reduce_sum(logits))
    monkeypatch.setattr(distributed, "FILES", Files(model, mnist_input))
    for local_steps in (1, 2):
        set_flags(*FLAGS, "--train_steps=1", f"--local_steps={local_steps}")
        client = make_client_with_devices(2)
        client.step()
        images = client.images[0] / np.float32(255)
        first, last = np.split(images, [3])
        found = {v.op.name: client.session.run(v) for v in client.variables if not v.shape.rank}
        assert len(first) + len(last) == 7
        assert found["largest"] == last.max()
        assert found["total"] == pytest.approx(1 + images.sum(), rel=1e-5)
        assert found["count"] == 1 - 2
        assert found["moving"] == pytest.approx(1 - 0.1 * (1 - images.mean()), rel=1e-5)


def take_sgd_step(parameters, images, labels):
    """Return the parameters after a step with the mean gradient of all examples, and the loss before it."""
    hidden_biases, hidden_weights, biases, weights = parameters
    inputs = images / 255.0
    hidden = np.maximum(inputs @ hidden_weights + hidden_biases, 0)
    exponentials = np.exp(hidden @ weights + biases)
    probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -np.log(probabilities[rows, labels]).mean()
    of_logits = probabilities
    of_logits[rows, labels] -= 1
    of_logits /= len(labels)
    of_hidden = of_logits @ weights.T * (hidden > 0)
    gradients = [of_hidden.sum(axis=0), inputs.T @ of_hidden, of_logits.sum(axis=0), hidden.T @ of_logits]
    return [value - 0.5 * gradient for value, gradient in zip(parameters, gradients, strict=True)], loss


def assert_close(found, expected):
    for value, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.promises("in-graph-average")
def test_in_graph_a_step_averages_a_batch_of_each_worker(local_servers, set_flags):
    set_flags(*FLAGS, "--train_steps=1")
    servers = local_servers(2, 3)
    task = dataclasses.replace(servers.task("worker", 0), replication="in_graph")
    connection = servers.connection("worker", 0)._replace(config=make_session_config(task))
    client = Client(task, connection)
    before = client.read()
    client.step()
    assert client.labels.shape == (EXCHANGES_PER_RUN, 3 * 7)
    expected, loss = take_sgd_step(before, client.images[0], client.labels[0])
    assert_close(client.read(), expected)
    assert client.loss == pytest.approx(loss, rel=1e-4)

    sent = tensors_sent(client.session, client.updates.train_op)
    joined = [("worker", 1), ("worker", 2)]
    assert {way: count / EXCHANGES_PER_RUN for way, count in sent.items()} == {
        **{(("ps", ps), worker): 1 for ps in range(2) for worker in [("worker", 0), *joined]},  # parameters
        **{(("worker", 0), worker): 2 for worker in joined},  # images and labels
        **{(worker, ("worker", 0)): 2 for worker in joined},  # gradients, one for each ps
        **{(("worker", 0), ("ps", ps)): 1 for ps in range(2)},  # their average
    }


def make_client_with_devices(num_devices):
    """Return a worker with several CPUs, in the place of GPUs."""
    ps_address, worker_address = (f"localhost:{port}" for port in choose_ports(2))
    task = Task("worker", 0, (ps_address,), (worker_address,))
    config = make_session_config(task)
    config.device_count["CPU"] = num_devices
    cluster = tf.train.ClusterSpec(task.jobs)
    _, server = tf.train.Server(cluster, "ps", 0), tf.train.Server(cluster, "worker", 0, config=config)
    return Client(task, Connection(server.target, config))


@pytest.mark.promises("towers")
@pytest.mark.parametrize(
    ("flags", "num_devices", "num_batches"),
    [
        ([], 3, 1),
        (["--batch_size=2"], 3, 1),
        (["--sync_replicas", "--local_steps=2"], 3, 2),
    ],
    ids=["one step", "fewer examples than devices", "two local steps"],
)
def test_the_devices_of_a_worker_share_a_batch(set_flags, flags, num_devices, num_batches):
    set_flags(*FLAGS, f"--train_steps={num_batches}", *flags)
    client = make_client_with_devices(num_devices)
    used = {op.device for op in client.session.graph.get_operations() if op.type == "MatMul" and "tower" in op.name}
    num_towers = min(num_devices, distributed.FLAGS.batch_size)
    assert used == {f"/job:worker/task:0/device:CPU:{device}" for device in range(num_towers)}
    parameters = client.read()
    client.step()
    for images, labels in list(zip(client.images, client.labels, strict=True))[:num_batches]:
        parameters, _ = take_sgd_step(parameters, images, labels)
    assert_close(client.read(), parameters)


def test_a_worker_computes_on_all_of_its_gpus_and_an_in_graph_chief_on_all_workers():
    task = Task("worker", 1, PS_HOSTS, WORKER_HOSTS)
    assert choose_devices(task, tf.ConfigProto(device_count={"GPU": 0})) == [task.device]
    assert choose_devices(task, tf.ConfigProto(device_count={"GPU": 1})) == [task.device]
    gpus = [f"/job:worker/task:1/device:GPU:{gpu}" for gpu in range(2)]
    assert choose_devices(task, tf.ConfigProto(device_count={"GPU": 2})) == gpus
    chief = Task("worker", 0, PS_HOSTS, WORKER_HOSTS, "in_graph")
    assert choose_devices(chief, make_session_config(chief)) == [f"/job:worker/task:{i}" for i in range(3)]


@pytest.mark.promises("dispensable-workers")
def test_in_graph_the_chief_alone_trains_and_needs_all_others():
    def describe(job_name, index, replication):
        task = Task(job_name, index, PS_HOSTS, WORKER_HOSTS, replication)
        needed = [f"{peer.job_name} {peer.index}" for peer in task.needed]
        clients = [peer.index for peer in task.clients]
        return task.only_serves, needed, clients, list(make_session_config(task).device_filters)

    ps_1, worker_1, worker_2 = "ps 1", "worker 1", "worker 2"
    chief_filters = ["/job:ps", "/job:worker", "/job:worker/task:0"]
    assert describe("worker", 0, "in_graph") == (False, ["ps 0", ps_1, worker_1, worker_2], [], chief_filters)
    assert describe("worker", 1, "in_graph") == (True, ["ps 0", ps_1, "worker 0"], [0], ["/job:worker/task:1"])
    assert describe("ps", 0, "in_graph") == (True, [ps_1, "worker 0"], [0], ["/job:ps/task:0"])
    filters = ["/job:ps", "/job:worker/task:1"]
    assert describe("worker", 1, "between_graph") == (False, ["ps 0", ps_1, "worker 0"], [0, 2], filters)
