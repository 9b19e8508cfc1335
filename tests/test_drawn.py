"""Models drawn at random, in each mode, beside one plain session: what changes, reads and repeats in whatever order.

`DRAWS=200 pytest tests/test_drawn.py` draws more of them than a run of all tests does.
"""

import dataclasses
import os
import re
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import distributed
from runtime.machine.session_config import make_session_config
from tests.models import make_files
from tests.test_optimizer import Accumulating, Looking, WithGetVariable, WithVariables
from tests.test_towers import Client

SIZE, NUM_CLASSES, RATE = 4, 3, 0.05
RANDOM = np.random.default_rng(0)


class Examples(NamedTuple):
    inputs: np.ndarray
    labels: np.ndarray


EXAMPLES = Examples(RANDOM.normal(size=[64, SIZE]).astype(np.float32), RANDOM.integers(0, NUM_CLASSES, 64, np.int32))


class Drawing:
    """Builds a model of drawn parts, of which each that touches the state comes after the one before."""

    def __init__(self, parts):
        self._parts = parts

    def build_logits(self, inputs, is_training):
        self._last, self._is_training = [], is_training
        self._state = tf.get_variable("state", [SIZE], initializer=tf.ones_initializer(), trainable=False)
        self._rows = tf.get_variable("rows", [3, SIZE], initializer=tf.zeros_initializer(), trainable=False)
        x = self.dense(inputs, "first")
        for number, part in enumerate(self._parts):
            x = getattr(self, part)(x, f"part_of_{number}")
        with tf.control_dependencies(self._last):
            return tf.matmul(tf.identity(x), tf.get_variable("out", [SIZE, NUM_CLASSES]))

    def dense(self, x, name):
        return tf.tanh(tf.matmul(x, tf.get_variable(name, [SIZE, SIZE])))

    def shared(self, x, _):
        with tf.variable_scope("shared", reuse=tf.AUTO_REUSE):
            return self.dense(x, "w")

    def loop(self, x, name):
        w = tf.get_variable(name, [SIZE, SIZE])
        return tf.while_loop(lambda n, _: n < 3, lambda n, x: (n + 1, tf.tanh(tf.matmul(x, w))), (0, x))[1]

    def branch(self, x, name):
        w = tf.get_variable(name, [SIZE, SIZE])
        return tf.cond(tf.reduce_mean(x) > 0, lambda: tf.matmul(x, w), lambda: x * 0.5)

    def _change(self, build, x):
        if self._is_training:
            with tf.control_dependencies(self._last):
                change = build(tf.reduce_mean(tf.stop_gradient(x), axis=0))
            tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, change)
            self._last = [change]
        return x

    def set(self, x, _):
        return self._change(lambda mean: tf.assign(self._state, 0.5 * self._state + mean).op, x)

    def add(self, x, _):
        return self._change(lambda mean: tf.assign_add(self._state, 0.1 * mean).op, x)

    def average(self, x, _):
        return self._change(lambda mean: tf.assign_sub(self._state, 0.3 * (self._state - mean)).op, x)

    def scatter(self, x, _):
        return self._change(lambda mean: tf.scatter_add(self._rows, [1, 1], tf.stack([mean, 0.1 * mean])).op, x)

    def set_rows(self, x, _):
        return self._change(lambda mean: tf.assign(self._rows, 0.5 * self._rows + mean).op, x)

    def _read(self, build, x):
        with tf.control_dependencies(self._last):
            x = tf.tanh(x + build(x))
        self._last = [x.op]
        return x

    def read(self, x, _):
        return self._read(lambda x: self._state + 0.0, x)

    def gather(self, x, _):
        return self._read(lambda x: tf.reduce_sum(tf.gather(self._rows, [0, 1]), axis=0), x)

    def read_in_a_loop(self, x, _):
        return self._read(
            lambda x: tf.while_loop(lambda n, _: n < 3, lambda n, x: (n + 1, 0.5 * x + self._state), (0, x))[1], x
        )

    def gather_in_a_branch(self, x, _):
        return self._read(lambda x: tf.cond(x[0, 0] > 0, lambda: tf.gather(self._rows, [1]), lambda: x), x)


