"""What may change when a run is resumed: each row of the table in docs/recovery.md."""

import re
import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmarks.testbed.processes import PROJECT, Cluster
from tests import idx_files

COMMON = ["--ps_strategy=greedy", "--train_steps=40"]
PS_TASKS = "more or fewer ps tasks, `--partition_bytes`, `--checkpoints`"
UPDATES = "`--sync_replicas`, `--replication`, `--exchange_dtype`"
BATCHES = "`--batch_size`, `--learning_rate`, `--lr_schedule`, `--seed`"
WORKERS = "more or fewer workers"
DYNAMIC = "`--sharding=dynamic` after `static`"
MODEL = "`--hidden_units`, `--model`"
# Rows of the table, the numbers of ps tasks and workers, the flags, and what refuses them.
CASES = [
    ((WORKERS, PS_TASKS), 2, 3, ["--partition_bytes=100000", "--checkpoints=chief"], ""),
    ((UPDATES,), 1, 2, ["--sync_replicas", "--exchange_dtype=bfloat16"], ""),
    ((UPDATES,), 1, 2, ["--replication=in_graph"], ""),
    (
        (BATCHES, "`--local_steps` above 1"),
        1,
        2,
        ["--batch_size=50", "--learning_rate=0.01", "--lr_schedule=one_cycle", "--seed=7", "--local_steps=4"],
        "",
    ),
    (("`--optimizer=sgd`",), 1, 2, ["--optimizer=sgd"], ""),
    (("another optimizer",), 1, 2, ["--optimizer=momentum"], "has no variable mlp/hidden/weights/Momentum"),
    ((DYNAMIC,), 1, 2, ["--sharding=dynamic"], "has no variable sharding/runs_dealt_out"),
    ((MODEL,), 1, 2, ["--hidden_units=50"], "has mlp/hidden/weights of shape [784, 100], expected [784, 50]"),
    ((MODEL,), 1, 2, ["--model=cnn"], "has no variable cnn/conv1/"),
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory, black_and_white_dir):
    """The train directory of a run of 20 steps, with one ps and two workers."""
    folder = tmp_path_factory.mktemp("finished")
    flags = ["--ps_strategy=greedy", "--train_steps=20", f"--train_dir={folder}", f"--data_dir={black_and_white_dir}"]
    with Cluster(folder, 1, 2, *flags) as cluster:
        cluster.start()
        assert set(cluster.wait().values()) == {0}
    return folder


@pytest.mark.promises("what-may-change")
@pytest.mark.parametrize(("rows", "num_ps", "num_workers", "flags", "refusal"), CASES)
def test_resuming_with_something_else_works_or_says_why_not(
    tmp_path, finished, black_and_white_dir, rows, num_ps, num_workers, flags, refusal
):
    shutil.copytree(finished, tmp_path / "train")
    folders = [f"--train_dir={tmp_path / 'train'}", f"--data_dir={black_and_white_dir}"]
    flags = [*COMMON, *flags, *folders]
    with Cluster(tmp_path, num_ps, num_workers, *flags) as cluster:
        if refusal:
            assert cluster.start("worker 0").wait() == 2
            assert refusal in cluster["worker 0"].output()
            return
        cluster.start()
        assert set(cluster.wait().values()) == {0}
        assert re.search(r"restored \S+/model\.ckpt-2\d, at global step 2\d\n", cluster["worker 0"].output())


@pytest.mark.promises("same-tests")
def test_other_test_examples_are_refused(tmp_path, finished):
    shutil.copytree(finished, tmp_path / "train")
    for split in ("train", "t10k"):
        images, labels = np.zeros([200, 28, 28], np.uint8), np.arange(200, dtype=np.uint8) % 2
        idx_files.write(tmp_path, split, images, labels)
    with Cluster(tmp_path, 1, 2, *COMMON, f"--train_dir={tmp_path / 'train'}", f"--data_dir={tmp_path}") as cluster:
        assert cluster.start("worker 0").wait() == 2
        told = "error: the test examples have changed, and the model may have been trained on them: give the"
        assert told in cluster["worker 0"].output()


@pytest.mark.promises("what-may-change")
def test_the_table_of_the_documents_has_these_rows():
    text = (PROJECT / "docs" / "recovery.md").read_text()
    table = text[text.index("## Resuming with something else") :]
    verdicts = dict(re.findall(r"^\| ([^|]+?) \| (works|is rejected)", table, re.MULTILINE))
    assert verdicts == {row: "is rejected" if refusal else "works" for rows, *_, refusal in CASES for row in rows}


def test_a_metric_that_fails_in_the_last_test_is_final_and_the_model_is_kept_to_be_tested_anew(
    tmp_path, black_and_white_dir
):
    for name in ("model.py", "mnist_input.py"):
        shutil.copy(PROJECT / name, tmp_path)
    text = (tmp_path / "model.py").read_text()
    share = "tf.train.get_global_step() / tf.cast(tf.equal(tf.train.get_global_step(), 0), tf.int64)"
    metrics = f'    return {{"late": tf.cast(tf.check_numerics({share}, "too late"), tf.float32), '
    (tmp_path / "model.py").write_text(text.replace("    return {", metrics))
    train_dir = tmp_path / "train"
    flags = [f"--train_dir={train_dir}", f"--data_dir={black_and_white_dir}", f"--user_dir={tmp_path}"]
    with Cluster(tmp_path, 1, 1, *flags, "--train_steps=4") as cluster:
        cluster.start()
        assert cluster["worker 0"].wait() == 2
        place = rf"{tmp_path}/model\.py, line \d+: InvalidArgumentError: too late"
        kept = f"; the ps tasks keep the model, and {train_dir} has that of global step 4: restart this task, or all"
        line = (
            rf"error: late of the test examples 0 to \d+ cannot be computed: {place}.*{kept} tasks, to test it again$"
        )
        assert re.search(line, cluster["worker 0"].output(), re.MULTILINE)
        (tmp_path / "model.py").write_text(text)
        cluster.start("worker 0")
        assert set(cluster.wait().values()) == {0}
        assert "test accuracy" in cluster["worker 0"].output()


def test_only_a_new_model_needs_the_checkpoint_that_init_from_checkpoint_begins_with(
    tmp_path, finished, black_and_white_dir
):
    foreign = shutil.copytree(finished, tmp_path / "foreign")
    user_dir = tmp_path / "mine"
    user_dir.mkdir()
    shutil.copy(PROJECT / "mnist_input.py", user_dir)
    call = f'    tf.train.init_from_checkpoint({str(foreign)!r}, {{"mlp/": "mlp/"}})\n'
    text = (
        (PROJECT / "model.py")
        .read_text()
        .replace('        return _build_dense("logits"', '        logits = _build_dense("logits"')
    )
    (user_dir / "model.py").write_text(
        text.replace("\n\n\ndef build_loss", f"\n{call}    return logits\n\n\ndef build_loss")
    )
    flags = [f"--train_dir={tmp_path / 'train'}", f"--data_dir={black_and_white_dir}", f"--user_dir={user_dir}"]
    flags += ["--learning_rate=1e-12", "--optimizer=sgd"]
    for train_steps in (3, 6):
        with Cluster(tmp_path, 1, 2, *flags, f"--train_steps={train_steps}") as cluster:
            cluster.start()
            assert set(cluster.wait().values()) == {0}
        weights = [
            tf.train.load_variable(str(folder), "mlp/hidden/weights") for folder in (finished, tmp_path / "train")
        ]
        np.testing.assert_allclose(*weights, rtol=0, atol=1e-9)  # a rate of 0 is refused
        shutil.rmtree(foreign, ignore_errors=True)
