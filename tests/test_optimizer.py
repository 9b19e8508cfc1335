"""An optimizer as a function: what people write beside one plain session, and what it makes."""

import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from runtime.model.files import ScopedOptimizers
from runtime.process import phases
from runtime.process.errors import UnusableError
from runtime.updates.optimizer import Optimizer

NUM_COPIES, NUM_RUNS, RATE = 3, 4, 0.1
SHAPES = {"wide/w": [3, 2], "deep/b": [2]}
GRADIENTS = np.random.default_rng(0).normal(size=(NUM_COPIES * NUM_RUNS, 8)).astype(np.float32)


class Own(tf.train.Optimizer):
    """An optimizer of a user, all of which is in `apply_gradients()`."""

    def __init__(self, rate):
        super().__init__(False, type(self).__name__)
        self.rate = rate


class WithVariables(Own):
    """Momentum; the values with which its state begins are tensors."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        ops = [tf.Variable(tf.zeros([]), trainable=False, name="count").assign_add(1.0)]
        for gradient, variable in grads_and_vars:
            moment = tf.Variable(tf.zeros(variable.shape), trainable=False, name="moment")
            new = 0.9 * moment + gradient
            ops += [moment.assign(new), variable.assign_sub(self.rate * new)]
        return tf.group(*ops)


class WithGetVariable(Own):
    """As BERT's: the names of its state follow from those of the parameters."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        ops = []
        for gradient, variable in grads_and_vars:
            whole = re.match(r"^(.*):\d+$", variable.name).group(1)
            zeros = tf.zeros_initializer()
            m, v = (
                tf.get_variable(f"{whole}/adam_{n}", variable.shape.as_list(), tf.float32, zeros, trainable=False)
                for n in "mv"
            )
            next_m, next_v = 0.9 * m + 0.1 * gradient, 0.99 * v + 0.01 * tf.square(gradient)
            update = next_m / (tf.sqrt(next_v) + 1e-6) + 0.01 * variable
            ops += [variable.assign(variable - self.rate * update), m.assign(next_m), v.assign(next_v)]
        return tf.group(*ops)


class Accumulating(Own):
    """Applies the mean of every three gradients."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        count = tf.get_variable("count", [], tf.int32, tf.zeros_initializer(), trainable=False)
        sums = [tf.Variable(tf.zeros(variable.shape), trainable=False, name="sum") for _, variable in grads_and_vars]
        adds = [of_one.assign_add(pair[0]) for of_one, pair in zip(sums, grads_and_vars, strict=True)]
        optimizer = tf.train.AdamOptimizer(self.rate)

        def apply():
            means = [(of_one / 3.0, variable) for of_one, (_, variable) in zip(sums, grads_and_vars, strict=True)]
            with tf.control_dependencies([optimizer.apply_gradients(means)]):
                return tf.group(*(of_one.assign(tf.zeros_like(of_one)) for of_one in sums))

        with tf.control_dependencies([*adds, count.assign_add(1)]):
            return tf.cond(tf.equal(count % 3, 0), apply, tf.no_op)


class Skipping(Own):
    """Skips what is large, as a loss scale skips what is not finite."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        is_small = tf.linalg.global_norm([gradient for gradient, _ in grads_and_vars]) < 2.5
        optimizer = tf.train.MomentumOptimizer(self.rate, 0.9)
        return tf.cond(is_small, lambda: optimizer.apply_gradients(grads_and_vars), tf.no_op)


class Looking(Own):
    """Slow weights, which begin with the parameters (Zhang et al. 2019, arXiv:1907.08610)."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        fast = tf.train.GradientDescentOptimizer(self.rate).apply_gradients(grads_and_vars)
        ops = []
        for _, variable in grads_and_vars:
            slow = tf.Variable(variable.initialized_value(), trainable=False, name=f"{variable.op.name}/slow")
            with tf.control_dependencies([fast]):
                new = slow + 0.5 * (variable.read_value() - slow)
                ops += [slow.assign(new), variable.assign(new)]
        return tf.group(*ops)


class ByName(Own):
    """One optimizer for what is wide, and another one, whose rate decays, for all else."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        decayed = tf.maximum(tf.train.exponential_decay(self.rate, tf.train.get_global_step(), 2, 0.5), 0.01)
        wide = [pair for pair in grads_and_vars if pair[1].op.name.startswith("wide")]
        deep = [pair for pair in grads_and_vars if not pair[1].op.name.startswith("wide")]
        ftrl, adam = tf.train.FtrlOptimizer(self.rate), tf.train.AdamOptimizer(decayed)
        return tf.group(ftrl.apply_gradients(wide), adam.apply_gradients(deep))


