"""A user's model as a function: its arithmetic beside that of one plain session, and what is refused."""

import itertools
import random
import subprocess
import sys
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.training.moving_averages import assign_moving_average

from benchmarks.testbed.processes import PROJECT
from runtime.model.files import Files
from runtime.model.function import Model
from runtime.model.ops import LARGE_BYTES, is_large
from runtime.model.roles import SET
from runtime.model.trace import build_probabilities
from runtime.model.variables import Rows, choose_rows, make_variables, slices_of
from runtime.process.errors import UnusableError

NUM_EXAMPLES, NUM_ROWS, NUM_CLASSES = 6, 11, 3
RANDOM = np.random.default_rng(0)
BATCH = [
    RANDOM.normal(size=(NUM_EXAMPLES, 4)).astype(np.float32),
    RANDOM.integers(0, NUM_ROWS, (NUM_EXAMPLES, 3)).astype(np.int32),
    RANDOM.integers(0, NUM_CLASSES, NUM_EXAMPLES).astype(np.int32),
]
DIGITS = 2.0 ** np.arange(4 * NUM_EXAMPLES, dtype=np.float32).reshape(NUM_EXAMPLES, 4)  # each has a bit of its own
ROWS = RANDOM.normal(size=(NUM_ROWS, 2)).astype(np.float32)
SIGNATURE = [tf.TensorSpec(column.shape[1:], tf.as_dtype(column.dtype)) for column in BATCH]


def build_loss(logits, labels):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=labels))


def make_files(build_logits, build_loss=build_loss, **functions):
    """Return the files of a user, whose examples are four numbers `x` and three `ids`, and a class."""
    model = types.SimpleNamespace(build_logits=build_logits, build_loss=build_loss, **functions)
    names = dict(zip(("x", "ids"), SIGNATURE, strict=False))
    data = types.SimpleNamespace(
        INPUT=names, decode=lambda x, ids, labels: ((x, ids), labels), to_inputs=lambda x, ids: (x, ids)
    )
    return Files(model, data)


def trace(files, seed=0, stream=0, is_stepwise=True):
    return Model(files, SIGNATURE, seed, stream, lambda own: True, is_stepwise)


def train_plainly(files):
    """Return what a plain session has for a batch: its loss, its gradients, and its variables before and after."""
    with tf.Graph().as_default() as graph, tf.Session() as session:
        tf.set_random_seed(0)
        tf.train.create_global_step()
        columns = [tf.constant(column) for column in BATCH]
        inputs, labels = files.decode(columns)
        logits = files.build_logits(inputs, True)
        loss = files.build_loss(logits, labels)
        if not graph.get_collection(tf.GraphKeys.LOSSES):  # else the user has asked for the total
            loss += tf.losses.get_regularization_loss()
        trained = tf.trainable_variables()
        gradients = {}
        for variable, gradient in zip(trained, tf.gradients(loss, trained), strict=True):
            if gradient is not None:
                gradients[variable.op.name] = tf.convert_to_tensor(gradient)
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        variables = {variable.op.name: variable for variable in tf.global_variables()}
        before = session.run(variables)
        results = session.run([loss, gradients, graph.get_collection(tf.GraphKeys.UPDATE_OPS)])
        return (*results[:2], before, session.run(variables))


def train_copy(model, before, num_copies=1, num_runs=1, partitioner=None, num_slices=1):
    """Return the loss, and by how much each variable is lowered, in each of some copies of a model."""
    with tf.Graph().as_default() as graph, tf.Session() as session:
        tf.set_random_seed(0)
        tf.train.create_global_step()
        with tf.variable_scope("", partitioner=partitioner):
            variables = make_variables(model.training, model.tables, num_slices)
        columns = [tf.constant(column) for column in BATCH]
        copies = []
        for _ in range(num_copies):
            lookups = model.in_training.build_lookups(columns)
            parameters = {}
            for name, variable in variables.items():
                if name in model.tables:
                    whole = tf.concat(variable.slices, axis=0)
                    ids = choose_rows(name, variable.num_rows, lookups.ids[name])
                    parameters[name] = Rows(ids, tf.gather(whole, ids))
                else:
                    parameters[name] = tf.convert_to_tensor(variable)
            loss, lowers = model.build_gradients(parameters, columns, lookups.samples)
            for name in model.tables:  # as an IndexedSlices is made dense
                ids, num_rows = parameters[name].ids, variables[name].num_rows
                lowers[name] = tf.math.unsorted_segment_sum(lowers[name], ids, num_rows)
            copies.append((loss, lowers))
        model.build_lookup_tables()
        assert [op.name for op in graph.get_operations() if op.type in ("Placeholder", "VariableV2")] == []
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        for name, variable in variables.items():
            value, slices = before[name], slices_of(variable)
            values = np.array_split(value, len(slices)) if len(slices) > 1 else [value]
            for part, of_part in zip(slices, values, strict=True):
                part.load(of_part, session)
        return [session.run(copies) for _ in range(num_runs)]


def dense(name, x, size, **more):
    with tf.variable_scope(name):
        w = tf.get_variable("w", [x.shape[1], size], **more)
        return tf.matmul(x, w) + tf.get_variable("b", [size], initializer=tf.zeros_initializer())


def two_layers(inputs, is_training, **more):
    return dense("out", tf.nn.relu(dense("hidden", inputs[0], 5, **more)), NUM_CLASSES, **more)


def numbered_variables(inputs, is_training):
    hidden = tf.nn.relu(tf.matmul(inputs[0], tf.Variable(tf.truncated_normal([4, 5]))) + tf.Variable(tf.zeros([5])))
    return tf.matmul(hidden, tf.Variable(tf.truncated_normal([5, NUM_CLASSES]), name="w")) + tf.Variable(
        [0.0, 1.0, 2.0]
    )


def decay_of_all(logits, labels):
    return build_loss(logits, labels) + 0.1 * tf.add_n([tf.nn.l2_loss(v) for v in tf.trainable_variables()])


def with_users_losses(inputs, is_training):
    logits = two_layers(inputs, is_training)
    for variable in tf.trainable_variables():
        tf.add_to_collection("losses", tf.multiply(tf.nn.l2_loss(variable), 0.1))
    return logits


def sum_of_users_losses(logits, labels):
    tf.add_to_collection("losses", build_loss(logits, labels))
    return tf.add_n(tf.get_collection("losses"))


def with_regularizer(inputs, is_training):
    return two_layers(inputs, is_training, regularizer=lambda w: 0.1 * tf.nn.l2_loss(w))


def losses_of_tensorflow(logits, labels):
    tf.losses.sparse_softmax_cross_entropy(labels, logits)
    return tf.losses.get_total_loss()


def monitored_losses(logits, labels):
    error = tf.losses.mean_squared_error(tf.one_hot(labels, NUM_CLASSES), logits)
    tf.summary.scalar("error", error)
    return build_loss(logits, labels) + tf.losses.get_regularization_loss()


