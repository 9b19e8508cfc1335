"""Kinds of scripts for TensorFlow 1: a worker takes the steps that one plain session takes."""

import importlib
import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import distributed
import mnist_input
from runtime.model.files import Files
from tests.plain import PlainSession, build_training
from tests.ported import KINDS
from tests.test_towers import Client

pytest.importorskip("tf_keras")  # which tests/requirements.txt brings

NUM_EXAMPLES = 400
# The one draws at random in each step, the other has the model of a third: tests/clusters/test_ported.py trains them.
LEFT_OUT = {"word2vec", "tf_config"}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KINDS.keys() - LEFT_OUT))
def test_a_ported_script_takes_the_steps_of_one_plain_session(local_servers, set_flags, monkeypatch, mnist_dir, name):
    kind = KINDS[name]
    monkeypatch.setattr(tf.nn, "dropout", lambda units, keep_prob: units)  # which draws at random
    users = importlib.import_module(f"tests.ported.{kind.module}")
    data = users if hasattr(users, "load") else mnist_input
    train = data.load(mnist_dir, "train")
    examples = type(train)(*(column[:NUM_EXAMPLES] for column in train))
    more = [f"--{flag}={value}" for flag in ("clip_norm", "ema_decay") if (value := getattr(kind, flag)) is not None]
    set_flags("--batch_size=20", "--train_steps=100", *more)
    monkeypatch.setattr(distributed, "FILES", Files(users, data))
    servers = local_servers(1, 1)
    client = Client(servers.task("worker", 0), servers.connection("worker", 0), True, examples)
    # The name of a table is that of its only part.
    variables = {re.sub(r"/part_\d+", "", variable.op.name): variable for variable in client.variables}
    before = client.session.run(variables)
    numbers, _ = client.session.run([client.indices, client.updates.train_op])
    after = client.session.run(variables)
    with tf.Graph().as_default():
        plain = PlainSession(users, data, examples, is_training=True)
        updates, tested = build_training(kind, users, plain)
        plain.session.run(tf.global_variables_initializer())
        for variable in tf.global_variables():
            if variable.op.name in before:
                variable.load(before[variable.op.name], plain.session)
        for batch in numbers:
            plain.run(updates, [column[batch] for column in client.shard])
        expected = plain.session.run({variable.op.name: variable for variable in {*tested.values()}})
    assert len(numbers) == expected.pop("global_step", len(numbers))
    assert expected
    for of, value in expected.items():
        np.testing.assert_allclose(after[of], value, rtol=1e-4, atol=1e-6, err_msg=of)
