"""Promises of the README, each kept by a cluster of real processes."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import numpy as np
import psutil
import pytest

import mnist_input
from benchmarks.testbed.processes import PROJECT, Cluster, poll_for
from runtime.cluster.status import ask
from runtime.records.events import read_run
from runtime.records.folder import RunFolder
from runtime.saving.checkpoints import find_last_step
from tests.full_disk import NEEDS_PRIVATE_MOUNTS, full_disk
from tests.test_predict import draw, photograph
from tests.test_trace import Trace

FINISHED = r"finished at global step (\d+), after (\d+) local steps?"
LOSS = r"\d\S*"  # such as 0.0312, 12.3456, or 5.96e-08
LAST_LINE = (
    rf"test accuracy (\d\.\d{{4}}) \(test loss ({LOSS})\) after (\d+) global steps in (\d+\.\d) s, (\d+) examples/s\n$"
)
PROGRESS = rf"global step (\d+)/\d+, local step \d+, loss {LOSS}, \d+ examples/s"


def local_steps(cluster):
    """Return how many steps each worker took, after the end."""
    workers = [task for name, task in cluster.tasks.items() if name.startswith("worker")]
    return [int(re.search(FINISHED, worker.output())[2]) for worker in workers]


def steps_logged(task):
    return [int(step) for step in re.findall(PROGRESS, task.output())]


def assert_all_end(cluster):
    """Check that every task, the ps tasks too, ends by itself and with status 0, and that the chief evaluates."""
    assert cluster.wait() == dict.fromkeys(cluster.names, 0)
    assert re.search(LAST_LINE, cluster["worker 0"].output())


@pytest.mark.parametrize(
    "steps",
    [
        ["ps 0", "worker 1", "worker 0"],
        ["worker 0", "worker 1", "ps 0"],
        ["worker 1", "until worker 1 waits for the ps", "ps 0", "until worker 1 waits for the chief", "worker 0"],
    ],
)
def test_any_start_order_trains_and_every_process_ends(tmp_path, black_and_white_dir, steps):
    flags = ["--train_steps=600", f"--data_dir={black_and_white_dir}", f"--train_dir={tmp_path}"]
    with Cluster(tmp_path, 1, 2, *flags) as cluster:
        for step in steps:
            if step in cluster.names:
                cluster.start(step)
            elif step.endswith("the ps"):
                cluster["worker 1"].wait_for_output(rf"waiting for ps 0 at {cluster.ps_hosts} \(connection refused\)")
            else:
                cluster["worker 1"].wait_for_output(
                    rf"waiting for the chief, worker 0 at {cluster.addresses[1]}, to initialise or restore the model"
                )
        assert_all_end(cluster)
        assert "test accuracy 1.0000" in cluster["worker 0"].output(), "black and white are easily told apart"


def assert_the_ps_keep_the_model_until_it_is_written(train_dir, export_dir):
    """Check that a chief that dies while it writes would find the model again."""
    events = [json.loads(line) for line in (train_dir / "events" / "1" / "ps-0.jsonl").read_text().splitlines()]
    (left_at,) = [event["unix_secs"] for event in events if event.get("text") == "evaluated"]
    for path in (train_dir / "result.json", export_dir / "1" / "saved_model.pb"):
        assert path.stat().st_mtime < left_at


def assert_what_was_measured_is_served(train_dir, export_dir, data_dir):
    """Check that programs that know nothing of this one get from the exported model what the chief measured."""
    result = json.loads((train_dir / "result.json").read_text())
    served = subprocess.run(
        [sys.executable, "tests/serve.py", str(export_dir / "1"), data_dir], cwd=PROJECT, capture_output=True, text=True
    )
    assert served.returncode == 0, served.stderr
    accuracy = result["test_accuracy"]
    expected = {"accuracy": accuracy, "shape": [10000, 10], "sums_to_1": True, "lite_is_equal": True}
    assert json.loads(served.stdout.splitlines()[-1]) == expected


def assert_pictures_are_classified(folder, export_dir, data_dir):
    """Check that predict.py reads digits that Pillow has drawn, and handwritten ones on photographed sheets."""
    for digit in (0, 2, 3, 5, 7):
        draw(digit, corner=(5 * digit, 20)).save(folder / f"{digit}.png")
    predict = [sys.executable, str(PROJECT / "examples" / "digits" / "predict.py"), "--model", str(export_dir)]
    images, labels = mnist_input.load(data_dir, "t10k")
    for number in range(20):
        photograph(images[number].reshape(28, 28), np.random.default_rng(number)).save(
            folder / f"{labels[number]}-{number}.jpg"
        )
    pictures = sorted(path.name for path in (*folder.glob("*.png"), *folder.glob("*.jpg")))
    process = subprocess.run([*predict, *pictures], cwd=folder, capture_output=True, text=True)
    found = re.findall(r"^(\d)(?:-\d+)?\.(png|jpg): (?:perhaps )?(\d) \(\d+\.\d %\)$", process.stdout, re.MULTILINE)
    right = [kind for drawn, kind, digit in found if drawn == digit]
    assert right.count("png") >= 4, process.stderr
    assert right.count("jpg") >= 16, process.stdout


@pytest.mark.promises("litert")
@pytest.mark.slow
def test_asynchronous_workers_share_the_steps_and_the_model_can_be_served(tmp_path, mnist_dir):
    train_dir, export_dir = tmp_path / "train", tmp_path / "export"
    flags = ["--train_steps=4000", f"--data_dir={mnist_dir}", f"--train_dir={train_dir}", f"--export_dir={export_dir}"]
    with Cluster(tmp_path, 1, 2, *flags) as cluster:
        cluster.start("ps 0", "worker 1")
        cluster["worker 1"].wait_for_output("waiting for the chief")  # so that no worker can do it all alone
        cluster.start("worker 0")
        assert_all_end(cluster)
        shares = local_steps(cluster)
        accuracy, _, global_step, *_ = re.search(LAST_LINE, cluster["worker 0"].output()).groups()
        assert sum(shares) == int(global_step), "the parameters have every step that was taken, and no other"
        assert 4000 <= int(global_step) <= 4001, "at most one step per other worker after the last"
        assert min(shares) > 0
        assert float(accuracy) > 0.95
    assert "taken for" in (train_dir / "report.html").read_text(), "the worst mistakes"
    assert_the_ps_keep_the_model_until_it_is_written(train_dir, export_dir)
    assert_what_was_measured_is_served(train_dir, export_dir, mnist_dir)
    assert_pictures_are_classified(tmp_path, export_dir, mnist_dir)


@pytest.mark.promises("all-test-examples", "fields-of-result")
def test_synchronous_training_takes_every_step_with_every_worker(tmp_path, mnist_dir):
    train_dir = tmp_path / "train"
    flags = ["--sync_replicas", "--train_steps=300", f"--train_dir={train_dir}", f"--data_dir={mnist_dir}"]
    with Cluster(tmp_path, 2, 3, *flags) as cluster:
        cluster.start()
        assert_all_end(cluster)
        assert sum(local_steps(cluster)) >= 300 * 3, "each update has three gradients"
        for ps in ("ps 0", "ps 1"):
            for worker in range(3):
                told = (
                    rf"{ps}: worker {worker}: (trained|evaluated)"  # the chief may have done both since the last look
                )
                assert re.search(told, cluster[ps].output())
        # Each parameter three times, for Adam: the biases and the global step, and the weights.
        chief_output = cluster["worker 0"].output()
        assert f"ps 0 holds 7 variables, {4 * 3 * (100 + 10) + 8} bytes" in chief_output
        assert f"ps 1 holds 6 variables, {4 * 3 * (784 * 100 + 100 * 10)} bytes" in chief_output
        accuracy, loss, global_step, secs, examples_per_sec = re.search(
            LAST_LINE, cluster["worker 0"].output()
        ).groups()
        assert int(global_step) == 300, "synchronous training ends exactly"

        result = json.loads((train_dir / "result.json").read_text())
        assert result == {
            "test_accuracy": pytest.approx(float(accuracy), abs=0.5e-4),
            "test_loss": pytest.approx(float(loss), abs=0.5e-4),
            "global_step": 300,
            "train_secs": pytest.approx(float(secs), abs=0.05),
            "examples_per_sec": pytest.approx(300 * 3 * 100 / result["train_secs"], rel=0.01),
            "model": "mlp",
            "hidden_units": 100,
            "num_classes": 10,
            "first_label": 0,
            "optimizer": "adam",
            "sync_replicas": True,
            "max_staleness": None,
            "local_steps": 1,
            "replication": "between_graph",
            "sharding": "static",
            "batch_size": 100,
            "num_ps": 2,
            "num_workers": 3,
            "reached": None,
            "user_dir": str(PROJECT),
            "tensorflow_version": result["tensorflow_version"],
        }
        assert float(examples_per_sec) == pytest.approx(result["examples_per_sec"], abs=0.5)
        shards = [name for name in os.listdir(train_dir) if name.startswith("model.ckpt-300.data")]
        assert len(shards) == 2, "each ps saves what it holds"


def test_the_cnn_trains(tmp_path, black_and_white_dir):
    flags = ["--model=cnn", "--train_steps=60", "--optimizer=momentum", "--learning_rate=0.01"]
    flags += [f"--data_dir={black_and_white_dir}", f"--train_dir={tmp_path}"]
    with Cluster(tmp_path, 2, 2, *flags) as cluster:
        cluster.start()
        assert_all_end(cluster)
        assert "test accuracy 1.0000" in cluster["worker 0"].output()


@pytest.mark.parametrize(
    ("flags", "train_steps", "latest"),
    [([], 10000, 10000 + 16), (["--sync_replicas", "--learning_rate=0.002"], 3000, 3000)],
    ids=["asynchronous", "synchronous"],
)
def test_local_steps_train_and_end_at_the_last(tmp_path, mnist_dir, flags, train_steps, latest):
    flags = [*flags, "--local_steps=16", f"--train_steps={train_steps}"]
    with Cluster(tmp_path, 2, 2, *flags, f"--data_dir={mnist_dir}") as cluster:
        cluster.start()
        assert_all_end(cluster)
        accuracy, _, global_step, *_ = re.search(LAST_LINE, cluster["worker 0"].output()).groups()
        assert train_steps <= int(global_step) <= latest
        num_local_steps = sum(local_steps(cluster))
        assert num_local_steps >= 2 * 3000 if "--sync_replicas" in flags else num_local_steps == int(global_step)
        assert float(accuracy) > 0.96


def test_profiled_steps_of_all_workers_become_one_trace(tmp_path, black_and_white_dir):
    flags = [f"--train_dir={tmp_path}", f"--data_dir={black_and_white_dir}", "--profile_steps=20:44", "--sync_replicas"]
    with Cluster(tmp_path, 1, 2, *flags, "--train_steps=80") as cluster:
        cluster.start()
        assert_all_end(cluster)
    steps = {path.relative_to(tmp_path / "profile") for path in tmp_path.glob("profile/*/*")}
    assert steps == {
        pathlib.Path(f"worker-{worker}/step-{step}.pb") for worker in range(2) for step in (24, 32, 40, 48)
    }
    trace = Trace.read(tmp_path / "trace.json")
    assert list(trace.tasks.values()) == ["ps 0", "worker 0", "worker 1"]
    assert any("MatMul" in span["name"] for span in trace.spans)
    ways = {(trace.tasks[sent["pid"]], trace.tasks[received["pid"]]) for sent, received in trace.arrows}
    assert ways == {("ps 0", "worker 0"), ("worker 0", "ps 0"), ("ps 0", "worker 1"), ("worker 1", "ps 0")}


@pytest.mark.promises("lost-ps-without-train-dir")
def test_a_ps_lost_without_any_checkpoint_is_reported_to_lose_the_model(tmp_path, black_and_white_dir):
    with Cluster(tmp_path, 1, 1, "--train_steps=1000000", f"--data_dir={black_and_white_dir}") as cluster:
        cluster.start()
        cluster["worker 0"].wait_for_output(PROGRESS)
        cluster["ps 0"].kill()
        cluster.start("ps 0")
        lost = "there is no checkpoint, so the model is lost: training starts over"
        cluster["worker 0"].wait_for_output(rf"{lost}\n(?s:.*){PROGRESS}")
        cluster["worker 0"].kill()
        cluster["ps 0"].kill()


@pytest.mark.promises("stop-in-step")
def test_a_signal_stops_a_worker_after_its_step_and_the_chief_saves(tmp_path, black_and_white_dir):
    flags = ["--train_steps=1000000", "--save_checkpoint_secs=600", "--log_every_secs=0.1"]
    with Cluster(tmp_path, 1, 2, *flags, f"--data_dir={black_and_white_dir}", f"--train_dir={tmp_path}") as cluster:
        cluster.start()
        for worker, number, how in (
            ("worker 1", signal.SIGINT, "stopped"),
            ("worker 0", signal.SIGTERM, r"stopped and saved global step (\d+)"),
        ):
            cluster[worker].wait_for_output(PROGRESS)
            for _ in range(2):  # as who signals a whole group, and a leader that passes it on
                cluster[worker].send(number)
            assert cluster[worker].wait() == 128 + number
            end = f"^{worker} {how} because of {number.name}; restart it to resume"
            assert (told := re.search(end, cluster[worker].output(), re.MULTILINE))
        saved = re.search(r"model\.ckpt-(\d+)", (tmp_path / "checkpoint").read_text())
        assert int(told[1]) == int(saved[1]) >= max(steps_logged(cluster["worker 0"])) > 0
        cluster["ps 0"].kill()


@pytest.mark.promises("stop-saves")
@pytest.mark.parametrize("flags", [[], ["--sync_replicas"]], ids=["asynchronous", "synchronous"])
def test_sigterm_to_all_tasks_at_once_saves_the_last_step(tmp_path, black_and_white_dir, flags):
    common = ["--log_every_secs=0.1", f"--data_dir={black_and_white_dir}", f"--train_dir={tmp_path}", *flags]
    with Cluster(tmp_path, 2, 3, *common, "--train_steps=1000000", "--save_checkpoint_secs=600") as cluster:
        cluster.start()
        for worker in range(3):
            # Its first runs take long on a busy machine, longer than the chief waits for it.
            cluster[f"worker {worker}"].wait_for_output(r"global step \d{3,}/")
        for task in cluster.tasks.values():
            task.send(signal.SIGTERM)
        assert cluster.wait() == dict.fromkeys(cluster.names, 128 + signal.SIGTERM)
        saved = int(re.search(r"model\.ckpt-(\d+)", (tmp_path / "checkpoint").read_text())[1])
        assert saved >= max(step for worker in range(3) for step in steps_logged(cluster[f"worker {worker}"]))
        cluster.flags[-2:] = [f"--train_steps={saved + 10}"]
        cluster.start()
        assert_all_end(cluster)
        restored = rf"restored {tmp_path}/model\.ckpt-{saved}, at global step (\d+)"
        # A worker that was busy for too long leaves its last run to the ps, which may apply it while the chief saves.
        assert int(cluster["worker 0"].wait_for_output(restored)[1]) >= saved


def test_tasks_that_nobody_reads_train_on_stop_in_order_and_end(tmp_path, black_and_white_dir):
    """What they write to is full from the first progress line on."""
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDWR | os.O_NONBLOCK)
    into_pipe = ["sh", "-c", 'exec "$@" >"$0" 2>&1', str(tmp_path / "pipe")]
    flags = ["--train_steps=1000000", "--batch_size=500", "--log_every_secs=0.1", "--save_checkpoint_secs=600"]
    data = [f"--data_dir={black_and_white_dir}", f"--train_dir={tmp_path}"]

    def step():
        lines = read_run(RunFolder(tmp_path))
        return max((line["global_step"] for line in lines if line["event"] == "progress"), default=0)

    with Cluster(tmp_path, 1, 1, *flags, *data) as cluster:
        for name in cluster.names:
            cluster.start_with(name, *cluster.role(name), *cluster.flags, before=into_pipe)
        poll_for(step, "progress")
        for size in (4096, 1):
            with contextlib.suppress(BlockingIOError):
                while os.write(pipe, bytes(size)):
                    pass
        full_at = step()
        poll_for(lambda: step() > full_at + 50, "progress of a worker that nobody reads")
        last_step = step()
        for name in ("worker 0", "ps 0"):
            cluster[name].send(signal.SIGTERM)
            assert cluster[name].wait() == 128 + signal.SIGTERM
        saved = int(re.search(r"model\.ckpt-(\d+)", (tmp_path / "checkpoint").read_text())[1])
        assert saved >= last_step
        cluster.flags.append(f"--train_steps={saved + 50}")
        cluster.start()
        assert_all_end(cluster)
    os.close(pipe)


@NEEDS_PRIVATE_MOUNTS
def test_a_ps_that_is_process_1_of_a_container_hears_sigterm(tmp_path):
    with Cluster(tmp_path, 1, 1) as cluster:
        container = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
        cluster.start_with("ps 0", *cluster.role("ps 0"), *cluster.flags, before=container)
        poll_for(lambda: not ask(cluster.ps_hosts).reason, "server of ps 0")
        (task,) = psutil.Process(cluster["ps 0"].pid).children()
        task.send_signal(signal.SIGTERM)
        assert cluster["ps 0"].wait() == 128 + signal.SIGTERM


def test_ctrl_c_ends_a_synchronous_worker_that_waits_for_the_others(tmp_path, black_and_white_dir):
    with Cluster(tmp_path, 1, 2, "--sync_replicas", f"--data_dir={black_and_white_dir}") as cluster:
        cluster.start("ps 0", "worker 0")
        cluster["worker 0"].wait_for_output(f"waiting for worker 1 at {cluster.addresses[2]}")
        for name in ("worker 0", "ps 0"):
            cluster[name].send(signal.SIGINT)
            assert cluster[name].wait() == 128 + signal.SIGINT
        assert "\nworker 0 stopped because of SIGINT; nothing is saved: restart it" in cluster["worker 0"].output()
        assert "stopping at once" not in cluster["worker 0"].output()


@pytest.mark.promises("folder-of-ps")
@NEEDS_PRIVATE_MOUNTS
def test_a_train_dir_that_the_ps_does_not_share_ends_all_tasks_before_training_with_the_same_line(
    tmp_path, black_and_white_dir
):
    train_dir = tmp_path / "train"
    train_dir.mkdir()
    with Cluster(tmp_path, 1, 2, f"--train_dir={train_dir}", f"--data_dir={black_and_white_dir}") as cluster:
        cluster.start_with("ps 0", *cluster.role("ps 0"), *cluster.flags, before=full_disk(train_dir))
        cluster["ps 0"].wait_for_output("serving")
        cluster.start("worker 1").wait_for_output("waiting for the chief")
        cluster.start_with("worker 0", *cluster.role("worker 0"), *cluster.flags, "--startup_timeout_secs=5")
        chief = cluster["worker 0"]
        assert chief.wait() == 2
        assert f"waiting for ps 0 at {cluster.ps_hosts} to see {train_dir}" in chief.output()
        line = f"ps 0 at {cluster.ps_hosts} to see {train_dir}/chief.lock (NotFoundError: "
        (line,) = re.findall(rf"error: (worker 0 waited \d+ s for {re.escape(line)}.*)", chief.output())
        assert ": give all tasks the same shared folder as --train_dir" in line
        assert "or give --checkpoints=chief" in line
        assert "local step" not in chief.output()
        for name in ("ps 0", "worker 1"):
            assert cluster[name].wait() == 2
            assert f"error: worker 0 has ended: {line}" in cluster[name].output()


@pytest.mark.promises("checkpoints-by-chief")
@NEEDS_PRIVATE_MOUNTS
def test_hosts_that_share_no_folder_save_and_restore_through_the_chief(tmp_path, black_and_white_dir):
    train_dir = tmp_path / "train"
    train_dir.mkdir()
    flags = [f"--train_dir={train_dir}", f"--data_dir={black_and_white_dir}", "--save_checkpoint_secs=1"]
    with Cluster(tmp_path, 2, 1, *flags, "--train_steps=1000000", "--checkpoints=chief") as cluster:
        for ps in ("ps 0", "ps 1"):
            cluster.start_with(ps, *cluster.role(ps), *cluster.flags, before=full_disk(train_dir))
        chief = cluster.start("worker 0")
        poll_for(lambda: find_last_step(RunFolder(train_dir)), "checkpoint of a step")
        cluster["ps 1"].kill()
        cluster.start_with("ps 1", *cluster.role("ps 1"), *cluster.flags, before=full_disk(train_dir))
        chief.wait_for_output(rf"restored {train_dir}/model\.ckpt-[1-9]\d*, (?s:.*){PROGRESS}")
        for task in cluster.tasks.values():
            task.send(signal.SIGTERM)
        assert set(cluster.wait().values()) == {128 + signal.SIGTERM}
        saved = int(re.search(r"model\.ckpt-(\d+)", (train_dir / "checkpoint").read_text())[1])
        # On hosts that share the folder, the ps tasks go on from there.
        cluster.flags[-2:] = [f"--train_steps={saved + 10}", "--checkpoints=ps"]
        cluster.start()
        assert_all_end(cluster)
        restored = re.search(
            rf"restored {train_dir}/model\.ckpt-{saved}, at global step (\d+)", cluster["worker 0"].output()
        )
        assert saved <= int(restored[1]) <= saved + 8, "steps of the chief's last run may arrive while it saves"


@pytest.mark.promises("unwritable-model-stays")
def test_a_failed_export_costs_neither_result_nor_model_and_a_worker_that_comes_after_the_end_ends_well(
    tmp_path, black_and_white_dir
):
    export_dir = tmp_path / "export"
    flags = ["--train_steps=50", f"--data_dir={black_and_white_dir}", f"--train_dir={tmp_path}"]
    with Cluster(tmp_path, 1, 2, *flags, f"--export_dir={export_dir}") as cluster:
        cluster.start_with("worker 0", *cluster.role("worker 0"), *cluster.flags, "--recovery_timeout_secs=1")
        cluster["worker 0"].wait_for_output("waiting for ps 0")
        export_dir.rmdir()
        cluster.start("ps 0")
        assert cluster["worker 0"].wait() == 2
        output = cluster["worker 0"].output()
        assert f"worker 1 at {cluster.addresses[2]} never took part" in output
        failure = f"(the model could not be exported to {export_dir}: No such file or directory)"
        line = f"error: worker 0 waited 1 s for the result to be saved {failure}: create the folder again, free d"
        assert output.index("test accuracy ") < output.index(line)
        assert (tmp_path / "result.json").exists()
        assert cluster.start("worker 0").wait() == cluster["ps 0"].wait() == 0
        assert "the ps tasks still hold the model: keeping it" in cluster["worker 0"].output()
        assert os.listdir(export_dir) == ["1"]
        assert cluster.start("worker 1").wait() == 0
        assert "worker 1: nothing is left to do: " in cluster["worker 1"].output()


def test_a_worker_that_is_refused_while_synchronous_ones_wait_for_it_ends_all_with_its_line(
    tmp_path, black_and_white_dir
):
    with Cluster(tmp_path, 2, 2, "--sync_replicas", f"--data_dir={black_and_white_dir}") as cluster:
        cluster.start("ps 0", "ps 1", "worker 0")
        cluster["worker 0"].wait_for_output(r"waiting for worker 1 at \S+ \(connection refused\)")
        cluster.start_with("worker 1", *cluster.role("worker 1"), *cluster.flags, "--batch_size=50")
        assert cluster.wait() == dict.fromkeys(cluster.names, 2)
        for task in cluster.tasks.values():
            refused = r"error: .*worker 1 has --batch_size=50, but the model on the ps tasks is trained with"
            assert re.search(refused, task.output())


@pytest.mark.promises("same-seed", "exact-place")
def test_one_synchronous_worker_reads_the_same_batches_whether_or_not_it_stops(tmp_path, mnist_dir):
    losses = []
    for name, stops in (("undisturbed", (40,)), ("resumed", (20, 40))):
        folder = tmp_path / name
        folder.mkdir()
        for stop in stops:
            flags = ["--sync_replicas", "--optimizer=sgd", f"--train_dir={folder}", f"--data_dir={mnist_dir}"]
            with Cluster(folder, 1, 1, *flags, f"--train_steps={stop}") as cluster:
                cluster.start()
                assert_all_end(cluster)
        losses.append(json.loads((folder / "result.json").read_text())["test_loss"])
    assert losses[0] == losses[1], "the same seed gives the same result, to the last digit"


def test_a_loss_that_is_not_a_number_ends_every_worker_and_leaves_the_good_checkpoint(tmp_path, black_and_white_dir):
    run = tmp_path / "run"
    flags = ["--learning_rate=1e38", f"--data_dir={black_and_white_dir}", f"--train_dir={run}"]
    with Cluster(tmp_path, 1, 2, *flags) as cluster:
        cluster.start()
        for worker in (cluster["worker 0"], cluster["worker 1"]):
            assert worker.wait() == 2
            assert re.search(r"^error: .*the loss is not finite.*: lower --learning_rate", worker.output(), re.M)
        cluster["ps 0"].kill()
    assert 'model_checkpoint_path: "model.ckpt-0"' in (run / "checkpoint").read_text()
    assert not (run / "result.json").exists()


@pytest.mark.promises("loss-not-finite")
@pytest.mark.parametrize(
    ("folder", "flags"),
    [
        ("--train_dir", ["--train_steps=8"]),
        ("--export_dir", ["--train_steps=1", "--sync_replicas", "--local_steps=2"]),  # the last update alone
    ],
)
def test_a_model_that_diverges_in_its_last_steps_is_neither_saved_nor_exported_nor_reported(
    tmp_path, black_and_white_dir, folder, flags
):
    kept = tmp_path / "kept"
    flags = [*flags, "--optimizer=sgd", "--learning_rate=1e30", f"--data_dir={black_and_white_dir}", f"{folder}={kept}"]
    with Cluster(tmp_path, 2, 1, *flags) as cluster:
        cluster.start()
        assert cluster["worker 0"].wait() == 2
        output = cluster["worker 0"].output()
        assert re.search(r"^error: .*\bfinite( at global step \d+)?: .*lower --learning_rate", output, re.MULTILINE)
        assert not re.search("^test accuracy", output, re.MULTILINE)
        for ps in ("ps 0", "ps 1"):
            cluster[ps].kill()
    assert not (kept / "result.json").exists()
    if folder == "--train_dir":
        assert {path.name for path in kept.glob("model.ckpt-*.index")} <= {"model.ckpt-0.index", "model.ckpt-1.index"}
    else:
        assert os.listdir(kept) == []


@pytest.mark.promises("stop-timeout")
def test_a_stop_waits_for_a_long_save_and_says_so(tmp_path, black_and_white_dir):
    """The ps that writes the index of the last checkpoint writes into a pipe, and waits until somebody reads it."""
    index = tmp_path / "train" / "model.ckpt-8.index"
    index.parent.mkdir()
    os.mkfifo(index)
    flags = ["--train_steps=8", f"--data_dir={black_and_white_dir}", f"--train_dir={index.parent}"]
    unsaved = "worker 0 has not saved the steps after global step 0 yet"

    def stop(*more):
        with Cluster(tmp_path, 1, 1, *flags, *more) as cluster:
            cluster.start()
            poll_for(lambda: list(index.parent.glob("model.ckpt-8.data-*")), "data of the checkpoint")
            for task in cluster.tasks.values():
                task.send(signal.SIGTERM)
            yield cluster["worker 0"]
            assert cluster.wait() == dict.fromkeys(cluster.names, 128 + signal.SIGTERM)
            yield cluster["worker 0"]

    chief, _ = stop("--stop_timeout_secs=2")
    assert f"\nerror: {unsaved}, and ends now: raise --stop_timeout_secs\n" in chief.output()
    (index.parent / "model.ckpt-8_temp" / "left").touch()
    for path in index.parent.glob("model.ckpt-8.data-*"):
        path.unlink()
    (tmp_path / "worker-0.log").unlink()
    stopping = stop("--stop_timeout_secs=200")
    chief = next(stopping)
    assert not (index.parent / "model.ckpt-8_temp" / "left").exists(), "the chief clears away what was cut off"
    chief.wait_for_output(rf"{unsaved}: \d+ s left\n")
    index.read_bytes()
    next(stopping)
    assert "\nworker 0 stopped and saved global step 8 because of SIGTERM; restart it" in chief.output()
    assert not list(stopping)


@pytest.mark.promises("second-signal")
def test_a_second_signal_stops_a_blocked_worker_at_once(tmp_path, black_and_white_dir):
    with Cluster(tmp_path, 1, 1, "--train_steps=1000000", f"--data_dir={black_and_white_dir}") as cluster:
        cluster.start()
        chief = cluster["worker 0"]
        chief.wait_for_output(PROGRESS)
        cluster["ps 0"].send(signal.SIGSTOP)
        chief.wait_for_output(r"lost ps 0 at .* \(no answer\)")  # by now the chief's step waits for it
        chief.send(signal.SIGTERM)
        chief.wait_for_output("SIGTERM: stopping cleanly, or at once at a second signal")
        chief.send(signal.SIGTERM)
        assert chief.wait() == 128 + signal.SIGTERM
        cluster["ps 0"].kill()


@pytest.mark.promises("startup-timeout")
def test_a_ps_that_never_comes_is_named(tmp_path, black_and_white_dir):
    with Cluster(tmp_path, 2, 1, f"--data_dir={black_and_white_dir}", "--startup_timeout_secs=1") as cluster:
        worker = cluster.start("worker 0")
        assert worker.wait() == 1
        missing = ", ".join(f"ps {i} at {cluster.addresses[i]} (connection refused)" for i in range(2))
        assert re.search(rf"error: worker 0 waited \d+ s for {re.escape(missing)}: start the missing", worker.output())


def test_tf_config_describes_the_cluster_and_proxies_and_options_of_grpc_do_not_matter(tmp_path, black_and_white_dir):
    with Cluster(tmp_path, 1, 1) as cluster:
        jobs = {"ps": [cluster.ps_hosts], "worker": [cluster.worker_hosts]}
        proxies = dict.fromkeys(("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY"), "http://127.0.0.1:9")
        for name in cluster.names:
            job_name, index = name.split()
            config = {"cluster": jobs, "task": {"type": job_name, "index": int(index)}}
            env = {
                **proxies,
                "TF_CONFIG": json.dumps(config),
                "TF_GRPC_DEFAULT_OPTIONS": "grpc.keepalive_time_ms=20000",
            }
            cluster.start_with(name, "--train_steps=20", f"--data_dir={black_and_white_dir}", env=env)
        assert_all_end(cluster)
