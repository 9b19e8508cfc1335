"""What the launcher does with its tasks: each test runs the real one, with tasks that are shell scripts."""

import json
import os
import pathlib
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from benchmarks.testbed.processes import DEADLINE_SECS, PROJECT, Process, poll_for, running_with
from runtime.launch import console, tasks
from tests.fake_tasks import make_command
from tests.full_disk import NEEDS_PRIVATE_MOUNTS


@pytest.fixture
def launch(tmp_path):
    """Start the launcher with one worker that does what a shell script says, and with its output in a file."""
    runs = []

    def launch(worker, *options, before=()):
        command = [*before, *make_command(tmp_path, worker, *options)]
        runs.append(Process(command, tmp_path / "output", cwd=tmp_path))
        return runs[-1]

    launch.folder = tmp_path
    launch.log = tmp_path / "train" / "logs" / "worker-0.log"
    yield launch
    for run in runs:
        if run.is_running():
            run.send(signal.SIGQUIT)
            run.wait()
    poll_for(lambda: not running_with(f"{tmp_path}/train"), "end of every process")


def test_a_task_that_fails_is_started_again_and_the_run_ends_well(launch):
    run = launch("if ! [ -e again ]; then touch again; exit 7; fi; echo 'worker 0: trains'")
    assert run.wait(DEADLINE_SECS) == 0
    assert "worker-0 ended with status 7: starting it again (1 of 3)\nworker 0: trains\n" in run.output()


@pytest.mark.promises("launcher-restarts", "launcher-ends-all", "launcher-status")
def test_a_task_is_started_again_as_often_as_was_asked_for(launch):
    run = launch("exit 7", "--max_restarts=1")
    assert run.wait(DEADLINE_SECS) == 7
    assert run.output().count("worker-0 ended with status 7: starting it again") == 1


@pytest.mark.promises("memory-runs-out")
@pytest.mark.parametrize(
    ("number", "kills_before", "kills_after", "told"),
    [
        (
            signal.SIGKILL,
            2,
            3,
            "(signal 9, likely out of memory: the kernel has killed a process for that; lower",
        ),
        (signal.SIGKILL, 2, 2, "(signal 9)"),  # somebody else has sent it
        (signal.SIGXCPU, 2, 3, "(signal 24)"),
    ],
)
def test_a_task_that_is_killed_for_lack_of_memory_is_reported_with_a_remedy(
    tmp_path, monkeypatch, number, kills_before, kills_after, told
):
    monkeypatch.setattr(tasks, "KERNEL_COUNTS", counts := tmp_path / "vmstat")
    counts.write_text(f"oom_kill {kills_before}\n")
    task = tasks.TaskProcess("ps-0", str(tmp_path / "log"))
    for _ in range(2):
        task.start(["distributed.py"], lambda: os.kill(os.getpid(), number))
        poll_for(task.has_just_ended, "end of the task")
    files = [of for of in psutil.Process().open_files() if of.path == task.log]
    assert len(files) == 1, "that of who reads its last lines; else each start would keep one open"
    counts.write_text(f"oom_kill {kills_after}\n")
    assert task.describe_end().startswith(f"ended with status {128 + number} {told}")


def test_where_memory_runs_out_the_kernel_ends_a_task_before_its_launcher(tmp_path):
    task = tasks.TaskProcess("ps-0", str(tmp_path / "log"))
    task.start(["distributed.py"], signal.pause)
    score = pathlib.Path(f"/proc/{task.process.pid}/oom_score_adj")
    poll_for(lambda: score.read_text() == "500\n", "a higher score than that of the launcher")
    task.process.kill()
    task.process.join()