KINDS = [WithVariables, WithGetVariable, Accumulating, Skipping, Looking, ByName, tf.train.RMSPropOptimizer]


def make_variables():
    return {
        name: tf.get_variable(name, shape, initializer=tf.random_normal_initializer(seed=1))
        for name, shape in SHAPES.items()
    }


def split(gradients):
    return [tf.reshape(gradients[:6], [3, 2]), gradients[6:]]


def train_plainly(kind):
    """Return the variables, by name, of one plain session."""
    with tf.Graph().as_default(), tf.Session() as session:
        step, fed, variables = tf.train.create_global_step(), tf.placeholder(tf.float32, [8]), make_variables()
        for variable in variables.values():
            variable.initialized_value = lambda variable=variable: variable.initial_value
        tf.enable_control_flow_v2()  # an optimizer inside of a branch cannot make its slots in one of version 1
        update = kind(RATE).apply_gradients(list(zip(split(fed), variables.values(), strict=True)))
        tf.disable_control_flow_v2()
        session.run(tf.global_variables_initializer())
        for number, gradients in enumerate(GRADIENTS):
            step.load(number, session)
            session.run(update, {fed: gradients})
        return session.run({variable.op.name: variable for variable in tf.global_variables() if variable is not step})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_local", [False, True])
def test_copies_of_an_optimizer_do_together_what_one_session_does(graph, kind, is_local):
    fed, first_step = tf.placeholder(tf.float32, [NUM_COPIES, 8]), tf.placeholder(tf.int64, [])
    made = []

    def make(rate):
        made.append(kind(rate))
        return made[-1]

    variables = make_variables()
    trained = variables
    if is_local:
        keys = [tf.GraphKeys.LOCAL_VARIABLES]
        with tf.name_scope("copies"):
            trained = {
                name: tf.Variable(tf.zeros(v.shape), name=name, collections=keys) for name, v in variables.items()
            }
    build_value = (lambda name: variables[name].read_value()) if is_local else None
    optimizer = Optimizer(make, trained, build_value=build_value)
    updates = []
    for number in range(NUM_COPIES):
        with tf.control_dependencies(updates):
            gradients = split(tf.identity(fed[number]))

        def apply(gradients=gradients, number=number):
            return optimizer.apply(gradients, tf.constant(RATE), first_step + number)

        updates = [tf.cond(gradients[0][0, 0] < 100, apply, tf.no_op)]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(tf.local_variables_initializer())
        if is_local:
            session.run([copy.assign(variables[name]) for name, copy in trained.items()])
        for run in range(NUM_RUNS):
            feeds = {fed: GRADIENTS[run * NUM_COPIES :][:NUM_COPIES], first_step: run * NUM_COPIES}
            session.run(updates, feeds)
        kept = tf.local_variables() if is_local else tf.global_variables()
        found = session.run({re.sub(r"^copies(_1)?/", "", variable.op.name): variable for variable in kept})
    expected = train_plainly(kind)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    assert len(made) == 1
    assert is_local or len(tf.trainable_variables()) == len(SHAPES)


def test_the_slots_of_a_slice_are_saved_as_slices(graph, tmp_path):
    parts = tf.get_variable("w", [4, 2], partitioner=tf.fixed_size_partitioner(2))
    Optimizer(tf.train.AdagradOptimizer, {part.op.name: part for part in parts})
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        path = tf.train.Saver().save(session, str(tmp_path / "model.ckpt"))
    assert tf.train.list_variables(path) == [("w", [4, 2]), ("w/Adagrad", [4, 2])]