def with_frozen(inputs, is_training):
    fixed = tf.get_variable("fixed", [4], trainable=False)
    stopped = tf.get_variable("stopped", [4])
    return two_layers((inputs[0] * fixed + tf.stop_gradient(stopped), None), is_training)


def batch_norm_by_hand(inputs, is_training):
    x = inputs[0]
    mean = tf.Variable(tf.zeros([4]), trainable=False, name="mean")
    variance = tf.Variable(tf.ones([4]), trainable=False, name="variance")
    if is_training:
        of_batch = tf.nn.moments(x, [0])
        for variable, value in zip((mean, variance), of_batch, strict=True):
            change = assign_moving_average(variable, value, 0.9, zero_debias=False)
            tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, change)
        return two_layers((tf.nn.batch_normalization(x, *of_batch, None, None, 0.001), None), is_training)
    return two_layers((tf.nn.batch_normalization(x, mean, variance, None, None, 0.001), None), is_training)


def batch_norm_in_place(inputs, is_training):
    mean = tf.get_variable("mean", [4], initializer=tf.zeros_initializer(), trainable=False)
    of_batch = tf.reduce_mean(inputs[0], axis=0)
    with tf.control_dependencies([tf.assign(mean, mean * 0.9 + of_batch * 0.1)]):
        return two_layers((inputs[0] - of_batch, None), is_training)


def normalise_later(change):
    """Return a function that uses an average as it is after its change."""

    def build_logits(inputs, is_training):
        mean = tf.get_variable("mean", [4], trainable=False)
        return two_layers((inputs[0] - change(mean, tf.reduce_mean(inputs[0], axis=0)), None), is_training)

    return build_logits


def read_after(change):
    """Return what changes an average and, once that is done, reads it."""

    def build(mean, of_batch):
        with tf.control_dependencies([tf.group(change(mean, of_batch))]):
            return tf.identity(mean)

    return build


def shared_batch_norm(inputs, is_training):
    """Use one normalisation three times: each changes the averages as the one before has left them."""
    parts = []
    for factor in (1.0, 2.0, 3.0):
        with tf.variable_scope("shared", reuse=tf.AUTO_REUSE):
            parts.append(batch_norm_by_hand_in_scope(inputs[0] * factor, is_training))
    return dense("out", tf.concat(parts, 1), NUM_CLASSES)


def batch_norm_by_hand_in_scope(x, is_training):
    mean = tf.get_variable("mean", [4], initializer=tf.zeros_initializer(), trainable=False)
    of_batch = tf.reduce_mean(x, axis=0)
    if not is_training:
        return x - mean
    before = tf.get_collection(tf.GraphKeys.UPDATE_OPS)  # a session may run them in any order, and here in this one
    with tf.control_dependencies(before):
        tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign_sub(mean, (mean - of_batch) * 0.5))
    return x - of_batch


def changed_and_read(use):
    """Return a function that changes a state, and adds to the inputs what is then read of it in some way."""

    def build_logits(inputs, is_training):
        state = tf.get_variable("state", [NUM_ROWS, 4], trainable=False)
        with tf.control_dependencies([tf.assign(state, state * 0.5 + tf.reduce_mean(inputs[0], axis=0))]):
            return two_layers((inputs[0] + use(state, inputs[1][:, 0]), None), is_training)

    return build_logits


def in_a_loop(state, ids):
    return tf.while_loop(lambda n, _: n < 3, lambda n, x: (n + 1, x + tf.gather(state, ids)), (0, tf.zeros([6, 4])))[1]


def in_a_branch(state, ids):
    return tf.cond(ids[0] >= 0, lambda: tf.gather(state, ids), lambda: state[:6])


def scattered_and_read(state, ids):
    with tf.control_dependencies([tf.scatter_add(state, [1, 1], [[1.0] * 4] * 2)]):
        return tf.gather_nd(state, ids[:, tf.newaxis])


def set_and_added(mean, of_batch):
    with tf.control_dependencies([tf.assign(mean, of_batch * 0.5)]):
        return tf.identity(tf.assign_add(mean, of_batch * 2.0))


def assigned_twice(mean, of_batch):
    with tf.control_dependencies([tf.assign(mean, of_batch * 0.5)]):
        last = tf.assign(mean, of_batch * 2.0)
    with tf.control_dependencies([last]):
        return tf.identity(of_batch)


def centers_of_classes(change):
    """Return functions that pull the logits towards the center of their class, which follows them."""

    def build_loss_of_centers(logits, labels):
        centers = tf.get_variable("centers", [NUM_CLASSES, NUM_CLASSES], trainable=False)
        distance = tf.gather(centers, labels) - logits
        tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, change(centers, labels, distance * 0.5))
        return build_loss(logits, labels) + tf.reduce_mean(tf.square(distance))

    return [two_layers, build_loss_of_centers]


def batch_norm_of_averages(inputs, is_training):
    of_batch = tf.nn.moments(inputs[0], [0])
    averages = tf.train.ExponentialMovingAverage(0.9, zero_debias=True)
    apply = averages.apply(of_batch)
    with tf.control_dependencies([apply] if is_training else []):
        moments = [tf.identity(averages.average(moment)) for moment in of_batch]
    return two_layers((tf.nn.batch_normalization(inputs[0], *moments, None, None, 0.001), None), is_training)


def fused_batch_norm(inputs, is_training):
    pictures = tf.reshape(inputs[0], [-1, 2, 2, 1])
    x = tf.layers.batch_normalization(pictures, training=is_training, fused=True, name="norm")
    return two_layers((tf.reshape(x, [-1, 4]), None), is_training)


def batch_norm_of_layers(inputs, is_training):
    x = tf.layers.batch_normalization(inputs[0], training=is_training)
    return tf.layers.dense(x, NUM_CLASSES, kernel_regularizer=lambda w: 0.1 * tf.nn.l2_loss(w))


def with_while_loop(inputs, is_training):
    w = tf.get_variable("w", [4, 4])
    _, x = tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, tf.tanh(tf.matmul(x, w))), (0, inputs[0]))
    return dense("out", x, NUM_CLASSES)


def with_cond(inputs, is_training):
    w, v = tf.get_variable("w", [4, NUM_CLASSES]), tf.get_variable("v", [4, NUM_CLASSES])
    return tf.cond(tf.reduce_sum(inputs[0]) > 0, lambda: tf.matmul(inputs[0], w), lambda: tf.matmul(inputs[0], v) * 2.0)


def with_rnn(inputs, is_training):
    steps = tf.stack([inputs[0], inputs[0] * 2, inputs[0] * 3], axis=1)
    lengths = tf.math.floormod(inputs[1][:, 0], 4)
    cell = tf.nn.rnn_cell.BasicLSTMCell(5)
    _, state = tf.nn.dynamic_rnn(cell, steps, sequence_length=lengths, dtype=tf.float32)
    return dense("out", state.h, NUM_CLASSES)


