"""In-graph replication: one client builds the graph, and the other workers only serve it."""

import json
import signal

import pytest

from benchmarks.testbed.processes import Cluster
from tests.clusters.test_training import PROGRESS, assert_all_end, steps_logged


@pytest.mark.promises("in-graph-lost")
def test_in_graph_the_chief_trains_on_all_workers_and_outlives_the_death_of_one(tmp_path, mnist_dir):
    flags = ["--replication=in_graph", f"--data_dir={mnist_dir}", f"--train_dir={tmp_path}", "--log_every_secs=0.1"]
    with Cluster(tmp_path, 1, 2, *flags, "--train_steps=700") as cluster:
        cluster.start("ps 0", "worker 0")
        cluster["worker 0"].wait_for_output(rf"waiting for worker 1 at {cluster.addresses[2]} \(connection refused\)")
        cluster.start("worker 1")
        cluster["worker 0"].wait_for_output(PROGRESS)
        cluster["worker 1"].kill()
        cluster["worker 0"].wait_for_output("the last session is lost: creating a new one")
        steps_before = max(steps_logged(cluster["worker 0"]))
        cluster.start("worker 1")
        assert_all_end(cluster)
        output = cluster["worker 0"].output()
        assert "the ps tasks still hold the model: keeping it" in output, (
            "a worker that only computes takes nothing away"
        )
        assert max(steps_logged(cluster["worker 0"])) > steps_before
        for name in ("ps 0", "worker 1"):
            assert f"{name}: worker 0: evaluated" in cluster[name].output()
            assert f"{name}: the chief has evaluated: leaving\n" in cluster[name].output()
        assert "never took part" not in output
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["test_accuracy"] > 0.9
    assert result["global_step"] == 700, "no other client takes steps"


@pytest.mark.promises("in-graph-gone")
@pytest.mark.slow
def test_in_graph_a_worker_that_does_not_come_back_ends_the_run_and_a_signal_saves_it(tmp_path, black_and_white_dir):
    flags = ["--replication=in_graph", f"--data_dir={black_and_white_dir}", f"--train_dir={tmp_path}"]
    flags += ["--train_steps=1000000", "--log_every_secs=0.1", "--recovery_timeout_secs=2"]
    with Cluster(tmp_path, 1, 3, *flags) as cluster:
        cluster.start()
        cluster["worker 0"].wait_for_output(PROGRESS)
        cluster["worker 2"].kill()
        assert cluster["worker 0"].wait() == 1
        missing = rf"worker 2 at {cluster.addresses[3]} \(connection refused\): start the missing task"
        cluster["worker 0"].wait_for_output(rf"error: worker 0 waited \d+ s for {missing}")
        assert {cluster[name].wait() for name in ("ps 0", "worker 1")} == {1}
        cluster.start()
        cluster["worker 0"].wait_for_output(rf"restored {tmp_path}/model\.ckpt-\d+, (?s:.*){PROGRESS}")
        cluster["worker 1"].send(signal.SIGSTOP)  # neither a silent worker nor a dead one holds a variable
        cluster["worker 2"].kill()
        cluster["worker 0"].send(signal.SIGTERM)
        assert cluster["worker 0"].wait() == 128 + signal.SIGTERM
        assert "\nworker 0 stopped and saved global step " in cluster["worker 0"].output()
        for name in ("ps 0", "worker 1"):
            cluster[name].kill()
