"""What workers must agree on, on real servers."""

import pytest
import tensorflow.compat.v1 as tf

from runtime.cluster.notes import Agreement
from runtime.errors import UnusableError

SETTINGS = {"optimizer": "adam", "learning_rate": 0.001, "partition_bytes": None}


def check(servers, job_name, index, settings):
    """Compare a task's settings with the published ones; the chief publishes its own."""
    with tf.Graph().as_default() as graph:
        agreement = Agreement(servers.task(job_name, index), settings)
    with servers.connection(job_name, index).session(graph) as session:
        agreement.check(session)


def test_before_the_chief_has_published_everybody_agrees(local_servers):
    servers = local_servers(2, 2)
    check(servers, "worker", 1, SETTINGS)


def test_who_differs_from_the_chief_names_the_flag_and_both_values(local_servers):
    servers = local_servers(2, 2)
    check(servers, "worker", 0, SETTINGS)
    for worker in range(2):
        check(servers, "worker", worker, SETTINGS)
    with pytest.raises(UnusableError) as error:
        check(servers, "worker", 1, {**SETTINGS, "optimizer": "sgd"})
    assert str(error.value) == (
        "worker 1 has --optimizer=sgd, but the model on the ps tasks is trained with --optimizer=adam: give all workers"
        " the same, or end the ps tasks and start them again"
    )


def test_a_chief_that_differs_from_the_living_model_is_refused(local_servers):
    servers = local_servers(1, 1)
    check(servers, "worker", 0, SETTINGS)
    with pytest.raises(UnusableError, match=r"the model on the ps tasks is trained with --learning_rate=0\.001"):
        check(servers, "worker", 0, {**SETTINGS, "learning_rate": 0.01})


def test_other_data_may_be_the_same_in_another_order(local_servers):
    servers = local_servers(1, 2)
    check(servers, "worker", 0, {"data_dir": "(9 examples, CRC-32 00000001)"})
    with pytest.raises(UnusableError, match=r"all workers the same examples in the same order \(sort the files, seed"):
        check(servers, "worker", 1, {"data_dir": "(9 examples, CRC-32 00000002)"})
