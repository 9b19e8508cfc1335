"""Scripts for TensorFlow 1: a cluster and one plain session train the same function equally well."""

import importlib
import itertools
import json
import shutil
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import mnist_input
from benchmarks.testbed.processes import PROJECT, Cluster, Process
from tests.plain import PlainSession, build_training
from tests.ported import KINDS

pytest.importorskip("tf_keras")  # which tests/requirements.txt brings


def write_files(kind, folder):
    """Write the two files of a user who has this kind."""
    shutil.copy(PROJECT / "mnist_input.py", folder)
    text = (PROJECT / "tests" / "ported" / f"{kind.module}.py").read_text()
    for name in ("model.py", *(["mnist_input.py"] if "def load" in text else [])):
        (folder / name).write_text(text)


def train_on_a_cluster(kind, folder, flags, project):
    """Train with one ps and two workers; return the result, and what they said."""
    num_workers = 2
    flags = [*flags, f"--user_dir={folder}", f"--train_dir={folder / 'train'}", f"--train_steps={kind.num_updates}"]
    flags += ["--log_every_secs=0.1"] * bool(kind.writes)  # the first summaries come after that time
    flags += ["--issync", f"--batch_size={kind.batch_size // num_workers}"]
    if kind.has_tf_config:
        cluster = Cluster(folder, 1, num_workers)
        spec = {"ps": cluster.ps_hosts.split(","), "worker": cluster.worker_hosts.split(",")}
        with cluster:
            for name in cluster.names:
                job_name, index = name.split()
                task = {"type": job_name, "index": int(index)}
                cluster.start_with(name, *flags, env={"TF_CONFIG": json.dumps({"cluster": spec, "task": task})})
            assert set(cluster.wait().values()) == {0}
            output = "".join(task.output() for task in cluster.tasks.values())
    else:
        run = Process([sys.executable, project / "runtime" / "launch", "prepare", *flags], folder / "output")
        assert run.wait() == 0, run.output()
        output = run.output()
    return json.loads((folder / "train" / "result.json").read_text()), output


def batches_of(columns, size, num_batches=None):
    """Yield batches: so many in a random order, or all in theirs."""
    order, random = np.arange(len(columns[0])), np.random.default_rng(0)
    if num_batches:
        order = np.concatenate([random.permutation(order) for _ in range(1 + num_batches * size // len(order))])
    for start in range(0, num_batches * size if num_batches else len(order), size):
        yield [column[order[start : start + size]] for column in columns]


def train_alone(kind, users, data, data_dir):
    """Train in one plain session with as many updates; return the loss and the metrics of the test."""
    train, test = data.load(data_dir, "train"), data.load(data_dir, "t10k")
    with tf.Graph().as_default():
        plain = PlainSession(users, data, train, is_training=True)
        updates, tested = build_training(kind, users, plain)
        plain.session.run(tf.global_variables_initializer())
        for batch in batches_of(train, kind.batch_size, kind.num_updates):
            plain.run(updates, batch)
        values = plain.session.run(tested)
    with tf.Graph().as_default():
        plain = PlainSession(users, data, test, is_training=False)
        metrics = users.build_metrics(plain.outputs, plain.labels) if hasattr(users, "build_metrics") else {}
        pairs = {name: metric for name, metric in metrics.items() if isinstance(metric, tuple)}
        means = {"loss": plain.loss, **{name: metric for name, metric in metrics.items() if name not in pairs}}
        plain.session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        for variable in tf.global_variables():
            variable.load(values[variable.op.name], plain.session)
        found = [plain.run([means, pairs], batch)[0] for batch in batches_of(test, 500)]
        values = plain.session.run({name: value for name, (value, _) in pairs.items()})
    return {name: np.mean([of_batch[name] for of_batch in found]) for name in means} | values


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.num_updates])
def test_a_ported_script_trains_as_well_as_one_plain_session(tmp_path, mnist_dir, name):
    kind = KINDS[name]
    write_files(kind, tmp_path)
    project = PROJECT
    users = importlib.import_module(f"tests.ported.{kind.module}")
    data = users if hasattr(users, "load") else mnist_input
    if hasattr(users, "LoggerHook"):
        project = tmp_path  # of this user's own
        (project / "runtime").symlink_to(PROJECT / "runtime")
        hooks = "hooks=[*training.hooks, FILES.model.LoggerHook(graph.updates.loss)]"
        text = (PROJECT / "distributed.py").read_text()
        (project / "distributed.py").write_text(text.replace("hooks=training.hooks", hooks))
    result, output = train_on_a_cluster(kind, tmp_path, [f"--data_dir={mnist_dir}"], project)
    alone = train_alone(kind, users, data, mnist_dir)
    assert result[f"test_{kind.figure}"] == pytest.approx(alone[kind.figure], abs=kind.tolerance), (result, alone)
    assert kind.bounds[0] <= alone[kind.figure] <= kind.bounds[1]
    assert kind.says in output
    paths = map(str, (tmp_path / "train").rglob("events.out.tfevents.*"))
    events = itertools.chain.from_iterable(map(tf.train.summary_iterator, paths))
    assert {kind.writes} - {""} <= {value.tag for event in events for value in event.summary.value}
