"""Evaluation while the workers train: by the chief, which may end training, and by an evaluator."""

import json
import re

import pytest

from benchmarks.testbed.processes import Cluster, poll_for

EVALUATION = r"test accuracy (\d\.\d{4}) \(test loss \S+\) at global step (\d+)"


def entries(folder, task):
    lines = [line for path in sorted(folder.glob(f"events/*/{task}.jsonl")) for line in path.read_text().splitlines()]
    return [entry for entry in map(json.loads, lines) if entry["event"] == "evaluated"]


@pytest.mark.promises("stop-at-accuracy")
@pytest.mark.parametrize("mode", [[], ["--sync_replicas", "--local_steps=4"]], ids=["asynchronous", "synchronous"])
def test_an_evaluation_that_is_good_enough_ends_training(tmp_path, black_and_white_dir, mode):
    flags = [*mode, "--train_steps=100000000", "--eval_every_secs=0.5", "--stop_at_accuracy=0.99"]
    flags += [f"--train_dir={tmp_path}", f"--data_dir={black_and_white_dir}"]
    with Cluster(tmp_path, 1, 2, *flags) as cluster:
        cluster.start("ps 0", "worker 1")
        cluster["worker 1"].wait_for_output("waiting for the chief")  # which may have a model that is good in no time
        cluster.start("worker 0")
        assert cluster.wait() == dict.fromkeys(cluster.names, 0)
        reached = re.findall(EVALUATION, cluster["worker 0"].output())[-1]
        assert float(reached[0]) >= 0.99
        assert [entry["global_step"] for entry in entries(tmp_path, "worker-0")][-1] == int(reached[1])
        result = (tmp_path / "result.json").read_text()
        assert json.loads(result)["test_accuracy"] >= 0.99
        assert "worker 1: the model is good enough: training ends" in cluster["worker 1"].output()

    # Whoever runs it again, to export the model, gets the model that was tested.
    with Cluster(tmp_path, 1, 2, *flags, f"--export_dir={tmp_path}/export") as cluster:
        cluster.start()
        assert cluster.wait() == dict.fromkeys(cluster.names, 0)
        assert f"after {json.loads(result)['global_step']} global steps\n" in cluster["worker 0"].output()
        assert (tmp_path / "result.json").read_text() == result
        assert (tmp_path / "export" / "1").is_dir()


@pytest.mark.promises("evaluator")
@pytest.mark.slow
def test_an_evaluator_evaluates_each_checkpoint_once(tmp_path, black_and_white_dir):
    """It is started before the run, killed in it, and started again; a second one comes after the end."""
    flags = [f"--train_dir={tmp_path}", f"--data_dir={black_and_white_dir}", "--train_steps=5000"]
    checkpoints = ["--save_checkpoint_secs=1", "--keep_checkpoints=1000", "--ema_decay=0.999"]
    with Cluster(tmp_path, 1, 2, *flags, *checkpoints) as cluster:
        evaluator = ["evaluator", "--job_name=evaluator", *flags]
        cluster.start_with(*evaluator)
        cluster["evaluator"].wait_for_output(f"evaluator 0: waiting for a checkpoint in {tmp_path}")
        cluster.start()
        poll_for(lambda: entries(tmp_path, "evaluator-0"), "evaluation")
        cluster["evaluator"].kill()
        cluster.start_with(*evaluator)
        assert cluster.wait() == dict.fromkeys(cluster.tasks, 0)
        cluster.start_with(*evaluator)
        assert cluster["evaluator"].wait() == 0
    # The other worker trains on while the chief saves, so the model may have more steps than the name says.
    steps = [entry["checkpoint_step"] for entry in entries(tmp_path, "evaluator-0")]
    saved = [int(path.name[len("model.ckpt-") : -len(".index")]) for path in tmp_path.glob("model.ckpt-*.index")]
    assert steps == sorted(saved)
    result, last = json.loads((tmp_path / "result.json").read_text()), entries(tmp_path, "evaluator-0")[-1]
    for name in ("test_accuracy", "test_loss", "global_step"):
        assert last[name] == result[name]