def with_regularized_rnn(inputs, is_training):
    with tf.variable_scope("regularized", regularizer=lambda value: 0.1 * tf.nn.l2_loss(value)):
        return with_rnn(inputs, is_training)


def with_lookup_table(inputs, is_training):
    values = tf.lookup.KeyValueTensorInitializer(tf.constant([1, 2, 3], tf.int32), tf.constant([0.5, 2.0, 4.0]))
    found = tf.lookup.StaticHashTable(values, 1.0).lookup(inputs[1])
    return dense("out", found, NUM_CLASSES)


def with_global_step(inputs, is_training):
    share = 1 / (1 + tf.cast(tf.train.get_or_create_global_step(), tf.float32))
    return two_layers((inputs[0] * share, None), is_training)


def on_a_device(inputs, is_training):
    with tf.device("/cpu:0"):
        return two_layers(inputs, is_training)


def with_a_name_like_a_slice(inputs, is_training):
    with tf.variable_scope("block/part_1"):
        return two_layers(inputs, is_training)


def reused(inputs, is_training):
    with tf.variable_scope("scope", reuse=tf.AUTO_REUSE):
        return two_layers(inputs, is_training) + two_layers((inputs[0] * 2.0, None), is_training)


def tied(inputs, is_training):
    embedding = tf.get_variable("embedding", [NUM_ROWS, 4])
    hidden = tf.reduce_sum(tf.nn.embedding_lookup(embedding, inputs[1]), axis=1)
    return tf.matmul(hidden, embedding, transpose_b=True)[:, :NUM_CLASSES]


def gathered(inputs, is_training):
    table = tf.get_variable("table", [NUM_ROWS, 4])
    return dense("out", tf.reduce_sum(tf.gather(table, inputs[1]), axis=1), NUM_CLASSES)


def looked_up_twice(inputs, is_training):
    table = tf.Variable(tf.random_uniform([NUM_ROWS, 4], -1.0, 1.0), name="table")
    first = tf.nn.embedding_lookup(table, inputs[1])
    second = tf.nn.embedding_lookup(table, tf.math.floormod(tf.cast(inputs[1], tf.int64) + 5, NUM_ROWS))
    return dense("out", tf.reduce_sum(first * second, axis=1), NUM_CLASSES)


def looked_up_for_a_summary(inputs, is_training):
    table = tf.get_variable("table", [NUM_ROWS, 4])
    tf.summary.histogram("first", tf.nn.embedding_lookup(table, [0]))
    return dense("out", tf.reduce_sum(tf.nn.embedding_lookup(table, inputs[1]), axis=1), NUM_CLASSES)


def gathered_by_places(inputs, is_training):
    return dense("out", tf.gather_nd(tf.get_variable("rows", [NUM_ROWS, 4]), inputs[1][:, :1]), NUM_CLASSES)


def averaged_table(inputs, is_training):
    mean = tf.get_variable("mean", [4], initializer=tf.zeros_initializer(), trainable=False)
    table = tf.get_variable("table", [NUM_ROWS, 4])
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign(mean, tf.reduce_mean(table, axis=0)))
    return dense("out", tf.reduce_sum(tf.nn.embedding_lookup(table, inputs[1]), axis=1), NUM_CLASSES)


def looked_up_sparse(inputs, is_training):
    table = tf.get_variable("table", [NUM_ROWS, 4], partitioner=tf.fixed_size_partitioner(3))
    ids = tf.sparse.from_dense(tf.cast(inputs[1], tf.int64))
    found = tf.nn.embedding_lookup_sparse(table, ids, None, partition_strategy="div", combiner="mean")
    return dense("out", tf.reshape(found, [-1, 4]), NUM_CLASSES)


def looked_up_in_parts(inputs, is_training):
    table = tf.get_variable("table", [NUM_ROWS, 4], partitioner=tf.fixed_size_partitioner(3))
    found = tf.nn.embedding_lookup(table, inputs[1], partition_strategy="div")
    return dense("out", tf.reduce_sum(found, axis=1), NUM_CLASSES, partitioner=tf.fixed_size_partitioner(2))


def looked_up_safely(inputs, is_training):
    table = tf.get_variable("table", [NUM_ROWS, 4], partitioner=tf.fixed_size_partitioner(3))
    ids = tf.sparse.from_dense(tf.cast(inputs[1], tf.int64))
    found = tf.nn.safe_embedding_lookup_sparse(table, ids, partition_strategy="div", combiner="sqrtn")
    return dense("out", tf.reshape(found, [-1, 4]), NUM_CLASSES)


def looked_up_in_a_loop(inputs, is_training):
    table = tf.get_variable("table", [NUM_ROWS, 4])
    found = tf.map_fn(lambda ids: tf.reduce_sum(tf.gather(table, ids), axis=0), inputs[1], tf.float32)
    return dense("out", found, NUM_CLASSES)


def with_custom_gradient(inputs, is_training):
    @tf.custom_gradient
    def double(x):
        return x, lambda gradient: 2.0 * gradient

    return dense("out", double(tf.nn.silu(dense("hidden", inputs[0], 5))), NUM_CLASSES)


@tf.RegisterGradient("StraightThrough")
def straight_through(op, gradient):
    return gradient


def with_overrides(inputs, is_training):
    def sign(x):
        with tf.get_default_graph().gradient_override_map({"Sign": "StraightThrough"}):
            return tf.sign(x)

    return dense("out", sign(tf.map_fn(sign, dense("hidden", inputs[0], 5))), NUM_CLASSES)


def with_summaries(inputs, is_training):
    logits = two_layers(inputs, is_training)
    tf.summary.scalar("mean", tf.reduce_mean(logits))
    for variable in tf.trainable_variables():
        tf.summary.histogram(variable.op.name, variable)
    return logits


