import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from runtime import packing

PS_0, PS_1 = "/job:ps/task:0", "/job:ps/task:1"
MATRIX, VECTOR = np.float32([[0, 1], [2, 3], [4, 5]]), np.float32([6, 7, 8])


def get_variable(name, value, device):
    with tf.device(device):
        return tf.get_variable(name, value.shape, initializer=tf.constant_initializer(value))


@pytest.fixture
def run(local_servers, graph):
    """Run a graph on a cluster of two ps tasks."""
    servers = local_servers(2, 1)

    def run(fetches):
        with servers.worker_session(0, graph) as session:
            session.run(tf.global_variables_initializer())
            return session.run(fetches)

    return run


def test_each_ps_packs_what_it_holds_and_unpacks_what_it_gets(run):
    matrix, scalar = get_variable("matrix", MATRIX, PS_0), get_variable("scalar", np.float32(9), PS_1)
    vector = get_variable("vector", VECTOR, PS_0)
    packed = packing.Packing([matrix, scalar, vector])
    vectors = packed.read()
    assert [tensor.device for tensor in vectors] == [PS_0, PS_1]
    assert [values.tolist() for values in run(vectors)] == [list(range(9)), [9]]
    assert [values.tolist() for values in run(packed.pack(packed.split(vectors)))] == [list(range(9)), [9]]

    parts, variables = zip(*packed.unpack([10 * tensor for tensor in vectors]), strict=True)
    assert variables == (matrix, vector, scalar)
    assert [part.device for part in parts] == [PS_0, PS_0, PS_1]
    for found, expected in zip(run(parts), (10 * MATRIX, 10 * VECTOR, 90), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_parts_of_vectors_replace_the_variables_and_have_gradients(run):
    packed = packing.Packing([get_variable("matrix", MATRIX, PS_0), get_variable("vector", VECTOR, PS_0)])
    vectors = packed.read()
    with packed.replaced_by(packed.split(vectors)):
        product = tf.get_variable("matrix", [3, 2]) * tf.get_variable("vector", [3])[:, None]
    assert tf.trainable_variables() == tf.global_variables()
    assert len(tf.global_variables()) == 2, "no variable is made"
    (gradient,) = run(tf.gradients(tf.reduce_sum(product), vectors))
    assert gradient.tolist() == [6, 6, 7, 7, 8, 8, *MATRIX.sum(axis=1)]


def test_a_partitioned_variable_is_put_together(run):
    with tf.device(PS_0), tf.variable_scope("", partitioner=tf.fixed_size_partitioner(2)):
        (upper, lower) = tf.get_variable("matrix", [3, 2])
        packed = packing.Packing(tf.trainable_variables())
        with packed.replaced_by([10 * part for part in packed.split(packed.read())]):
            matrix = tf.get_variable("matrix", [3, 2])
    upper, lower, matrix = run([upper, lower, matrix])
    np.testing.assert_array_equal(matrix, 10 * np.concatenate([upper, lower]))