@pytest.mark.slow
@pytest.mark.promises("launcher-ends-all")
def test_a_run_that_cannot_go_on_shows_the_last_words_of_this_run_only(launch):
    assert launch("echo 'of an earlier run'").wait(DEADLINE_SECS) == 0
    run = launch("for i in $(seq 100); do echo line $i; done; echo 'error: wrong' >&2; exit 2")
    assert run.wait(DEADLINE_SECS) == 2
    _, _, end = run.output().partition("stopped all tasks. Last lines of ")
    path, *lines = end.splitlines()
    assert path == f"{launch.log}:"
    assert lines == [*(f"line {number}" for number in range(87, 101)), "error: wrong"]
    assert "starting it again" not in run.output()
    launch.log.unlink()
    assert launch("exit 2").wait(DEADLINE_SECS) == 2
    assert "of an earlier run" not in run.output().partition("ended. The end")[2]


@pytest.mark.promises("what-is-next")
@pytest.mark.parametrize(
    ("result", "flags", "lines"),
    [
        (
            {"global_step": 7, "reached": "accuracy:0.9"},
            ["--train_steps=5", "--stop_at_accuracy=0.9"],
            ["folder", "export    {command} --train_steps=5 --stop", "predict"],
        ),
        (
            {"global_step": 7},
            ["--train_steps=5", "--stop_at_accuracy", "0.9"],
            [
                "folder",
                "train on  {command} --stop_at_accuracy 0.9 --train_steps=14",
                "export    {command} --train_steps=5 --st",
                "predict",
            ],
        ),
        (
            {"global_step": 7},
            ["--export_dir=my model"],
            [
                "folder",
                "train on  {command} '--export_dir=my model' --train_steps=14",
                "predict   {python} examples/digits/predict.py '--model=my model' PICTURE...",
            ],
        ),
        ({}, [], []),
    ],
)
def test_the_last_lines_say_what_is_there_and_what_to_do_next(launch, result, flags, lines):
    (launch.folder / "result").write_text(json.dumps(result))
    run = launch("mv result train/result.json; echo 'test accuracy 1.0'", *flags)
    assert run.wait(DEADLINE_SECS) == 0
    told = run.output().partition("test accuracy 1.0\n")[2].splitlines()
    assert len(told) == (1 + len(lines) if lines else 0)
    own = f"--no_isolation --workers=1 --train_dir=train --data_dir={launch.folder}"
    names = {"command": f"./run_local_cluster.sh {own}", "python": os.path.relpath(sys.executable, launch.folder)}
    names["python"] = min(names["python"], sys.executable, key=len)
    for line, start in zip(told[1:], lines, strict=True):
        assert line.startswith(start.format_map(names))


def test_how_to_predict_is_told_only_where_a_script_fits_the_data(launch, monkeypatch):
    monkeypatch.setenv("PREDICTS", "")
    (launch.folder / "result").write_text('{"global_step": 7}')
    run = launch("mv result train/result.json; echo 'test accuracy 1.0'")
    assert run.wait(DEADLINE_SECS) == 0
    assert "\nexport  " in run.output()
    assert "\npredict  " not in run.output()


def test_who_stops_reading_costs_no_line_of_the_log(launch):
    """As `run_local_cluster.sh | head -3` does."""
    lines = "for i in $(seq 20000); do echo worker 0: line $i; done"
    run = launch(lines, before=["sh", "-c", '"$0" "$@" | head -3; exec sleep 1000'])
    poll_for(lambda: launch.log.exists() and launch.log.read_text().endswith("line 20000\n"), "whole log")
    assert launch.log.read_text().count("\n") == 20000
    run.kill()


def test_many_lines_at_once_are_all_shown(launch):
    run = launch("seq -f 'worker 0: line %g' 20000")
    assert run.wait(DEADLINE_SECS) == 0
    assert len(re.findall(r"^worker 0: line \d+$", run.output(), re.MULTILINE)) == 20000