OF_LAYERS = ["batch_normalization/moving_mean", "batch_normalization/moving_variance"]
OF_AVERAGES = [
    f"moments/Squeeze{number}/{name}"
    for number in ("", "_1")
    for name in (
        "ExponentialMovingAverage",
        "ExponentialMovingAverage/biased",
        "ExponentialMovingAverage/local_step",
    )
]
# By name: the functions; then the tables, and what is state and frozen.
CASES = {
    "get_variable": ([two_layers], [], [], []),
    "Variable": ([numbered_variables], [], [], []),
    "decay of all": ([two_layers, decay_of_all], [], [], []),
    "a user's losses": ([with_users_losses, sum_of_users_losses], [], [], []),
    "regularizer": ([with_regularizer], [], [], []),
    "monitored losses": ([with_regularizer, monitored_losses], [], [], []),
    "total loss": ([with_regularizer, losses_of_tensorflow], [], [], []),
    "total loss of layers": ([batch_norm_of_layers, losses_of_tensorflow], [], OF_LAYERS, []),
    "frozen": ([with_frozen], [], [], ["fixed", "stopped"]),
    "batch norm by hand": ([batch_norm_by_hand], [], ["mean", "variance"], []),
    "batch norm in place": ([batch_norm_in_place], [], ["mean"], []),
    "batch norm of layers": ([batch_norm_of_layers], [], OF_LAYERS, []),
    "fused batch norm": ([fused_batch_norm], [], ["norm/moving_mean", "norm/moving_variance"], []),
    "batch norm of averages": ([batch_norm_of_averages], [], OF_AVERAGES, []),
    "assigned": ([normalise_later(lambda mean, new: tf.assign(mean, new * 0.5))], [], ["mean"], []),
    "added": ([normalise_later(lambda mean, new: tf.assign_add(mean, new))], [], ["mean"], []),
    "subtracted": ([normalise_later(lambda mean, new: tf.assign_sub(mean, mean - new))], [], ["mean"], []),
    "read once assigned": ([normalise_later(read_after(tf.assign))], [], ["mean"], []),
    "read once subtracted": ([normalise_later(read_after(tf.assign_sub))], [], ["mean"], []),
    "assigned twice": ([normalise_later(assigned_twice)], [], ["mean"], []),
    "set, then added to": ([normalise_later(set_and_added)], [], ["mean"], []),
    "a shared average": ([shared_batch_norm], [], ["shared/mean"], []),
    "gather once assigned": ([changed_and_read(tf.gather)], [], ["state"], []),
    "gather in a loop once assigned": ([changed_and_read(in_a_loop)], [], ["state"], []),
    "gather in a branch once assigned": ([changed_and_read(in_a_branch)], [], ["state"], []),
    "read once scattered": ([changed_and_read(scattered_and_read)], [], ["state"], []),
    "scatter_sub": (centers_of_classes(tf.scatter_sub), [], ["centers"], []),
    "scatter_add": (centers_of_classes(tf.scatter_add), [], ["centers"], []),
    "while_loop": ([with_while_loop], [], [], []),
    "cond": ([with_cond], [], [], []),
    "dynamic_rnn": ([with_rnn], [], [], []),
    "dynamic_rnn with a regularizer": ([with_regularized_rnn], [], [], []),
    "StaticHashTable": ([with_lookup_table], [], [], []),
    "global step": ([with_global_step], [], [], []),
    "device": ([on_a_device], [], [], []),
    "names": ([with_a_name_like_a_slice], [], [], []),
    "reuse": ([reused], [], [], []),
    "tied": ([tied], [], [], []),
    "gather": ([gathered], ["table"], [], []),
    "gather_nd": ([gathered_by_places], [], [], []),
    "two lookups": ([looked_up_twice], ["table"], [], []),
    "lookup for a summary": ([looked_up_for_a_summary], ["table"], [], []),
    "averaged table": ([averaged_table], [], ["mean"], []),
    "sparse lookup": ([looked_up_sparse], ["table"], [], []),
    "safe lookup": ([looked_up_safely], ["table"], [], []),
    "partitioned": ([looked_up_in_parts], ["table"], [], []),
    "gather in a loop": ([looked_up_in_a_loop], [], [], []),
    "custom gradient": ([with_custom_gradient], [], [], []),
    "overridden gradients": ([with_overrides], [], [], []),
    "summaries": ([with_summaries], [], [], []),
}


def join_slices(values):
    """Return the values of variables by name, those of slices such as `table/part_0` put together by rows."""
    parts = {}
    for name, value in values.items():
        whole, _, number = name.rpartition("/part_")
        parts.setdefault(whole if number.isdigit() else name, []).append(value)
    return {name: np.concatenate(of_name) if len(of_name) > 1 else of_name[0] for name, of_name in parts.items()}


@pytest.mark.parametrize("name", CASES)
def test_a_copy_computes_what_one_session_does(name):
    functions, tables, state, frozen = CASES[name]
    loss, gradients, before, after = train_plainly(make_files(*functions))
    gradients, before, after = (join_slices(values) for values in (gradients, before, after))
    model = trace(make_files(*functions))
    assert (model.tables, sorted(model.state), sorted(model.frozen)) == (tables, state, frozen)
    assert sorted({*model.parameters, *tables}) == sorted(gradients)
    for of_copy, lowers in train_copy(model, before, num_copies=2)[0]:
        assert of_copy == pytest.approx(loss, rel=1e-5)
        for variable, gradient in gradients.items():
            np.testing.assert_allclose(lowers.pop(variable), gradient, rtol=1e-3, atol=1e-6, err_msg=variable)
        assert sorted(lowers) == state
        for variable, change in lowers.items():
            assert np.abs(before[variable] - after[variable]).max() > 0
            is_set = model.state[variable] == SET
            expected = after[variable] if is_set else before[variable] - after[variable]
            np.testing.assert_allclose(change, expected, rtol=1e-3, atol=1e-6, err_msg=variable)


def with_a_reduction_in(control):
    def build_logits(inputs, is_training):
        w = tf.get_variable("w", [4, NUM_CLASSES])

        def normalise(x):
            return x - 0.1 * tf.reduce_sum(x, 1)[:, tf.newaxis] + 0.1 * tf.reduce_mean(x, 1)[:, tf.newaxis]

        if control == "while_loop":
            return tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, normalise(x)), (0, inputs[0] @ w))[1]
        if control == "cond":
            return tf.cond(tf.reduce_sum(inputs[0]) < 1e9, lambda: normalise(inputs[0] @ w), lambda: inputs[0] @ w)
        return tf.map_fn(lambda x: normalise(x[tf.newaxis] @ w)[0], inputs[0])

    return build_logits


@pytest.mark.parametrize("control", ["while_loop", "cond", "map_fn"])
def test_copies_of_a_reduction_in_a_loop_may_lie_on_two_tasks(local_servers, control):
    servers, model = local_servers(1, 2), trace(make_files(with_a_reduction_in(control)))
    with tf.Graph().as_default():
        columns, values = [tf.constant(column) for column in BATCH], {"w": tf.ones([4, NUM_CLASSES])}
        copies = []
        for index in range(2):
            with tf.device(servers.task("worker", index).device):
                copies.append(model.build_gradients(values, columns))
        with tf.Session(servers.workers[0].target) as session:
            (loss, lowers), (other_loss, _) = session.run(copies)
    assert loss == other_loss
    assert np.isfinite(lowers["w"]).all()


@pytest.fixture
def number_copies(monkeypatch):
    """A function that counts copies from 1 again, as a new process does."""
    return lambda: monkeypatch.setattr("runtime.model.template._numbers", itertools.count(1))


