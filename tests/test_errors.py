import pytest
import tensorflow.compat.v1 as tf

from runtime.process import errors

TRACEBACK = (
    "Graph execution error:\n\nDetected at node 'save/SaveV2' defined at (most recent call last):\n"
    "    File \"distributed.py\", line 329, in <module>\nNode: 'save/SaveV2'\n"
)


@pytest.mark.parametrize(
    "message",
    [
        "disk full",
        "disk full\nAdditional GRPC error information",
        TRACEBACK + "disk full\n\t [[{{node save/SaveV2}}]]",
        TRACEBACK + TRACEBACK + "From /job:ps/replica:0/task:0:\ndisk full\n\t [[{{node save/SaveV2}}]]",
        TRACEBACK
        + "=====================\nRESOURCE_EXHAUSTED: From /job:worker/replica:0/task:0:\ndisk full\n\t [[save]]",
        "Graph execution error:\n\ndisk full\n",
        "Error in user-defined function passed to MapDataset:7 transformation with iterator: Reduce::Map: disk full",
        TRACEBACK + "2 root error(s) found.\n  disk full\n\t [[{{node save/SaveV2}}]]",
    ],
)
def test_the_reason_is_found_among_the_lines_of_a_message(message):
    assert errors.reason(tf.errors.UnknownError(None, None, message)) == "UnknownError: disk full"


def test_a_real_error_of_a_graph_is_told_in_one_line(graph):
    unknown = tf.io.read_file("/no/such/file")
    with tf.Session() as session, pytest.raises(tf.errors.NotFoundError) as error:
        session.run(unknown)
    assert errors.reason(error.value) == "NotFoundError: /no/such/file; No such file or directory"


@pytest.mark.parametrize(
    ("name", "told"), [("model.ckpt-5.tempstate123", ""), ("checkpoint.tmp0a1b2c", "/train/checkpoint; ")]
)
def test_the_random_part_of_the_name_of_a_file_that_is_half_written_is_left_out(name, told):
    """Else the same failure would be a new one each time."""
    error = tf.errors.PermissionDeniedError(None, None, f"/train/{name}; Operation not permitted")
    assert errors.reason(error) == f"PermissionDeniedError: {told}Operation not permitted"
