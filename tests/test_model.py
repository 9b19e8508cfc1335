import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import model


@pytest.mark.parametrize(
    ("kind", "hidden_units", "num_parameters"),
    [
        ("mlp", 100, 784 * 100 + 100 + 100 * 10 + 10),
        ("mlp", 7, 784 * 7 + 7 + 7 * 10 + 10),
        ("cnn", 100, (25 * 16 + 16) + (25 * 16 * 32 + 32) + (7 * 7 * 32 * 100 + 100) + (100 * 10 + 10)),
    ],
)
def test_shapes_and_number_of_parameters(graph, set_flags, kind, hidden_units, num_parameters):
    set_flags(f"--model={kind}", f"--hidden_units={hidden_units}")
    logits = model.build_logits(tf.placeholder(tf.float32, [None, 784]), is_training=True)
    assert logits.shape.as_list() == [None, 10]
    assert logits.dtype == tf.float32
    assert sum(variable.shape.num_elements() for variable in tf.trainable_variables()) == num_parameters
    layers = [*(["conv1", "conv2"] if kind == "cnn" else []), "hidden", "logits"]
    names = [f"{kind}/{layer}/{part}" for layer in layers for part in ("weights", "biases")]
    assert [variable.op.name for variable in tf.global_variables()] == names, "round robin follows this order"


@pytest.mark.parametrize("is_training", [True, False])
def test_mlp_is_the_formula(graph, set_flags, is_training):
    set_flags("--hidden_units=20")
    tf.set_random_seed(0)
    images = np.random.default_rng(0).random((5, 784), np.float32)
    logits = model.build_logits(tf.constant(images), is_training)
    parameters = {variable.op.name: variable for variable in tf.global_variables()}
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        values, actual = session.run([parameters, logits])
    hidden = np.maximum(0, images @ values["mlp/hidden/weights"] + values["mlp/hidden/biases"])
    expected = hidden @ values["mlp/logits/weights"] + values["mlp/logits/biases"]
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_loss_and_accuracy_are_averages_over_the_batch(graph):
    # Probabilities 0.8 of the right class, and 0.1 of it.
    logits = np.log(np.float32([[0.8] + 9 * [0.2 / 9], [0.1, 0.82] + 8 * [0.01]]))
    labels = tf.constant([0, 0])
    with tf.Session() as session:
        loss, metrics = session.run([model.build_loss(logits, labels), model.build_metrics(logits, labels)])
    assert loss == pytest.approx(-(np.log(0.8) + np.log(0.1)) / 2, rel=1e-5)
    assert metrics == {"accuracy": 0.5}


def test_loss_is_stable_for_large_logits(graph):
    with tf.Session() as session:
        loss = session.run(model.build_loss(tf.constant([[1000.0] + 9 * [-1000.0]]), tf.constant([1])))
    assert loss == 2000.0