def test_dropout_has_a_mask_for_each_copy_each_stream_and_each_run(number_copies):
    def with_dropout(inputs, is_training):
        return tf.nn.dropout(inputs[0] ** 0 * tf.get_variable("w", []), rate=0.5 if is_training else 0.0)

    files = make_files(with_dropout, lambda logits, labels: tf.reduce_mean(logits * DIGITS))

    def losses(seed, stream):
        number_copies()
        model = trace(files, seed, stream)
        return [loss for run in train_copy(model, {"w": 1.0}, num_copies=2, num_runs=2) for loss, _ in run]

    first = losses(0, 0)
    assert losses(0, 0) == first
    assert len({*first, *losses(0, 1), *losses(1, 0)}) == 12


def test_random_ids_choose_rows_once_for_lookup_and_loss(graph):
    def build_logits(inputs, is_training):
        table = tf.get_variable("table", [NUM_ROWS, 2], initializer=tf.constant_initializer(ROWS))
        ids = tf.random.uniform([NUM_EXAMPLES], 0, NUM_ROWS, tf.int64)
        return {"found": tf.nn.embedding_lookup(table, ids), "ids": ids}

    def mistake(logits, labels):
        wanted = tf.gather(tf.constant(ROWS), logits["ids"])
        return tf.reduce_sum((logits["found"] - wanted) ** 2) + tf.reduce_sum(logits["found"])

    model = trace(make_files(build_logits, mistake))
    assert model.tables == ["table"]
    copies = [copy for run in train_copy(model, {"table": ROWS}, num_copies=2, num_runs=2) for copy in run]
    for loss, lowers in copies:
        counts = lowers["table"][:, 0]
        assert counts.sum() == NUM_EXAMPLES
        assert loss == pytest.approx(np.sum(counts[:, None] * ROWS), rel=1e-5)
    assert len({tuple(lowers["table"][:, 0]) for _, lowers in copies}) == 4
    assert trace(make_files(build_logits, mistake), is_stepwise=False).tables == []

    columns = [tf.constant(column) for column in BATCH]
    lookups = model.in_tests.build_lookups(columns)
    chosen = choose_rows("table", NUM_ROWS, lookups.ids["table"])
    rows = Rows(chosen, tf.gather(tf.constant(ROWS), chosen))
    measured = [
        model.build_measures({"table": rows}, columns, lookups.samples),
        model.build_measures({"table": tf.constant(ROWS)}, columns),  # it draws its own
    ]
    with tf.Session() as session:
        for loss, logits in session.run([(of.loss, of.logits) for of in measured]):
            assert loss == pytest.approx(np.sum(ROWS[logits["ids"]]), rel=1e-5)


ARRAY = np.arange(12, dtype=np.float32).reshape(6, 2)
FIRST_VALUES = {
    "an array": (lambda: tf.Variable(ARRAY), ARRAY),
    "a list": (lambda: tf.Variable([1.0, 2.0]), [1.0, 2.0]),
    "a number": (lambda: tf.Variable(3.0), 3.0),
    "a tensor": (lambda: tf.Variable(tf.ones([6, 2]) * 2.0), np.full([6, 2], 2.0)),
    "a function": (lambda: tf.Variable(lambda: tf.fill([6, 2], 4.0)), np.full([6, 2], 4.0)),
    "another variable's": (lambda: twice_another(tf.Variable(ARRAY)), ARRAY * 2.0),
    "what reads another variable": (lambda: twice(tf.Variable(ARRAY)), ARRAY * 2.0),
    "the average of another variable": (lambda: average_of(tf.Variable(ARRAY)), ARRAY),
    "get_variable of an array": (lambda: tf.get_variable("v", initializer=ARRAY), ARRAY),
    "get_variable of a number": (lambda: tf.get_variable("v", initializer=3.0), 3.0),
    "get_variable of a tensor": (lambda: tf.get_variable("v", initializer=tf.ones([6, 2])), np.ones([6, 2])),
    "get_variable of a function": (lambda: tf.get_variable("v", [6, 2], initializer=own_initializer), ARRAY),
    "a constant": (lambda: tf.get_variable("v", [6, 2], initializer=tf.constant_initializer(ARRAY)), ARRAY),
    "an empty shape": (lambda: tf.get_variable("v", [], initializer=tf.ones_initializer()), 1.0),
}


def twice_another(variable):
    return tf.reduce_sum(variable) * tf.Variable(variable.initialized_value() * 2.0)


def twice(variable):
    return tf.reduce_sum(variable) * tf.Variable(variable * 2.0)


def average_of(variable):
    averages = tf.train.ExponentialMovingAverage(0.9)
    with tf.control_dependencies([averages.apply([variable])]):
        return tf.reduce_sum(variable) * tf.reduce_sum(averages.average(variable))


def own_initializer(shape, dtype=None, partition_info=None):
    return tf.reshape(tf.range(12.0), shape)


@pytest.mark.parametrize("partitioner", [None, tf.variable_axis_size_partitioner(16, max_shards=2)])
@pytest.mark.parametrize("name", FIRST_VALUES)
def test_first_values_are_those_of_the_user_also_where_a_variable_is_split(graph, name, partitioner):
    make, expected = FIRST_VALUES[name]
    model = trace(make_files(lambda inputs, is_training: dense("out", inputs[0], 3) * tf.reduce_sum(make())))
    with tf.variable_scope("", partitioner=partitioner):
        variables = make_variables(model.training)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        values = session.run([tf.convert_to_tensor(variables[n]) for n in variables if not n.startswith("out/")])
    np.testing.assert_array_equal(values[-1], expected)


@pytest.mark.parametrize("num_slices", [1, 3])
@pytest.mark.parametrize(
    "make",
    [
        lambda: tf.get_variable("table", [3000, 4], initializer=tf.random_normal_initializer()),
        lambda: tf.Variable(tf.random_normal([3000, 4]), name="table"),
    ],
)
def test_random_first_values_of_a_table_differ_in_each_row_and_for_each_seed(make, num_slices):
    def build_logits(inputs, is_training):
        return dense("out", tf.reduce_sum(tf.nn.embedding_lookup(make(), inputs[1]), axis=1), NUM_CLASSES)

    rows = []
    for seed in (0, 0, 1):
        with tf.Graph().as_default(), tf.Session() as session:
            tf.set_random_seed(seed)
            model = trace(make_files(build_logits), seed)
            (table,) = (make_variables(model.training, model.tables, num_slices)[name] for name in model.tables)
            session.run(tf.global_variables_initializer())
            rows.append(np.concatenate(session.run(table.slices)))
    assert len(np.unique(rows[0], axis=0)) == 3000
    assert rows[0].std() == pytest.approx(1.0, abs=0.1)
    np.testing.assert_array_equal(rows[0], rows[1])
    assert np.abs(rows[0] - rows[2]).max() > 1