@pytest.mark.slow
@pytest.mark.promises("result-waits")
def test_a_pipe_that_nobody_reads_holds_up_no_task_and_the_end_waits_for_its_reader(launch):
    """Its output is full before the task goes on."""
    lines = "yes 'worker 0: a line' | head -100000; touch full; while ! [ -e go-on ]; do sleep 0.05; done"
    reader = "while ! [ -e done ]; do sleep 0.05; done; sleep 4; exec cat"
    run = launch(f"{lines}; echo 'worker 0: the last'; touch done", before=["sh", "-c", f'"$0" "$@" | ({reader})'])
    poll_for((launch.folder / "full").exists, "full pipe")
    (launch.folder / "go-on").touch()
    assert run.wait(DEADLINE_SECS) == 0
    assert "worker 0: the last\n" in run.output()


@pytest.mark.promises("logs-away")
def test_a_hanging_file_server_of_the_logs_is_reported_until_it_answers(tmp_path, monkeypatch):
    answers, said = threading.Event(), queue.SimpleQueue()
    monkeypatch.setattr(console, "ASKING_SECS", 0.02)
    monkeypatch.setattr(console, "say", said.put)
    monkeypatch.setattr(os, "utime", lambda path: answers.wait())
    threading.Thread(target=console._watch, args=[str(tmp_path)], daemon=True).start()
    line = f"still waiting for the logs of the tasks: check that {tmp_path} responds"
    assert [said.get(timeout=DEADLINE_SECS) for _ in range(2)] == [line, line]
    answers.set()

    def is_silent():
        num_said = said.qsize()
        time.sleep(0.5)
        return said.qsize() == num_said

    poll_for(is_silent, "silence")


def test_why_the_code_of_tensorflow_has_ended_a_task_is_told_though_it_stands_far_above(launch):
    cause = "E0000 00:00:1.2 3 ev_posix.cc:132] No event engine could be initialized"
    noise = "E0000 00:00:1.1 3 cuda_platform.cc:52] failed call to cuInit"
    run = launch(f"echo '{noise}'; echo '{cause}'; seq 100; exit 134", "--max_restarts=0")
    assert run.wait(DEADLINE_SECS) == 134
    _, *lines = run.output().partition("stopped all tasks. Last lines of ")[2].splitlines()
    assert lines == [cause, *map(str, range(86, 101))]


@pytest.mark.promises("launcher-status")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 143)])
def test_a_signal_stops_every_task_with_sigterm(launch, number, status):
    run = launch("trap 'echo worker 0: saved; exit 143' TERM; echo worker 0: begins; while :; do sleep 0.05; done")
    run.wait_for_output("worker 0: begins")
    run.send(number)
    assert run.wait(DEADLINE_SECS) == status
    assert "worker 0: saved\n" in run.output()


def test_tasks_have_the_time_to_stop_that_was_asked_for(launch):
    """Both the tasks and who would kill them."""
    run = launch(
        "trap 'echo worker 0: saved; exit 143' TERM; echo worker 0: $*; while :; do sleep 0.05; done",
        "--stop_timeout_secs=90",
    )
    run.wait_for_output("worker 0: .*--stop_timeout_secs=90")
    run.send(signal.SIGINT)
    assert run.wait(DEADLINE_SECS) == 130
    assert "stopping all tasks within 90 s, and the chief saves first" in run.output()


def test_ctrl_c_while_tensorflow_is_imported_ends_the_launcher_without_a_traceback(tmp_path):
    command = make_command(tmp_path, "")
    (tmp_path / "distributed.py").write_text("import time\nopen('importing', 'w').close()\ntime.sleep(1000)\n")
    run = Process(command, tmp_path / "output", cwd=tmp_path)
    poll_for((tmp_path / "importing").exists, "import")
    run.send(signal.SIGINT)
    assert run.wait(DEADLINE_SECS) == -signal.SIGINT
    assert run.output() == "run_local_cluster.sh: loading TensorFlow\n"


