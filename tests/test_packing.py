import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from runtime.model.variables import Lookups
from runtime.process.errors import UnusableError
from runtime.updates.exchange import Exchange
from runtime.updates.packing import Packing, split_vector

PS_0, PS_1 = "/job:ps/task:0", "/job:ps/task:1"
NO_LOOKUPS = Lookups({}, [])
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
    packing = Packing({"m": matrix, "s": scalar, "v": vector})
    vectors = packing.read(*packing.select([NO_LOOKUPS]))
    assert [tensor.device for tensor in vectors] == [PS_0, PS_1]
    assert [values.tolist() for values in run(vectors)] == [list(range(9)), [9]]
    assert [values.tolist() for values in run(packing.pack(list(packing.unpack(vectors).values())))] == [
        list(range(9)),
        [9],
    ]

    assert packing.variables == {PS_0: [matrix, vector], PS_1: [scalar]}
    parts = split_vector(10 * vectors[0], [matrix, vector])
    for part, expected in zip(run(parts), (10 * MATRIX, 10 * VECTOR), strict=True):
        np.testing.assert_array_equal(part, expected)


def test_a_ps_that_holds_the_global_step_alone_packs_nothing(run):
    with tf.device(PS_1):
        tf.train.create_global_step()
    packing = Packing({"matrix": get_variable("matrix", MATRIX, PS_0)})
    vectors = packing.read(*packing.select([NO_LOOKUPS]))
    assert [tensor.device for tensor in vectors] == [PS_0, PS_1]
    assert [values.tolist() for values in run(vectors)] == [list(range(6)), []]


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
@pytest.mark.parametrize("count", [0, 1, 255, 256, 65535, 65536, 2**24 - 1, 2**40])
def test_a_count_travels_with_a_gradient_and_bfloat16_has_room_for_it(run, count, dtype):
    with tf.device("/job:worker/task:0"):
        gradient, num_steps = tf.constant([1.5, -2.0], dtype), tf.constant(count, tf.int64)
        exchange = Exchange([gradient], num_steps, tf.zeros([]), None)
    vector, received = run(exchange.receive(0, PS_1, gradient))
    assert (vector.tolist(), received) == ([1.5, -2.0], count)


def test_whole_parameters_by_name_have_gradients_by_vector(run):
    packing = Packing({"matrix": get_variable("a", MATRIX, PS_0), "vector": get_variable("b", VECTOR, PS_0)})
    vectors = packing.read(*packing.select([NO_LOOKUPS]))
    parameters = packing.unpack(vectors)
    product = parameters["matrix"] * parameters["vector"][:, None]
    (gradient,) = run(tf.gradients(tf.reduce_sum(product), vectors))
    assert gradient.tolist() == [6, 6, 7, 7, 8, 8, *MATRIX.sum(axis=1)]


def test_a_partitioned_variable_is_put_together(run):
    device_setter = tf.train.replica_device_setter(ps_tasks=2)
    with tf.device(device_setter), tf.variable_scope("", partitioner=tf.fixed_size_partitioner(2)):
        partitioned = tf.get_variable("matrix", [3, 2])
    packing = Packing({"matrix": partitioned})
    vectors = packing.read(*packing.select([NO_LOOKUPS]))
    assert len(vectors) == 2, "its slices lie on two ps tasks"
    whole, matrix = run([partitioned.as_tensor(), packing.unpack(vectors)["matrix"]])
    np.testing.assert_array_equal(matrix, whole)


def test_more_parameters_on_a_ps_than_one_message_takes_are_refused(graph):
    with pytest.raises(UnusableError, match=r"have 2147483648 bytes, .* use at least 2 ps tasks"):
        Packing({name: tf.get_variable(name, [2**28]) for name in ("v", "w")})
    Packing({name: tf.get_variable(name, [2**28 - number]) for number, name in enumerate(("x", "y"))})