def test_a_scope_that_tests_reuse_has_the_variables_of_training():
    def build_logits(inputs, is_training):
        with tf.variable_scope("net", reuse=not is_training):
            size = tf.get_variable("size", [NUM_CLASSES]) if is_training else tf.get_variable("size")
            return dense("out", inputs[0], NUM_CLASSES) * size

    model = trace(make_files(build_logits))
    shapes = [{name: v.shape.as_list() for name, v in made.variables.items()} for made in (model.training, model.test)]
    assert shapes[0] == shapes[1] != {}


def test_what_a_function_draws_with_numpy_it_draws_again_in_tests():
    drawn = []

    def build_logits(inputs, is_training):
        drawn.append((np.random.normal(), random.random()))
        return two_layers(inputs, is_training)

    trace(make_files(build_logits), seed=1)
    trace(make_files(build_logits), seed=2)
    assert drawn[0] == drawn[1] != drawn[2] == drawn[3]


def test_what_python_draws_after_the_functions_were_called_is_a_matter_of_each_worker():
    numbers = []
    for _ in range(2):
        np.random.seed(5)
        random.seed(5)
        if numbers:
            trace(make_files(two_layers), seed=1)
        numbers.append((np.random.normal(), random.random()))
    assert numbers[0] == numbers[1], "that of the process goes on"


def test_a_frozen_variable_has_a_copy_on_the_worker(graph):
    model = trace(make_files(with_frozen))
    variables = make_variables(model.training)
    model.make_constants({name: variables[name] for name in model.frozen})
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(tf.local_variables_initializer())
        values = session.run([model.constants, {name: variables[name] for name in model.frozen}])
    np.testing.assert_equal(*values)


def count_up(logits):
    count = tf.Variable(0.0, trainable=False, collections=[tf.GraphKeys.LOCAL_VARIABLES])
    return count, tf.assign_add(count, tf.cast(tf.shape(logits)[0], tf.float32))


def test_measures_are_those_of_one_session_and_of_all_batches(graph):
    def build_metrics(logits, labels):
        predictions, is_first = tf.argmax(logits, axis=1, output_type=tf.int32), tf.equal(labels, 0)
        return {
            "accuracy": tf.reduce_mean(tf.cast(tf.equal(predictions, labels), tf.float32)),
            "auc": tf.metrics.auc(is_first, tf.nn.softmax(logits)[:, 0]),
            "precision": tf.metrics.precision(is_first, tf.equal(predictions, 0)),
            "recall": tf.metrics.recall_at_k(tf.cast(labels, tf.int64), logits, 2),  # float64
            "count": count_up(logits),
        }

    files = make_files(batch_norm_by_hand, build_metrics=build_metrics)
    halves = [[column[:4] for column in BATCH], [column[4:] for column in BATCH]]
    with tf.Session() as session:
        columns = [tf.placeholder(column.dtype, [None, *column.shape]) for column in SIGNATURE]
        logits = files.build_logits(columns[:2], is_training=False)
        plain = files.build_metrics(logits, columns[2])
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        before = session.run({variable.op.name: variable for variable in tf.global_variables()})
        pairs = ["auc", "precision", "recall", "count"]
        updates = [plain["accuracy"], *(plain[name][1] for name in pairs)]
        accuracies = [session.run(updates, dict(zip(columns, half, strict=True)))[0] for half in halves]
        expected = [accuracies, *session.run([plain[name][0] for name in pairs])]
    model = trace(files)
    with tf.Graph().as_default(), tf.Session() as session:
        columns = [tf.placeholder(column.dtype, [None, *column.shape]) for column in SIGNATURE]
        measured = model.build_measures({name: tf.constant(value) for name, value in before.items()}, columns)
        assert measured.names == ["accuracy", *pairs]
        for _ in range(2):  # a second test begins anew
            session.run(measured.reset)
            accuracies = [
                session.run([measured.means, measured.updates], dict(zip(columns, half, strict=True)))[0]["accuracy"]
                for half in halves
            ]
            values = session.run(measured.values)
            assert [accuracies, *(values[name] for name in pairs)] == [pytest.approx(value) for value in expected]


@pytest.mark.parametrize("name", ["accuracy", "similarity"])
def test_a_classifier_is_what_has_an_accuracy(name):
    model = trace(make_files(two_layers, build_metrics=lambda logits, labels: {name: tf.reduce_mean(logits)}))
    is_classifier = name == "accuracy"
    assert model.test.is_of_classes == is_classifier
    assert sorted(model.test.predictions) == (["classes", "probabilities"] if is_classifier else ["outputs"])


def test_what_is_a_softmax_already_gets_no_second_one(graph):
    logits = tf.constant([[1.0, 3.0]])
    softmax = tf.nn.softmax(logits)
    with tf.Session() as session:
        for outputs in (logits, softmax, tf.identity(softmax)):
            assert session.run(build_probabilities(outputs))[0] == pytest.approx([0.1192, 0.8808], abs=1e-4)