@pytest.mark.parametrize("output", [">&-", ">&- 2>&- <&-", ">/dev/full", "| true"])
def test_a_standard_output_that_is_closed_or_full_or_gone_costs_nothing_but_lines(launch, output):
    before = ["sh", "-c", f'("$0" "$@"; echo $? >status) {output}']
    launch("echo worker 0: trains", before=before)
    status = launch.folder / "status"
    assert poll_for(lambda: status.exists() and status.read_text(), "end") == "0\n"
    assert launch.log.read_text() == "worker 0: trains\n"


def test_a_signal_when_every_task_has_done_its_part_is_no_stop(launch):
    run = launch("trap 'exit 0' TERM; echo worker 0: begins; while :; do sleep 0.05; done")
    run.wait_for_output("worker 0: begins")
    run.send(signal.SIGINT)
    assert run.wait(DEADLINE_SECS) == 0
    assert "to resume" not in run.output()


def test_a_train_dir_that_cannot_be_made_is_told_as_a_task_tells_it(launch):
    run = launch("", "--train_dir=/dev/null/run")
    assert run.wait(DEADLINE_SECS) == 2
    assert run.output().endswith("error: --train_dir /dev/null/run cannot be written: Not a directory\n")


def test_a_project_whose_path_is_a_pattern_is_told_before_anything_is_made(tmp_path):
    project = tmp_path / "project [1]"
    project.mkdir()
    shutil.copytree(PROJECT / "runtime", project / "runtime")
    for name in ("distributed.py", "model.py", "mnist_input.py"):
        shutil.copy(PROJECT / name, project)
    done = subprocess.run(
        [sys.executable, project / "runtime" / "launch", "prepare", "--data_dir=/"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert re.match(r"error: the folder of this run, .*, has one of the characters .*, with --train_dir\n", done.stderr)
    assert not (project / "runs").exists()


def test_what_is_in_the_way_in_a_train_dir_is_named(launch, tmp_path):
    (tmp_path / "logs").touch()
    run = launch("", f"--train_dir={tmp_path}")
    assert run.wait(DEADLINE_SECS) == 2
    assert run.output().endswith(f"error: --train_dir {tmp_path}/logs cannot be written: File exists\n")


@pytest.mark.parametrize(
    ("reader", "others"),
    [
        ("mnist_input.py", ""),
        ("elsewhere.py", "from elsewhere import fetch\n"),
        ("elsewhere.py", "from elsewhere import (\n    fetch,\n)\n"),
    ],
)
def test_a_machine_is_prepared_without_training(launch, tmp_path, reader, others):
    (tmp_path / "mnist_input.py").write_text(others)
    (tmp_path / reader).write_text(
        "import sys\ndef fetch(data_dir): open(f'{data_dir}/fetched', 'w').write(sys.argv[-1])\n"
    )
    (tmp_path / "data").mkdir()
    run = launch("echo never", f"--data_dir={tmp_path}/data", "--prepare", "--variant=small")
    assert run.wait(DEADLINE_SECS) == 0, run.output()
    assert (tmp_path / "data" / "fetched").read_text() == "--variant=small"
    assert not (tmp_path / "train").exists()


@NEEDS_PRIVATE_MOUNTS
def test_a_system_that_forbids_a_private_network_is_told_with_the_remedy(launch):
    # These count inside of this namespace.
    forbid = 'for kind in net user; do echo 0 >/proc/sys/user/max_${kind}_namespaces; done; exec "$@"'
    before = ["unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh"]
    run = launch("", "--no_isolation=false", before=before)
    assert run.wait(DEADLINE_SECS) == 0
    (line,) = [line for line in run.output().splitlines() if "no private network here" in line]
    assert "; sudo sysctl user.max_user_namespaces=10000 allows it): other users, and other machines that reach" in line


@NEEDS_PRIVATE_MOUNTS
def test_in_a_private_network_a_read_only_folder_is_one(launch):
    (launch.folder / "train").mkdir(mode=0o555)
    nobody = ["unshare", "--user", "--map-user=54321", "--map-group=54321"]
    run = launch("", "--no_isolation=false", before=nobody)
    assert run.wait(DEADLINE_SECS) == 2
    assert run.output().endswith("/train/logs cannot be written: Permission denied\n")
    assert "no private network" not in run.output()


def test_a_log_that_cannot_be_opened_is_told_in_one_line(launch):
    launch.log.mkdir(parents=True)
    run = launch("echo never")
    assert run.wait(DEADLINE_SECS) == 2
    assert run.output().endswith(
        f"error: worker-0 cannot be started: {launch.log}: Is a directory; stopped all tasks\n"
    )
    assert "starting it again" not in run.output()


@pytest.mark.promises("launcher-killed")
def test_tasks_that_lose_their_launcher_stop_in_order_and_their_logs_go_on(launch):
    """As kill -9 does it."""
    run = launch("trap 'echo worker 0: saved; exit 143' TERM; echo worker 0: begins; while :; do sleep 0.05; done")
    run.wait_for_output("worker 0: begins")
    run.kill()
    poll_for(lambda: launch.log.read_text() == "worker 0: begins\nworker 0: saved\n", "end of the log")


def test_the_task_that_is_named_is_the_one_that_has_found_the_cause(launch):
    """The chief ends first, with what worker 1 has told it."""
    cause = "echo 'error: the data is wrong'; exit 2"
    run = launch(
        "case $* in"
        f' *task_index=1*) trap "{cause}" TERM; touch ready; while :; do sleep 0.05; done;;'
        " *) while ! [ -e ready ]; do sleep 0.05; done;"
        " echo 'error: worker 1 has ended: the data is wrong'; exit 2;; esac",
        "--workers=2",
    )
    assert run.wait(DEADLINE_SECS) == 2
    log = launch.log.with_name("worker-1.log")
    what = "worker-1 cannot use its input, or save its output; stopped all tasks"
    assert run.output().endswith(f"error: {what}. Last lines of {log}:\nerror: the data is wrong\n")


def test_a_run_that_cannot_go_on_says_how_to_go_on_from_its_checkpoint(launch):
    run = launch("touch train/checkpoint; echo 'error: wrong'; exit 2", "--seed=7")
    assert run.wait(DEADLINE_SECS) == 2
    assert re.search(
        r"error: wrong\nonce that is fixed, to resume from the last checkpoint: .* --train_dir=train .*--seed=7\n$",
        run.output(),
    )


def test_a_task_that_fails_when_the_chief_has_ended_well_costs_no_result(launch):
    run = launch(
        "case $* in *task_index=1*) while ! [ -e done ]; do sleep 0.05; done; exit 7;; *) touch done;; esac",
        "--workers=2",
        "--max_restarts=1",
    )
    assert run.wait(DEADLINE_SECS) == 7
    assert run.output().endswith("\nthe chief had ended with status 0: the result is saved\n")


def test_the_end_of_a_task_is_told_before_what_the_chief_tells_of_it(launch):
    """Though the launcher had no time to look meanwhile."""
    launch.folder.joinpath("ps.sh").write_text(
        "[ -e ps.pid ] && exit 0; echo $$ >ps.pid; while ! [ -e dies ]; do sleep 0.05; done; exit 7"
    )
    run = launch(
        "echo begins; while ! [ -e is-dead ]; do sleep 0.05; done; echo worker 0: lost ps 0;"
        " while ! [ -e end ]; do sleep 0.05; done"
    )
    run.wait_for_output("begins")
    poll_for((launch.folder / "ps.pid").exists, "the ps")
    ps = psutil.Process(int((launch.folder / "ps.pid").read_text()))
    run.send(signal.SIGSTOP)
    (launch.folder / "dies").touch()
    poll_for(lambda: ps.status() == psutil.STATUS_ZOMBIE, "end of the ps")
    (launch.folder / "is-dead").touch()
    poll_for(lambda: "lost ps 0" in launch.log.read_text(), "line of the chief")
    run.send(signal.SIGCONT)
    run.wait_for_output("lost ps 0")
    (launch.folder / "end").touch()
    assert run.wait(DEADLINE_SECS) == 0
    assert re.search(r"ps-0 ended with status 7: starting it again \(1 of 3\)\nworker 0: lost ps 0\n", run.output())


@pytest.mark.slow
def test_a_ps_that_dies_when_the_chief_has_ended_well_costs_nothing(launch):
    launch.folder.joinpath("ps.sh").write_text("while ! [ -e ended ]; do sleep 0.05; done; kill -9 $$")
    run = launch("true", "--max_restarts=0")
    run.wait_for_output("the chief has ended: waiting for ps-0 to end, up to 60 s")
    (launch.folder / "ended").touch()
    assert run.wait(DEADLINE_SECS) == 0
    assert "ps-0 ended with status 137 (signal 9): nothing is lost, since the chief has ended" in run.output()


@pytest.mark.promises("chief-has-ended")
def test_a_task_that_stays_when_the_chief_has_ended_ends_the_run(launch):
    make_command(launch.folder, "")
    supervisor = launch.folder / "runtime" / "launch" / "supervisor.py"
    text = supervisor.read_text()
    supervisor.unlink()
    supervisor.write_text(text.replace("LEAVE_SECS = 60.0", "LEAVE_SECS = 0.5"))
    run = launch("case $* in *task_index=1*) while :; do sleep 0.05; done;; esac", "--workers=2")
    assert run.wait(DEADLINE_SECS) == 1
    assert "error: worker-1 did not end within 0.5 s of the chief; stopped all tasks" in run.output()
    assert run.output().endswith("\nthe chief had ended with status 0: the result is saved\n")


@pytest.mark.slow
def test_who_is_waited_for_when_the_chief_has_ended_is_said(launch):
    run = launch("case $* in *task_index=1*) while ! [ -e done ]; do sleep 0.05; done;; esac", "--workers=2")
    run.wait_for_output("the chief has ended: waiting for worker-1 to end, up to 60 s")
    (launch.folder / "done").touch()
    assert run.wait(DEADLINE_SECS) == 0


@pytest.mark.promises("ctrl-c-again")
def test_ctrl_c_reaches_a_task_once_and_the_launcher_says_how_to_end_it_at_once(launch):
    run = launch("trap 'echo told' TERM; echo begins; until [ -e go-on ]; do sleep 0.05; done; sleep 0.2; exit 143")
    run.wait_for_output("begins")
    run.send(signal.SIGINT)
    run.wait_for_output("told")
    run.send(signal.SIGINT)
    run.wait_for_output(r"still stopping all tasks; Ctrl-\\ ends them at once")
    (launch.folder / "go-on").touch()
    assert run.wait(DEADLINE_SECS) == 130
    assert launch.log.read_text() == "begins\ntold\n"


@pytest.mark.promises("ctrl-backslash", "launcher-status")
def test_a_chief_that_is_killed_before_it_could_save_is_reported(launch):
    run = launch("echo worker 0: begins; while :; do sleep 0.05; done")
    run.wait_for_output("worker 0: begins")
    run.send(signal.SIGQUIT)
    assert run.wait(DEADLINE_SECS) == 128 + signal.SIGQUIT
    lost = "the chief was killed before it could save: the steps since the last checkpoint are lost"
    assert f"run_local_cluster.sh: {lost}\n" in run.output()
    assert "starting it again" not in run.output()


def test_a_signal_to_a_task_whose_end_was_seen_already_is_no_error(tmp_path):
    """Python itself looks for the ends of processes, whenever it starts one."""
    script = """
import sys
from runtime.launch.tasks import TaskProcess, fork
task = TaskProcess("ps-0", sys.argv[1])
task.start(["distributed.py"], lambda: None)
while fork.active_children():
    pass
task.process.kill()
print(task.has_just_ended(), task.status, task.has_just_ended())
"""
    command = [sys.executable, "-c", script, str(tmp_path / "log")]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert done.stdout == "True 0 False\n", done.stderr
