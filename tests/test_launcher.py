"""The promises of `run_local_cluster.sh`, and of the README's first command."""

import json
import os
import re
import signal

import pytest

from tests.processes import PROJECT, Process, poll_for, running_with


class Launcher:
    def __init__(self, folder):
        self._folder = folder
        self.train_dir = folder / "train"
        self._count = 0

    def start(self, *arguments):
        self._count += 1
        command = [str(PROJECT / "run_local_cluster.sh"), f"--train_dir={self.train_dir}", *arguments]
        return Process(command, self._folder / f"launcher-{self._count}", cwd=self._folder)

    def processes(self):
        """Return the command lines of tasks that run."""
        return [line for line in running_with(str(self.train_dir)) if "distributed.py" in line]

    def log(self, name):
        return (self.train_dir / "logs" / f"{name}.log").read_text()


@pytest.fixture
def launcher(tmp_path):
    launcher = Launcher(tmp_path)
    yield launcher
    assert launcher.processes() == [], "no process may be left"


def test_one_command_trains_mnist_and_prints_the_accuracy(launcher, mnist_dir):
    run = launcher.start("--train_steps=2000", f"--data_dir={mnist_dir}")
    assert run.wait() == 0, run.output()
    output = run.output()
    assert re.search(r"worker 0: global step \d+/2000, local step \d+, loss \d\.\d+, \d+ examples/s", output)
    accuracy, step = re.search(
        r"test accuracy (\S+) \(.*\) after (\d+) global steps in .* examples/s\n$", output
    ).groups()
    assert float(accuracy) > 0.95
    result = json.loads((launcher.train_dir / "result.json").read_text())
    assert round(result["test_accuracy"], 4) == float(accuracy)
    assert result["global_step"] == int(step)
    assert (result["num_ps"], result["num_workers"]) == (1, 2)
    for name in ("worker-0", "worker-1"):
        assert "finished at global step" in launcher.log(name)
    assert "the chief has evaluated: leaving" in launcher.log("ps-0")


def test_a_second_run_in_the_same_folder_resumes_and_keeps_the_logs(launcher, black_and_white_dir):
    arguments = ["--ps", "2", "--workers", "1", "--batch_size=10", f"--data_dir={black_and_white_dir}"]
    for steps in (50, 70):
        run = launcher.start(*arguments, "--train_steps", str(steps))
        assert run.wait() == 0, run.output()
    assert f"restored {launcher.train_dir}/model.ckpt-50, at global step 50" in run.output()
    assert launcher.log("worker-0").count("finished at global step") == 2


def test_a_mistake_ends_everything_with_its_message_and_status_2(launcher):
    run = launcher.start("--batch_size=0")
    assert run.wait() == 2
    assert "error: flag --batch_size=0: 0 is not a positive integer" in run.output()


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--job_name=ps", "--job_name is for this script to choose"),
        ("--worker_hosts=a:1", "--worker_hosts is for this script to choose"),
        ("--workers=0", "--workers is '0', expected a number from 1 to 99"),
        ("--ps=two", "--ps is 'two', expected a number from 1 to 99"),
        ("--ps", "--ps needs a value"),
    ],
)
def test_what_the_launcher_cannot_use_is_refused_before_anything_starts(launcher, argument, message):
    run = launcher.start(argument)
    assert run.wait() == 2
    assert f"error: {message}" in run.output()
    assert not launcher.train_dir.exists()


@pytest.mark.parametrize(("signal_number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_leaves_no_process_behind(launcher, black_and_white_dir, signal_number, status):
    run = launcher.start("--train_steps=1000000", f"--data_dir={black_and_white_dir}")
    run.wait_for_output("worker 0: global step")
    assert len(launcher.processes()) == 3
    run.send(signal_number)
    assert run.wait() == status


def test_when_one_task_dies_all_end_and_its_log_is_shown(launcher, black_and_white_dir):
    run = launcher.start("--train_steps=1000000", "--log_every_secs=0.5", f"--data_dir={black_and_white_dir}")
    poll_for(lambda: run.is_running() and (launcher.train_dir / "logs" / "worker-1.log").exists(), "log of worker 1")
    poll_for(lambda: "worker 1: global step" in launcher.log("worker-1"), "progress of worker 1")
    (pid,) = [
        int(line.split()[0])
        for line in running_with(str(launcher.train_dir), columns="pid,command")
        if "--job_name=worker --task_index=1" in line
    ]
    os.kill(pid, signal.SIGKILL)
    assert run.wait() == 128 + signal.SIGKILL
    assert "error: worker-1 ended with status 137; all tasks were ended" in run.output()
    assert "worker 1: global step" in run.output()


def test_help_says_how_to_use_it(launcher):
    run = launcher.start("--help")
    assert run.wait() == 0
    assert (
        "./run_local_cluster.sh [--ps N] [--workers N] [--train_dir DIR] [any flag of distributed.py]" in run.output()
    )