# What build_logits() does before it returns its logits, and what is told of it. The first line is line 5.
REFUSED = [
    (
        "tf.get_variable('unused', [3])",
        "model.py, line 5: the loss does not depend on unused: use it, or do not create it",
    ),
    ("x = x + tf.placeholder(tf.float32, [4])", "model.py, line 5: TensorFlow's op Placeholder .* nothing feeds it"),
    (
        "x = x * tf.get_variable('v', initializer=x[0])",
        "model.py, line 5: the initial value of v depends on examples, but variables are created",
    ),
    (
        "step = tf.Variable(0, trainable=False, name='global_step')\n    x = x * tf.cast(step, tf.float32)",
        r"model.py, line 5: nothing increments this variable global_step: use tf.train.get_global_step\(\)",
    ),
    ("x = x + tf.FIFOQueue(1, tf.float32, [[4]]).dequeue()", "model.py, line 5: TensorFlow's op FIFOQueueV2 .* cannot"),
    (
        "x = x + tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensors(np.ones(4, np.float32))).get_next()",
        "model.py, line 5: TensorFlow's op OneShotIterator .* cannot be copied",
    ),
    (
        "x = tf.cast(x * tf.get_variable('v', [4], tf.float64), tf.float32)",
        "model.py, line 5: TypeError: .*; correct model.py",
    ),
    (
        "x = x * tf.cast(tf.get_variable('v', [4], tf.float64), tf.float32)",
        "model.py, line 5: v is float64, but what is trained must be float32",
    ),
    ("x = x + tf.get_variable('v', [4], constraint=tf.abs)", "model.py, line 5: variable v has a constraint, which"),
    ("x = x + tf.Variable(1.0, collections=[])", "model.py, line 5: variable Variable is in no collection of global"),
    (
        "if not is_training:\n        x = x + tf.get_variable('v', [4])",
        "model.py, line 6: v is created only for tests: create it always",
    ),
    (
        "v = tf.get_variable('v', [4], trainable=False)\n"
        "    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.scatter_update(v, [0], [1.0]))",
        "model.py, line 6: workers cannot run ResourceScatterUpdate on v, float32: they",
    ),
    (
        "v = tf.get_variable('v', [4])\n    x = x + v\n"
        "    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, v[0].assign(0.0))",
        "model.py, line 7: workers cannot run ResourceStridedSliceAssign on v, float32: they",
    ),
    (
        "n = tf.get_variable('n', [], tf.int32, trainable=False)\n"
        "    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.count_up_to(n, 9))",
        "model.py, line 6: workers cannot run ResourceCountUpTo on n, int32: they",
    ),
    (
        "seen = tf.lookup.experimental.DenseHashTable(tf.int64, tf.int64, 0, -1, -2)\n"
        "    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, seen.insert([7], [8]))",
        "model.py, line 6: a step changes a lookup table, but each worker has its own copy",
    ),
    (
        "v = tf.get_variable('v', [4])\n"
        "    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign(v, v * 0.5))\n"
        "    x = x + v",
        "model.py, line 6: v is trained, so no other assignment may change it",
    ),
    (
        "n = tf.get_variable('n', [], tf.int32, trainable=False)\n"
        "    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign_add(n, 1))",
        "model.py, line 6: workers cannot run AssignAddVariableOp on n, int32: they",
    ),
    (
        "v = tf.get_variable('v', [4], trainable=False)\n"
        "    x = x + tf.cond(tf.constant(is_training), lambda: tf.identity(tf.assign(v, x[0])), lambda: v + 0.0)",
        r"model.py, line 6: TensorFlow's op If .* assign outside, with `if is_training:` as the branch",
    ),
    (
        "v = tf.get_variable('v', [4], trainable=False)\n"
        "    update = tf.cond(x[0, 0] > 0, lambda: tf.identity(tf.assign(v, x[0])), lambda: v + 0.0)\n"
        "    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)",
        r"model.py, line 6: TensorFlow's op If .* assigns to it",
    ),
    (
        "v = tf.Variable(tf.zeros(tf.shape(x)), validate_shape=False)\n    x = x + v",
        "model.py, line 5: variable Variable has",
    ),
    (
        "v = tf.get_variable('v', [4])\n    tf.train.AdamOptimizer().minimize(tf.reduce_sum(v * x))\n    x = x + v",
        "model.py, line 6: an optimizer changes v: return it from build_optimizer",
    ),
    (
        "with tf.get_default_graph().gradient_override_map({'Sign': 'Identity'}):\n        x = tf.map_fn(tf.sign, x)",
        r"model.py, line 6: gradient_override_map\(\) of Sign has no effect inside a loop or a branch: enter it there",
    ),
    (
        "x = tf.keras.layers.Dense(4, weights=[np.eye(4, dtype=np.float32), np.ones(4)])(x)",
        r"model.py, line 5: a session sets dense/kernel here, as set_weights\(\) does, but no later session sees that:"
        r" give it an initializer, such as tf.constant_initializer\(weights\)",
    ),
    (
        "v = tf.get_variable('v', [4, 4], partitioner=tf.fixed_size_partitioner(2))\n    x = x @ tf.concat(list(v), 0)",
        r"model.py, line 6: .*Iterating over a symbolic.* \(a variable is not split here, since a partitioner splits",
    ),
    (
        "x = tf.cond(is_training, lambda: x, lambda: 2 * x)",
        r"model.py, line 5: TypeError: .*pred.* \(is_training is a Python bool: use `if is_training:`, not",
    ),
    ("1 / 0", "model.py, line 5: ZeroDivisionError: division by zero; correct model.py"),
]


def write_model(text, functions="build_loss = own_loss"):
    """Return what stands in a user's model.py."""
    lines = [
        "import tensorflow.compat.v1 as tf",
        functions,
        "def build_logits(inputs, is_training):",
        "    x = inputs[0]",
    ]
    model = {"np": np, "own_loss": build_loss}
    text = "\n".join([*lines, f"    {text}", "    return tf.matmul(x, tf.get_variable('w', [4, 3]))"])
    exec(compile(text, PROJECT / "model.py", "exec"), model)
    return {name: function for name, function in model.items() if name.startswith("build_")}


@pytest.mark.parametrize(("text", "told"), REFUSED)
def test_what_cannot_be_trained_is_refused_with_its_place(text, told):
    with pytest.raises(UnusableError, match=told):
        train_copy(trace(make_files(**write_model(text))), {})


@pytest.mark.parametrize(
    "call", ["tf.py_func(abs, [x], tf.float32)", "tf.map_fn(lambda row: tf.py_func(abs, [row], tf.float32), x)"]
)
def test_a_python_function_is_refused_with_its_place_where_only_its_own_process_has_it(call):
    with_call = trace(make_files(**write_model(f"x = tf.ensure_shape({call}, [None, 4])")))
    with pytest.raises(
        UnusableError, match=r"^model\.py, line 5: a Python function is called here, but nobody has it$"
    ):
        with_call.in_training.check_python("nobody has it")
    trace(make_files(**write_model("x = tf.abs(x)"))).in_training.check_python("nobody has it")


@pytest.mark.parametrize("is_added", [False, True])
def test_a_change_that_no_step_makes_is_told(is_added, caplog):
    layer = "tf.keras.layers.BatchNormalization()"
    text = f"layer = {layer}\n    x = layer(x, training=is_training)"
    if is_added:
        text += "\n    [tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update) for update in layer.updates]"
    found = trace(make_files(**write_model(text)))
    told = "model.py, line 6: no step runs this update of batch_normalization/moving_mean: add its op to"
    assert (told in caplog.text) != is_added
    assert len(found.state) == 2 * is_added


@pytest.mark.slow
def test_the_digest_of_a_graph_is_the_same_in_every_process():
    """Also where a loop and a branch name two functions each: those of an op have another order in each process."""
    text = (
        "import runpy; runpy.run_path('tests/conftest.py')\n"
        "from tests import test_model_function as t\n"
        "functions = t.with_while_loop, t.with_cond\n"
        "print(*(t.trace(t.make_files(function)).uses for function in functions))"
    )
    command = [sys.executable, "-c", text]
    found = {subprocess.run(command, cwd=PROJECT, capture_output=True, text=True).stdout for _ in range(3)}
    assert len(found) == 1
    assert len(found.pop()) > 100