def test_the_gradients_of_rows_change_these_alone(graph):
    table = tf.get_variable("table", [5, 2], initializer=tf.zeros_initializer())
    optimizer = Optimizer(tf.train.GradientDescentOptimizer, {"table": table}, num_sparse=1)
    rows = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([1, 3]))
    update = optimizer.apply([rows], tf.constant(0.5), tf.constant(0, tf.int64))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(update)
        np.testing.assert_array_equal(session.run(table)[:, 0], [0, -0.5, 0, -0.5, 0])


class Falling(Own):
    """Its rate falls at some steps."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        rate = tf.train.piecewise_constant(tf.train.get_global_step(), [5, 11], [0.2, 0.1, 0.02])
        return tf.train.GradientDescentOptimizer(rate * self.rate).apply_gradients(grads_and_vars)


class Forgetful(Own):
    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        pass


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (Forgetful, "TypeError: .*'None'.*"),
        (
            lambda _: tf.train.AdamOptimizer(tf.keras.optimizers.schedules.ExponentialDecay(0.1, 9, 0.9)),
            r"TypeError: .* \(call a schedule with the step, such as tf\.train\.get_global_step\(\)\)",
        ),
    ],
)
def test_what_goes_wrong_when_an_optimizer_is_used_has_its_place(graph, make, told):
    with pytest.raises(UnusableError, match=rf"^model\.py, line 7: build_optimizer\(\): {told}; correct model\.py$"):
        Optimizer(
            lambda rate: ScopedOptimizers({"": make(rate)}, "model.py, line 7: build_optimizer()"),
            {"w": tf.get_variable("w", [2])},
        )


class OfPython(Own):
    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        return tf.group(*(variable.assign_sub(tf.py_func(abs, [g], tf.float32)) for g, variable in grads_and_vars))


class Decaying(Own):
    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        for _, variable in grads_and_vars:
            tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, variable.assign_sub(0.1 * variable))
        return tf.group(*(variable.assign_sub(gradient) for gradient, variable in grads_and_vars))


class Late(Own):
    """Looks at the step that its update has made."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        update = tf.train.GradientDescentOptimizer(self.rate).apply_gradients(grads_and_vars)
        with tf.control_dependencies([update]):
            is_due = tf.equal(tf.train.get_global_step() % 5, 0)
        return tf.group(*(tf.assign(v, tf.where(is_due, tf.zeros_like(v), v)) for _, v in grads_and_vars))


@pytest.mark.parametrize(
    ("own", "told"),
    [
        (Late, r"reads the global step after an update, but before it is incremented: read it before, and add 1"),
        (Decaying, r"has an update that nothing runs: return it"),
        (
            lambda rate: tf.train.GradientDescentOptimizer("0.05"),
            "gets a string as a number, such as its learning rate",
        ),
        (OfPython, "a Python function is called here, but a ps cannot run it: use TensorFlow's ops"),
    ],
)
def test_an_optimizer_that_no_ps_can_run_is_refused(graph, own, told):
    with pytest.raises(UnusableError, match=told):
        Optimizer(own, {"w": tf.get_variable("w", [2])})


def test_an_optimizer_whose_ops_are_all_of_tensorflow_is_told_with_the_place_of_its_function(graph, monkeypatch):
    monkeypatch.setattr(phases, "OTHERS", (*phases.OTHERS, __file__))
    optimizers = ScopedOptimizers(
        {"": tf.train.GradientDescentOptimizer("0.05")}, "model.py, line 7: build_optimizer()"
    )
    with pytest.raises(UnusableError, match=r"^model\.py, line 7: build_optimizer\(\) gets a string as a number"):
        Optimizer(lambda rate: optimizers, {"w": tf.get_variable("w", [2])})


def test_an_optimizer_that_computes_over_the_model_is_refused_where_each_ps_has_a_part_of_it(graph):
    """A norm in a branch, too."""
    variables = make_variables()
    Optimizer(Skipping, variables)
    Optimizer(Accumulating, variables, is_of_part=True)  # element by element
    Optimizer(Falling, variables, is_of_part=True)  # over the boundaries of a schedule alone
    with pytest.raises(UnusableError, match=r"such as a norm, .*: use one ps, --local_steps or, to clip, --clip_norm"):
        Optimizer(Skipping, variables, is_of_part=True)
