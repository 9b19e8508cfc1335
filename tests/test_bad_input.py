"""Whatever is wrong with flags, files or ports ends a task with status 2 and one line, and touches no file."""

import json
import socket
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmarks.testbed.processes import PROJECT, Process, poll_for
from runtime.launch.ports import choose_ports
from tests import forked, idx_files

(PORT,) = choose_ports(1)
WORKER = ["--job_name=worker", "--task_index=0", f"--worker_hosts=localhost:{PORT},localhost:1"]
# Nobody is there who could be told of the end.
RUN = f"""
import runpy
from runtime.cluster import agreement
agreement.TELLING_SECS = 0.0
runpy.run_path("{PROJECT}/distributed.py", run_name="__main__")
"""


def read_tree(folder):
    """Return every file's content by its path, but for the lock and the events, which are about this process."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path: path.read_bytes() for path in files if path.name != "chief.lock" and "events" not in path.parts}


@pytest.fixture
def assert_refused(tmp_path):
    """Check that the given flags are refused with a message, and that nothing is touched."""
    folder = tmp_path / "cwd"
    folder.mkdir()

    def assert_refused(flags, message, env=None):
        before = read_tree(folder)
        command = [sys.executable, "-c", RUN, *flags]
        process = Process(command, tmp_path / "output", env, folder, forked.Popen)
        try:  # a worker that is not refused goes on, and waits for a ps that does not exist
            poll_for(lambda: not process.is_running() or "waiting for ps" in process.output(), "end")
            assert process.status == 2, process.output()
        finally:
            process.kill()
        (line,) = [line for line in process.output().splitlines() if line.startswith("error: ")]
        assert message in line
        assert read_tree(folder) == before

    assert_refused.folder = folder
    return assert_refused


@pytest.mark.slow
@pytest.mark.promises("posix-folder", "in-graph-refused")
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--job_name=ps"], "--job_name (ps, worker or evaluator) and --task_index are required"),
        (["--task_index=0"], "--job_name (ps, worker or evaluator) and --task_index are required"),
        (["--job_name=chief", "--task_index=0"], "flag --job_name=chief: value should be one of <ps|worker|evaluator>"),
        (["--job_name=ps", "--task_index=-1"], "flag --task_index=-1: -1 is not a non-negative integer"),
        (["--job_name=ps", "--task_index=first"], "flag --task_index=first"),
        (["--job_name=ps", "--task_index=1"], "ps has no task 1: the index must be below 1"),
        (["--job_name=worker", "--task_index=2"], "worker has no task 2: the index must be below 2"),
        ([*WORKER, "--ps_hosts="], "no ps address is given"),
        ([*WORKER, "--worker_hosts="], "no worker address is given"),
        ([*WORKER, "--ps_hosts=host"], "ps address 'host' is not host:port"),
        ([*WORKER, "--ps_hosts=a:1,b"], "ps address 'b' is not host:port"),
        ([*WORKER, "--ps_hosts=:1"], "ps address ':1' is not host:port"),
        ([*WORKER, "--worker_hosts=c:0"], "worker address 'c:0' is not host:port"),
        ([*WORKER, "--worker_hosts=c:65536"], "worker address 'c:65536' is not host:port"),
        ([*WORKER, "--worker_hosts=c:x"], "worker address 'c:x' is not host:port"),
        ([*WORKER, "--ps_hosts=a:1,a:1"], "a:1 is listed more than once"),
        ([*WORKER, "--ps_hosts=localhost:1"], "localhost:1 is listed more than once"),
        ([*WORKER, "--sync_replicas", "False"], "unexpected argument 'False': flags are written --name=value"),
        ([*WORKER, "--sync_replicas=perhaps"], "flag --sync_replicas=perhaps: 'perhaps' is neither true nor false"),
        ([*WORKER, "--train_step=5"], "Unknown command line flag 'train_step'. Did you mean: train_steps ?"),
        ([*WORKER, "--stop_at_accuracy=0.9"], "it needs --eval_every_secs"),
        ([*WORKER, "--stop_at_accuracy=97"], "flag --stop_at_accuracy=97"),
        ([*WORKER, "--stop_at=0.9", "--eval_every_secs=1"], "it must be NAME:VALUE"),
        ([*WORKER, "--stop_at=auc:good", "--eval_every_secs=1"], "it must be NAME:VALUE"),
        (["--job_name=evaluator"], "the evaluator needs --train_dir"),
        ([*WORKER, "--export_dir=out[1]"], "--export_dir out[1] has one of the characters * ? [ ] \\ in its path"),
        ([*WORKER, "--stop_timeout_secs=0"], "flag --stop_timeout_secs=0"),
        ([*WORKER, "--train_dir=run[1]"], "--train_dir run[1] has one of the characters * ? [ ] \\ in its path"),
        (
            [*WORKER, "--train_dir=~/run"],
            "only a shell expands ~, and only at the start of a word: write $HOME",
        ),
        ([*WORKER, "--train_steps=0"], "flag --train_steps=0: 0 is not a positive integer"),
        ([*WORKER, "--train_steps=many"], "flag --train_steps=many"),
        ([*WORKER, "--train_steps=99999999999999999999"], "it must be at most 1000000000000000"),
        ([*WORKER, "--warmup_steps=9", "--partition_bytes=1000000000000001"], "it must be at most 1000000000000000"),
        ([*WORKER, "--startup_timeout_secs=nan"], "flag --startup_timeout_secs=nan: it must be a number"),
        ([*WORKER, "--stop_at_accuracy=nan", "--eval_every_secs=1"], "flag --stop_at_accuracy=nan: it must be a num"),
        (
            [*WORKER, "--stop_at=accuracy:nan", "--eval_every_secs=1"],
            "flag --stop_at=accuracy:nan: it must be NAME:VALUE",
        ),
        ([*WORKER, "--clip_norm=0"], "flag --clip_norm=0.0: nothing would be trained: omit it, or raise it"),
        ([*WORKER, "--batch_size=0"], "flag --batch_size=0"),
        ([*WORKER, "--hidden_units=0"], "flag --hidden_units=0"),
        ([*WORKER, "--learning_rate=0"], "flag --learning_rate=0.0: it must be a number above 0"),
        ([*WORKER, "--data_dir=", "--learning_rate=0"], "flag --learning_rate=0.0: it must be a number above 0 (see"),
        ([*WORKER, "--data_dir=", "--learning_rate=0"], "flag --data_dir=: it must name a folder;"),
        ([*WORKER, "--learning_rate=nan"], "flag --learning_rate=nan: it must be a number above 0"),
        ([*WORKER, "--learning_rate=inf"], "flag --learning_rate=inf: it must be a number above 0"),
        ([*WORKER, "--lr_schedule=cosine"], "flag --lr_schedule=cosine: value should be one of <constant|one_cycle>"),
        ([*WORKER, "--warmup_steps=-1"], "flag --warmup_steps=-1"),
        ([*WORKER, "--warmup_steps=9", "--train_steps=9"], "it must be below --train_steps"),
        (
            [*WORKER, "--optimizer=magic"],
            "flag --optimizer=magic: value should be one of <adam|adagrad|momentum|nesterov|sgd>",
        ),
        ([*WORKER, "--model=resnet"], "flag --model=resnet: value should be one of <mlp|cnn>"),
        ([*WORKER, "--replicas_to_aggregate=1"], "replicas_to_aggregate=1, sync_replicas=False: it needs --sync"),
        ([*WORKER, "--issync=1", "--replicas_to_aggregate=3"], "--replicas_to_aggregate is 3, expected at most 2"),
        ([*WORKER, "--issync=1", "--replicas_to_aggregate=0"], "flag --replicas_to_aggregate=0"),
        ([*WORKER, "--exchange_dtype=float16"], "flag --exchange_dtype=float16: value should be one of <float32|bfl"),
        ([*WORKER, "--sharding=random"], "flag --sharding=random: value should be one of <static|dynamic>"),
        ([*WORKER, "--local_steps=0"], "flag --local_steps=0"),
        ([*WORKER, "--replication=graph"], "flag --replication=graph: value should be one of <between_graph|in_graph>"),
        ([*WORKER, "--replication=in_graph", "--issync=1"], "omit --sync_replicas and --local_steps"),
        ([*WORKER, "--max_staleness=2", "--sync_replicas"], "never get ahead of each other: omit --max_staleness"),
        (
            [*WORKER, "--max_staleness=2", "--replication=in_graph"],
            "never get ahead of each other: omit --max_staleness",
        ),
        ([*WORKER, "--replication=in_graph", "--local_steps=2"], "omit --sync_replicas and --local_steps"),
        ([*WORKER, "--ps_strategy=random"], "flag --ps_strategy=random: value should be one of <round_robin|greedy>"),
        ([*WORKER, "--partition_bytes=0"], "flag --partition_bytes=0"),
        ([*WORKER, "--profile_steps=5:9"], "it needs --train_dir"),
        ([*WORKER, "--profile_steps=9:5", "--train_dir=t"], "it must be A:B, two global steps"),
        ([*WORKER, "--profile_steps=5", "--train_dir=t"], "it must be A:B, two global steps"),
        ([*WORKER, "--checkpoints=worker"], "flag --checkpoints=worker: value should be one of <ps|chief>"),
        ([*WORKER, "--gpus="], "flag --gpus=: it must be auto, none, or GPU numbers, such as 0,2"),
        ([*WORKER, "--gpus=0,0"], "flag --gpus=0,0: it must be auto, none, or GPU numbers, such as 0,2"),
        ([*WORKER, "--gpus=all"], "flag --gpus=all: it must be auto, none, or GPU numbers, such as 0,2"),
        ([*WORKER, "--gpus=999"], "GPUs on its host: there is no GPU 999"),
        ([*WORKER, "--seed=-1"], "flag --seed=-1"),
        ([*WORKER, "--seed=2147483648"], "flag --seed=2147483648"),
        ([*WORKER, "--save_checkpoint_secs=0"], "flag --save_checkpoint_secs=0"),
        ([*WORKER, "--startup_timeout_secs=0"], "flag --startup_timeout_secs=0"),
        ([*WORKER, "--recovery_timeout_secs=0"], "flag --recovery_timeout_secs=0"),
        ([*WORKER, "--log_every_secs=0"], "flag --log_every_secs=0"),
        ([*WORKER, "--train_dir=bad\udcff"], "--train_dir=bad\\udcff: it must be UTF-8"),
        (
            [*WORKER, "--user_dir=nowhere"],
            "/cwd/nowhere is not a folder: name a folder with model.py and mnist_input.py",
        ),
        (
            [*WORKER, "--user_dir="],
            "/cwd has no mnist_input.py and no model.py: name a folder with model.py and mnist_in",
        ),
        ([*WORKER, "--data_dir="], "flag --data_dir=: it must name a folder"),
        ([*WORKER, "--data_dir=/dev/null/data"], "/dev/null/data"),
        ([*WORKER, f"--data_dir={__file__}"], f"--data_dir {__file__} is a file, expected a folder"),
        (
            [*WORKER, "--data_dir=gs://bucket/data"],
            "--data_dir gs://bucket/data is not a folder: gs:// is not supported",
        ),
        (
            [*WORKER, "--train_dir=gs://bucket/run"],
            "--train_dir gs://bucket/run is not a folder: gs:// is not supported",
        ),
        ([*WORKER, "--ps_hosts=a..b:1"], "ps address 'a..b:1' is not host:port"),
        (
            [*WORKER, "--export_dir=/dev/null/export"],
            "--export_dir /dev/null/export cannot be written: Not a directory",
        ),
        ([*WORKER, "--train_dir=/dev/null/train"], "--train_dir /dev/null/train cannot be written: Not a directory"),
    ],
)
def test_an_unusable_flag_is_refused(assert_refused, flags, message):
    assert_refused(flags, message)


def test_an_unusable_tf_config_is_refused(assert_refused):
    assert_refused([], "TF_CONFIG is not of the form", {"TF_CONFIG": "not json"})


def test_an_unusable_model_dir_is_refused(assert_refused):
    cluster = {"cluster": {"ps": ["a:1"], "chief": ["b:1"]}, "task": {"type": "ps", "index": 0}, "model_dir": "~/run"}
    message = "model_dir in TF_CONFIG: flag --train_dir=~/run: only a shell expands ~"
    assert_refused([], message, {"TF_CONFIG": json.dumps(cluster)})


def test_a_file_of_flags_that_is_no_text_is_refused(assert_refused):
    (assert_refused.folder / "cluster.flags").write_bytes(b"# f\xfcr alle\n--seed=1\n")
    assert_refused([*WORKER, "--flagfile=cluster.flags"], "--flagfile: 'utf-8' codec can't decode byte 0xfc")


def test_an_unusable_data_file_is_refused(assert_refused):
    for split in ("train", "t10k"):
        idx_files.write(assert_refused.folder, split, np.zeros((2, 28, 28), np.uint8), np.array([0, 10], np.uint8))
    assert_refused([*WORKER, "--data_dir=."], "label 1 is 10, expected 0 to 9")


@pytest.mark.promises("checked-before-training")
def test_an_unusable_tfrecord_file_is_refused(assert_refused):
    (assert_refused.folder / "train-00000-of-00001.tfrecord").write_bytes(b"no record")
    message = "error: ./train-00000-of-00001.tfrecord is not a TFRecord file, has no record, or has a"
    assert_refused([*WORKER, "--data_dir=."], message)


def test_a_port_in_use_is_refused(assert_refused):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        flags = ["--job_name=ps", "--task_index=0", f"--ps_hosts=localhost:{port}"]
        assert_refused(flags, f"ps 0 cannot listen on port {port} of localhost:{port}: Address already in use")


@pytest.mark.promises("another-model")
def test_a_checkpoint_of_another_model_is_refused(assert_refused, black_and_white_dir):
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.create_global_step()
        tf.get_variable("mlp/hidden/weights", [784, 50])
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, str(assert_refused.folder / "model.ckpt"), global_step=5)
    flags = [*WORKER, "--optimizer=sgd", "--train_dir=.", f"--data_dir={black_and_white_dir}"]
    assert_refused(flags, "has mlp/hidden/weights of shape [784, 50], expected [784, 100]")
