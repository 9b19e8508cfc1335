"""Training in each mode, on real servers, is that of one plain session that is given the same batches."""

import dataclasses
import re
import threading
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.training.moving_averages import assign_moving_average

import distributed
from runtime.machine.session_config import make_session_config
from tests.models import make_files
from tests.test_towers import Client

SIZE, NUM_CLASSES, EMA_DECAY = 6, 3, 0.8
RANDOM = np.random.default_rng(0)
FIXED = RANDOM.normal(size=[SIZE, 5]).astype(np.float32)


class Examples(NamedTuple):
    inputs: np.ndarray
    labels: np.ndarray


EXAMPLES = Examples(RANDOM.normal(size=[96, SIZE]).astype(np.float32), RANDOM.integers(0, NUM_CLASSES, 96, np.int32))


def build_logits(inputs, is_training):
    """Logits with weight decays of four kinds, two of them in the loss, a frozen variable, an average and a count."""
    with tf.variable_scope("input"):
        mean = tf.get_variable("mean", [SIZE], initializer=tf.zeros_initializer(), trainable=False)
        count = tf.get_variable("count", [], initializer=tf.zeros_initializer(), trainable=False)
        if is_training:
            change = assign_moving_average(mean, tf.reduce_mean(inputs, axis=0), 0.9, zero_debias=False)
            for update in (change, tf.assign_add(count, 1.0)):
                tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
        fixed = tf.get_variable("fixed", [SIZE, 5], initializer=tf.constant_initializer(FIXED), trainable=False)
        scale = tf.get_variable("scale", [SIZE], initializer=tf.ones_initializer())
    tf.add_to_collection("decays", 0.3 * tf.nn.l2_loss(scale))
    with tf.variable_scope("wide"):
        biases = tf.get_variable("biases", [NUM_CLASSES], initializer=tf.ones_initializer())
        wide = inputs @ tf.get_variable("weights", [SIZE, NUM_CLASSES]) + biases
    tf.losses.add_loss(0.2 * tf.nn.l2_loss(biases))
    with tf.variable_scope("deep"):
        weights = tf.get_variable("weights", [5, NUM_CLASSES], regularizer=lambda value: 0.1 * tf.nn.l2_loss(value))
        return wide + tf.nn.relu((inputs * scale) @ fixed) @ weights


def build_loss(logits, labels):
    cross_entropies = tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=labels)
    decays = tf.get_collection("decays") + [0.01 * tf.nn.l2_loss(value) for value in tf.trainable_variables()]
    return tf.reduce_mean(cross_entropies) + tf.add_n(decays)


def build_optimizer(learning_rate):
    return {
        "input": tf.train.RMSPropOptimizer(learning_rate, momentum=0.5),
        "wide": tf.train.FtrlOptimizer(learning_rate, l1_regularization_strength=0.001),
        "deep": tf.train.AdagradOptimizer(learning_rate),
    }


def build_learning_rate(global_step):
    return tf.train.exponential_decay(0.2, global_step, 3, 0.9)


class Mode(NamedTuple):
    """A way to train, and how many train in that way."""

    flags: tuple = ()
    local_steps: int = 1
    clip_norm: float | None = None
    num_ps: int = 1
    num_workers: int = 1
    num_training: int = 1  # of the workers; the others stay away
    replication: str = "between_graph"
    tolerance: float = 1e-4

    @property
    def batches_per_step(self):
        """How many workers compute for one of them."""
        return self.num_workers if self.replication == "in_graph" else 1

    @property
    def pace(self):
        """How far the global step gets, as far as a worker knows, while it takes one step."""
        return self.num_workers if self.local_steps > 1 and not self.flags else 1