READS = ["read", "gather", "read_in_a_loop", "gather_in_a_branch"]
CHANGES = ["set", "add", "average", "scatter", "set_rows"]
PARTS = [*READS, *CHANGES, "dense", "shared", "loop", "branch"]
OPTIMIZERS = [tf.train.AdamOptimizer, tf.train.FtrlOptimizer, WithVariables, WithGetVariable, Accumulating, Looking]
MODES = {  # the number of ps tasks, whether updates are synchronous, local steps, and the number of towers
    "asynchronous": (1, False, 1, 1),
    "synchronous": (1, True, 1, 1),
    "local steps": (1, False, 2, 1),
    "two ps": (2, True, 1, 1),
    "in-graph": (1, False, 1, 2),
}


def build_loss(logits, labels):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=labels))


def train_plainly(drawing, make_optimizer, values, batches):
    """Return the model that one plain session has after some batches."""
    tf.enable_control_flow_v2()  # in which a loop reads a variable once what it must come after is done
    try:
        with tf.Graph().as_default() as graph:
            columns = [tf.placeholder(column.dtype, [None, *column.shape[1:]]) for column in EXAMPLES]
            tf.train.create_global_step()
            loss = build_loss(drawing.build_logits(columns[0], True), columns[1])
            variables = {v.op.name: v for v in tf.global_variables() if v.op.name in values}
            for variable in variables.values():
                variable.initialized_value = lambda variable=variable: variable.initial_value
            trained = tf.trainable_variables()
            gradients = tf.gradients(loss, trained)
            with tf.control_dependencies([loss, *tf.get_collection(tf.GraphKeys.UPDATE_OPS), *gradients]):
                gradients = [tf.identity(gradient) for gradient in gradients]
            train_op = make_optimizer(tf.constant(RATE)).apply_gradients(list(zip(gradients, trained, strict=True)))
            initializer = tf.global_variables_initializer()
    finally:
        tf.disable_control_flow_v2()
    with tf.Session(graph=graph) as session:
        session.run(initializer, {variables[name].initial_value: value for name, value in values.items()})
        for batch in batches:
            session.run(train_op, dict(zip(columns, batch, strict=True)))
        return session.run(variables)


@pytest.fixture(scope="module")
def servers(local_servers):
    """Those of each mode."""
    started = {}

    def get(num_ps, num_workers):
        if (num_ps, num_workers) not in started:
            started[num_ps, num_workers] = local_servers(num_ps, num_workers)
        for server in started[num_ps, num_workers].ps:
            tf.Session.reset(server.target)  # what the last model has left
        return started[num_ps, num_workers]

    return get


@pytest.mark.slow
@settings(
    max_examples=int(os.environ.get("DRAWS", 12)),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],  # to shrink what fails would take long
)
@given(
    parts=st.lists(st.sampled_from(PARTS), max_size=6),
    make_optimizer=st.sampled_from(OPTIMIZERS),
    mode=st.sampled_from(list(MODES)),
)
def test_a_drawn_model_trains_in_each_mode_as_in_one_plain_session(
    servers, set_flags, monkeypatch, parts, make_optimizer, mode
):
    num_ps, is_synchronous, local_steps, num_workers = MODES[mode]
    if num_workers > 1:  # each tower sees its own part of the batch, and only averages of them are those of the whole
        parts = [part for part in parts if part == "average" or part not in (*READS, *CHANGES, "branch")]
    replication = "in_graph" if num_workers > 1 else "between_graph"
    of_mode = [f"--sync_replicas={is_synchronous}", f"--local_steps={local_steps}", f"--replication={replication}"]
    set_flags("--batch_size=4", "--train_steps=1000", f"--learning_rate={RATE}", *of_mode)
    drawing = Drawing(parts)
    files = make_files(
        drawing.build_logits,
        build_loss,
        tf.TensorSpec([SIZE], tf.float32, "inputs"),
        lambda *columns: columns,
        build_optimizer=make_optimizer,
    )
    monkeypatch.setattr(distributed, "FILES", files)
    started = servers(num_ps, num_workers)
    task = dataclasses.replace(started.task("worker", 0), replication=replication)
    connection = started.connection("worker", 0)._replace(config=make_session_config(task))
    client = Client(task, connection, True, EXAMPLES)
    names = ("state", "rows", "first", "out", "shared/w")
    of_model = {
        variable.op.name: variable
        for variable in client.variables
        if variable.op.name in names or re.fullmatch(r"part_of_\d+", variable.op.name)
    }
    before = client.session.run(of_model)
    client.step()
    batches = list(zip(client.images, client.labels, strict=True))
    expected = train_plainly(drawing, make_optimizer, before, batches)
    for name, value in client.session.run(of_model).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-6, atol=1e-6, err_msg=name)