def test_a_summary_of_an_average_of_rows_needs_these_rows_alone(graph):
    def build_logits(inputs, is_training):
        logits = averaged_rows(inputs, is_training)
        tf.summary.histogram("mean", tf.get_collection("mean")[0].read_value())
        return logits

    def averaged_rows(inputs, is_training):
        rows = tf.reduce_sum(tf.nn.embedding_lookup(tf.get_variable("table", [NUM_ROWS, 4]), inputs[1]), axis=1)
        mean = tf.get_variable("mean", [4], initializer=tf.zeros_initializer(), trainable=False)
        tf.add_to_collection("mean", mean)
        if is_training:
            tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign(mean, tf.reduce_mean(rows, axis=0)))
        return dense("out", rows - mean, NUM_CLASSES)

    model = trace(make_files(build_logits))
    assert model.tables == ["table"]
    columns = [tf.constant(column) for column in BATCH]
    variables = make_variables(model.training, model.tables, 1)
    lookups = model.in_summaries.build_lookups(columns)
    ids = choose_rows("table", NUM_ROWS, lookups.ids["table"])
    parameters = {"table": Rows(ids, tf.gather(tf.concat(variables["table"].slices, axis=0), ids))}
    parameters |= {name: tf.convert_to_tensor(v) for name, v in variables.items() if name != "table"}
    (summary,) = model.build_summaries(parameters, columns, lookups.samples)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(summary)


def test_a_change_that_no_step_makes_is_seen_by_who_waits_for_it(graph):
    def build_logits(inputs, is_training):
        state = tf.get_variable("state", [], initializer=tf.ones_initializer(), trainable=False)
        with tf.control_dependencies([tf.assign(state, state + 1.0)]):
            tf.summary.scalar("state", state.read_value())
        return two_layers(inputs, is_training)

    model = trace(make_files(build_logits))
    variables = make_variables(model.training, model.tables, 1)
    parameters = {name: tf.convert_to_tensor(variable) for name, variable in variables.items()}
    (summary,) = model.build_summaries(parameters, [tf.constant(column) for column in BATCH])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert tf.Summary.FromString(session.run(summary)).value[0].simple_value == 2.0


def made_in_order(order, scale=1.0, summary=False):
    def build_logits(inputs, is_training):
        if summary:  # as of one worker alone
            tf.summary.scalar("mean", tf.reduce_mean(inputs[0]))
        total = tf.reduce_mean(inputs[0], axis=1, keepdims=True)
        for number in order:
            total += inputs[0] @ tf.Variable(tf.fill([4, NUM_CLASSES], float(number))) * (1.0 + number)
        return tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, x * scale), (0, total))[1]

    return trace(make_files(build_logits)).uses


def test_the_use_of_a_variable_tells_what_was_traced_from_another_graph_with_the_same_names():
    first = made_in_order([1, 2, 3])
    for same in (made_in_order([1, 2, 3]), made_in_order([1, 2, 3], 1 + 1e-7), made_in_order([1, 2, 3], summary=True)):
        assert same == first
    swapped, scaled = made_in_order([1, 3, 2]), made_in_order([1, 2, 3], 2.0)
    assert swapped == first | {"Variable_1": first["Variable_2"], "Variable_2": first["Variable_1"]}
    assert not set(scaled.values()) & set(first.values())


def test_what_a_lookup_table_or_a_text_has_is_a_part_of_the_use_of_what_it_leads_to(tmp_path):
    """Else workers whose files differ would train on each other's labels."""

    def uses_of(initializer, text=b"a"):
        def build_logits(inputs, is_training):
            found = tf.lookup.StaticHashTable(initializer(), -1).lookup(tf.fill([1], "a"))
            return dense("out", inputs[0] + tf.cast(found, tf.float32) + tf.cast(tf.equal(text, b"a"), tf.float32), 3)

        return trace(make_files(build_logits)).uses

    def of_values(words):
        return lambda: tf.lookup.KeyValueTensorInitializer([*words], tf.range(len(words)), tf.string, tf.int32)

    def of_file(name, words):
        (tmp_path / name).write_text("\n".join(words))
        line, number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
        return lambda: tf.lookup.TextFileInitializer(str(tmp_path / name), tf.string, line, tf.int64, number)

    for first, same, other in (
        (uses_of(of_values("abc")), uses_of(of_values("abc")), uses_of(of_values("cba"))),
        (uses_of(of_file("1", "abc")), uses_of(of_file("2", "abc")), uses_of(of_file("3", "cba"))),
        (uses_of(of_values("a")), uses_of(of_values("a")), uses_of(of_values("a"), b"b")),
    ):
        assert first == same
        assert first.keys() == other.keys()
        assert not set(first.values()) & set(other.values())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda step: 0.5 * tf.get_variable("rate", []),
            r"build_learning_rate\(\) creates rate: compute the rate from the step alone",
        ),
        (
            lambda step: tf.py_func(float, [step], tf.float64),
            "a Python function is called here, but a ps cannot run it: use TensorFlow's ops",
        ),
    ],
)
def test_a_learning_rate_is_a_function_of_the_step_alone(build, message):
    files = make_files(lambda x, is_training: x, build_learning_rate=build)
    with pytest.raises(UnusableError, match=rf"function\.py, line \d+: {message}"):
        trace(files)


def test_a_constant_is_large_if_it_has_more_bytes_than_the_limit():
    with tf.Graph().as_default():
        constants = [tf.constant(np.zeros(LARGE_BYTES + more, np.uint8)).op for more in (0, 1)]
    assert [*map(is_large, constants)] == [False, True]


def test_no_graph_has_a_large_constant_of_the_users_but_an_exported_one():
    large = np.random.default_rng(0).normal(size=[NUM_ROWS, 40_000]).astype(np.float32)
    renamed = np.broadcast_to(np.arange(NUM_ROWS)[::-1, np.newaxis], [NUM_ROWS, 30_000])

    def build_logits(inputs, is_training):
        found = tf.gather(large, inputs[1][:, 0])[:, :4]
        table = tf.get_variable("table", [NUM_ROWS, 4])
        found += tf.nn.embedding_lookup(table, tf.gather(renamed, inputs[1][:, 0])[:, 0])
        return dense("out", inputs[0] + found, NUM_CLASSES)

    files = make_files(build_logits)
    model, (expected, _, before, _) = trace(files), train_plainly(files)
    with tf.Graph().as_default() as graph, tf.Session() as session:
        tf.train.create_global_step()
        variables = make_variables(model.training)
        model.make_constants({})
        columns = [tf.constant(column) for column in BATCH]
        lookups = model.in_training.build_lookups(columns).ids["table"]
        ids = choose_rows("table", NUM_ROWS, lookups)
        parameters = {**variables, "table": Rows(ids, tf.gather(variables["table"], ids))}
        losses = [model.build_gradients(parameters, columns)[0] for _ in range(2)]
        losses.append(model.build_measures(variables, columns).loss)
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        for name, variable in variables.items():
            variable.load(before[name], session)
        np.testing.assert_allclose(session.run(losses), [expected] * 3, rtol=1e-6)
        np.testing.assert_array_equal(session.run(lookups), renamed[BATCH[1][:, 0], 0])
        assert len(tf.local_variables()) == 2
        assert graph.as_graph_def().ByteSize() < large.nbytes / 10
    with tf.Graph().as_default() as graph:
        model.build_serving(make_variables(model.test))
        num_bytes = large.nbytes + renamed.nbytes
        assert num_bytes < graph.as_graph_def().ByteSize() < 1.1 * num_bytes