SYNC, TWO = ("--sync_replicas",), {"num_workers": 2, "num_training": 2}
MODES = {
    "asynchronous": Mode(),
    "synchronous": Mode(SYNC, **TWO),
    "backup workers": Mode((*SYNC, "--replicas_to_aggregate=1"), num_workers=2),
    "local steps": Mode(local_steps=4),
    "local steps of one of four": Mode(local_steps=4, num_workers=4),
    "synchronous local steps": Mode(SYNC, local_steps=4, **TWO),
    "in-graph": Mode(num_workers=2, replication="in_graph"),
    "three ps and slices": Mode((*SYNC, "--partition_bytes=24"), num_ps=3, **TWO),
    "bfloat16": Mode(("--exchange_dtype=bfloat16",), tolerance=0.05),
    "clipped": Mode(clip_norm=0.1),
    "synchronous, clipped": Mode(SYNC, clip_norm=0.1, **TWO),
    "local steps, clipped": Mode(local_steps=4, clip_norm=0.1),
}


class Alone:
    """One graph and one session, as a script has them that knows of no cluster."""

    def __init__(self, clip_norm, values, pace):
        with tf.Graph().as_default() as graph:
            step = tf.train.create_global_step()
            self._columns = [tf.placeholder(column.dtype, [None, *column.shape[1:]]) for column in EXAMPLES]
            loss = build_loss(build_logits(self._columns[0], is_training=True), self._columns[1])
            keys = (tf.GraphKeys.REGULARIZATION_LOSSES, tf.GraphKeys.LOSSES)
            loss = tf.add_n([loss, *(more for key in keys for more in tf.get_collection(key))])
            trained = tf.trainable_variables()
            self._variables = {variable.op.name: variable for variable in tf.global_variables()}
            self._gradients = tf.gradients(loss, trained)
            if clip_norm:
                self._gradients, _ = tf.clip_by_global_norm(self._gradients, clip_norm)
            self._fed = [tf.placeholder(tf.float32, variable.shape) for variable in trained]
            self._moves = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
            self._updates = [
                optimizer.apply_gradients(
                    [p for p in zip(self._fed, trained, strict=True) if p[1].name.startswith(scope)]
                )
                for scope, optimizer in build_optimizer(build_learning_rate(step)).items()
            ]
            with tf.control_dependencies(self._updates):
                self._updates.append(step.assign_add(pace))
            initializer = tf.global_variables_initializer()
        self._session = tf.Session(graph=graph)
        self._session.run(initializer)
        self.load(values)

    def load(self, values):
        for name, variable in self._variables.items():
            variable.load(values[name], self._session)

    def read(self):
        return self._session.run(self._variables)

    def take_step(self, parts):
        """Take a step with the mean of the gradients of some batches, each of which is clipped by itself."""
        feeds = [dict(zip(self._columns, part, strict=True)) for part in parts]
        found = zip(*(self._session.run(self._gradients, feed) for feed in feeds), strict=True)
        means = [np.mean(of_variable, axis=0) for of_variable in found]
        together = [np.concatenate(column) for column in zip(*parts, strict=True)]
        self._session.run(self._moves, dict(zip(self._columns, together, strict=True)))
        self._session.run(self._updates, dict(zip(self._fed, means, strict=True)))


class Cluster:
    """The workers that train in a mode, and what they should come to."""

    def __init__(self, mode, servers):
        self.mode, self.servers = mode, servers
        self.clients = self.start()
        values = self.read()
        num_alone = mode.num_training if mode.local_steps > 1 else 1
        self.alones = [Alone(mode.clip_norm, values, mode.pace) for _ in range(num_alone)]
        self.moving = values["input/mean"]
        self.averages = {name: value for name, value in values.items() if name.endswith("/ExponentialMovingAverage")}
        assert self.averages

    def start(self):
        """Return new workers, of which the chief makes the model anew."""
        clients = []
        for index in range(self.mode.num_training):
            task = dataclasses.replace(self.servers.task("worker", index), replication=self.mode.replication)
            connection = self.servers.connection("worker", index)._replace(config=make_session_config(task))
            clients.append(Client(task, connection, index == 0, EXAMPLES))
        return clients

    def read(self):
        """Return the variables by name; one that is split, whole."""
        slices = {}
        for variable in sorted(self.clients[0].variables, key=lambda variable: variable.op.name):
            slices.setdefault(re.sub(r"/part_\d+", "", variable.op.name), []).append(variable)
        found = self.clients[0].session.run(slices)
        return {name: parts[0] if len(parts) == 1 else np.concatenate(parts) for name, parts in found.items()}

    def save(self, path):
        with self.clients[0].session.graph.as_default():
            return tf.train.Saver().save(self.clients[0].session, path, write_meta_graph=False)

    def restore(self, path):
        with self.clients[0].session.graph.as_default():
            tf.train.Saver().restore(self.clients[0].session, path)

    def train(self):
        """Let each worker take a run of steps, and the plain sessions the same ones."""
        threads = [threading.Thread(target=client.step, daemon=True) for client in self.clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        runs = [list(zip(client.images, client.labels, strict=True)) for client in self.clients]
        length = self.mode.local_steps
        for first in range(0, len(runs[0]), length):
            for number, alone in enumerate(self.alones):
                for step in range(first, first + length):
                    alone.take_step(self._parts([run[step] for run in (runs if length == 1 else [runs[number]])]))
            self._exchange(length)

    def _parts(self, batches):
        """Return the batches whose gradients count as one: where nothing is clipped, one with all of their examples."""
        if self.mode.replication == "in_graph":
            batches = list(zip(*(np.split(column, self.mode.num_workers) for column in batches[0]), strict=True))
        if self.mode.clip_norm:
            return batches
        return [[np.concatenate(column) for column in zip(*batches, strict=True)]]

    def _exchange(self, num_steps):
        values = [alone.read() for alone in self.alones]
        means = {name: np.mean([of_alone[name] for of_alone in values], axis=0) for name in values[0]}
        # What asynchronous workers send adds up, so of a moving average each sends its share.
        self.moving = means["input/mean"] = self.moving + (means["input/mean"] - self.moving) / self.mode.pace
        if len(self.alones) > 1 or self.mode.pace > 1:
            for alone in self.alones:
                alone.load(means)
        for name, average in self.averages.items():
            weight = 1 - EMA_DECAY**num_steps
            self.averages[name] = average + weight * (means[name.rpartition("/")[0]] - average)

    def check(self):
        found, expected = self.read(), {**self.alones[0].read(), **self.averages}
        expected["global_step"] //= self.mode.pace  # the others have taken none
        # As on a variable that all who compute share.
        expected["input/count"] *= max(self.mode.num_training, self.mode.batches_per_step)
        for name, value in expected.items():
            np.testing.assert_allclose(
                found[name], value, rtol=self.mode.tolerance, atol=self.mode.tolerance / 10, err_msg=name
            )


@pytest.fixture
def cluster(local_servers, set_flags, monkeypatch, request):
    """The workers of a mode, with a model that has everything at once."""
    mode = MODES[request.param]
    flags = ["--batch_size=4", "--train_steps=1000", f"--ema_decay={EMA_DECAY}", f"--local_steps={mode.local_steps}"]
    flags += [f"--clip_norm={mode.clip_norm}"] if mode.clip_norm else []
    set_flags(*flags, *mode.flags)
    own = {"build_optimizer": build_optimizer, "build_learning_rate": build_learning_rate}
    spec = tf.TensorSpec([SIZE], tf.float32, "inputs")
    monkeypatch.setattr(
        distributed, "FILES", make_files(build_logits, build_loss, spec, lambda *columns: columns, **own)
    )
    return Cluster(mode, local_servers(mode.num_ps, mode.num_workers))


@pytest.mark.slow
@pytest.mark.promises("same-seed-several")
@pytest.mark.parametrize("cluster", MODES, indirect=True)
def test_training_in_each_mode_is_that_of_one_plain_session(cluster):
    cluster.train()
    cluster.check()


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["asynchronous", "synchronous"], indirect=True)
def test_schedules_and_the_state_of_optimizers_go_on_after_a_resume(cluster, tmp_path):
    cluster.train()
    path = cluster.save(str(tmp_path / "model"))
    cluster.clients = cluster.start()
    cluster.restore(path)
    cluster.train()
    cluster.check()
