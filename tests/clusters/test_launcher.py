"""The promises of `run_local_cluster.sh`, and of the README's first command."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import psutil
import pytest

import mnist_input
from benchmarks.testbed.processes import PROJECT, Process, answers, can_run, poll_for, running_with
from examples import convert
from runtime.records.events import read_run
from runtime.records.folder import RunFolder
from tests.full_disk import NEEDS_PRIVATE_MOUNTS, full_disk
from tests.test_links import EXERCISED, LAUNCHED


class Launcher:
    def __init__(self, folder):
        self._folder = folder
        self.train_dir = folder / "train"
        self.log_before_kill = ""
        self._runs = []

    def start(self, *arguments, env=None):
        command = [str(PROJECT / "run_local_cluster.sh"), f"--train_dir={self.train_dir}", *arguments]
        self._runs.append(Process(command, self._folder / f"launcher-{len(self._runs)}", env, cwd=self._folder))
        return self._runs[-1]

    def end(self):
        """End what a failed test has left."""
        for run in self._runs:
            if run.is_running():
                run.send(signal.SIGTERM)
                run.wait()

    def tasks(self):
        """Return the process numbers of the tasks that run, by name, such as "worker-0"."""
        found = running_with(str(self.train_dir))
        return {process.name: process.pid for process in found if re.match(r"(ps|worker)-", process.name)}

    def log(self, name):
        path = self.train_dir / "logs" / f"{name}.log"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def launcher(tmp_path):
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.end()
    assert running_with(str(launcher.train_dir)) == [], "no process may be left"


def test_one_command_trains_mnist_and_prints_the_accuracy(launcher, mnist_dir):
    run = launcher.start("--train_steps=2000", "--log_every_secs=0.5", f"--data_dir={mnist_dir}")
    assert run.wait() == 0, run.output()
    output = run.output()
    assert re.search(r"worker 0: global step \d+/2000, local step \d+, loss \d\.\d+, \d+ examples/s", output)
    accuracy, step, lines = re.search(
        r"test accuracy (\S+) \(.*\) after (\d+) global steps in .* examples/s\n\n(.*)\n$", output, re.DOTALL
    ).groups()
    assert float(accuracy) > 0.95
    result = json.loads((launcher.train_dir / "result.json").read_text())
    assert round(result["test_accuracy"], 4) == float(accuracy)
    assert result["global_step"] == int(step)
    assert (result["num_ps"], result["num_workers"]) == (1, 2)
    command = f"{PROJECT}/run_local_cluster.sh --train_dir={launcher.train_dir}"
    assert lines.splitlines() == [
        "folder    train",
        "report    train/report.html",
        f"train on  {command} --log_every_secs=0.5 --data_dir={mnist_dir} --train_steps={2 * int(step)}",
        f"export    {command} --train_steps=2000 --log_every_secs=0.5 --data_dir={mnist_dir} --export_dir=train/model",
        f"predict   {sys.executable} {PROJECT}/examples/digits/predict.py --model=train/model PICTURE...",
    ]
    assert (launcher.train_dir / "report.html").exists()
    for name in ("worker-0", "worker-1"):
        assert "finished at global step" in launcher.log(name)
    assert "the chief has evaluated: leaving" in launcher.log("ps-0")


@pytest.mark.promises("resume")
def test_a_second_run_resumes_where_the_first_stopped_and_keeps_the_logs(launcher, black_and_white_dir):
    def run(*arguments):
        run = launcher.start(*arguments, f"--data_dir={black_and_white_dir}")
        assert run.wait() == 0, run.output()
        return json.loads((launcher.train_dir / "result.json").read_text())["global_step"], run.output()

    first_stop, _ = run("--train_steps=100")
    second_stop, output = run("--train_steps", "200")
    assert f"restored {launcher.train_dir}/model.ckpt-{first_stop}, at global step {first_stop}\n" in output
    assert second_stop in (200, 201)
    third_stop, output = run("--train_steps=200")
    assert f"global step {second_stop}: nothing is left to train" in output
    assert third_stop == second_stop, "no step is taken at the end"
    assert launcher.log("worker-0").count("finished at global step") == 3


@pytest.mark.promises("launcher-checks-first")
def test_a_wrong_flag_is_told_once_before_anything_is_made(launcher):
    run = launcher.start("--batch_size=0")
    assert run.wait() == 2
    assert run.output().count("error: flag --batch_size=0: 0 is not a positive integer") == 1
    assert not launcher.train_dir.exists()


def test_a_terminal_that_closes_stops_the_run_in_order(launcher, black_and_white_dir):
    """It sends SIGHUP to the tasks, too."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # who runs the tests with nohup ignores it, and so would the launcher
    run = launcher.start("--train_steps=1000000", "--save_checkpoint_secs=600", f"--data_dir={black_and_white_dir}")
    run.wait_for_output("worker 0: global step")
    assert len(launcher.tasks()) == 3
    found = subprocess.run(["pgrep", "-f", "runtime/launch"], stdout=subprocess.PIPE, text=True).stdout.split()
    assert str(run.pid) in found, "a lecturer ends a forgotten cluster so"
    for pid in (*launcher.tasks().values(), run.pid):
        os.kill(pid, signal.SIGHUP)
    assert run.wait() == 128 + signal.SIGTERM
    assert "worker 0 stopped and saved global step " in run.output()
    assert re.search(r"model\.ckpt-[1-9]", (launcher.train_dir / "checkpoint").read_text())
    command = (
        f"{PROJECT}/run_local_cluster.sh --train_dir={launcher.train_dir} --train_steps=1000000"
        " --save_checkpoint_secs=600"
    )
    assert f"to resume from the last checkpoint: {command} --data_dir={black_and_white_dir}\n" in run.output()


def kill(launcher, name):
    """Wait until a task trains, or serves, and kill it with -9."""
    job_name, index = name.split("-")
    at_work = "worker 1: training" if job_name == "ps" else f"worker {index}: global step"
    last_life = len(launcher.log_before_kill)
    poll_for(lambda: at_work in launcher.log(name)[last_life:], f"{name} at work")
    pid = launcher.tasks()[name]
    os.kill(pid, signal.SIGKILL)
    poll_for(lambda: pid not in launcher.tasks().values(), f"end of {name}")  # it says nothing from here on
    launcher.log_before_kill = launcher.log(name)


@pytest.mark.promises("names-of-tasks")
def test_a_task_that_dies_is_started_again(launcher, black_and_white_dir):
    run = launcher.start("--train_steps=3000", "--log_every_secs=0.2", f"--data_dir={black_and_white_dir}")
    kill(launcher, "worker-0")
    assert run.wait() == 0, run.output()
    assert "worker-0 ended with status 137 (signal 9): starting it again (1 of 3)" in run.output()
    assert "worker 0: the ps tasks still hold the model: keeping it, at global step" in run.output()
    assert "test accuracy 1.0000" in run.output()


def addresses(run):
    """Return the addresses that a running launcher's tasks listen at."""
    return re.findall(r"localhost:\d+", run.wait_for_output(r"ps at .*\n")[0])


PRIVATE_NETWORK = ["unshare", "--user", "--map-root-user", "--net", "ip", "link", "set", "lo", "up"]


@pytest.mark.skipif(not can_run(PRIVATE_NETWORK), reason="needs unshare and ip")
def test_no_port_of_an_isolated_cluster_answers_from_outside(launcher, black_and_white_dir):
    run = launcher.start("--train_steps=1000000", f"--data_dir={black_and_white_dir}")
    run.wait_for_output("worker 0: global step")
    assert [answers(address) for address in addresses(run)] == [False, False, False]
    run.send(signal.SIGTERM)
    assert run.wait() == 128 + signal.SIGTERM


def test_without_isolation_the_ports_are_open(launcher, black_and_white_dir):
    run = launcher.start("--train_steps=1000000", "--no_isolation", f"--data_dir={black_and_white_dir}")
    run.wait_for_output("worker 0: global step")
    assert [answers(address) for address in addresses(run)] == [True, True, True]
    run.send(signal.SIGTERM)
    run.wait()


def ask(url):
    """Return what TensorBoard answers, or nothing before it has read the run; no proxy is asked."""
    with contextlib.suppress(urllib.error.HTTPError):
        return json.load(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=60))
    return {}


def test_tensorboard_shows_the_run_and_ends_with_the_launcher(launcher, black_and_white_dir):
    flags = ["--train_steps=100000000", "--log_every_secs=0.2", "--eval_every_secs=0.5"]
    with socket.socket() as other:
        with contextlib.suppress(OSError):  # it is taken already
            other.bind(("localhost", 6006))
            other.listen()
        run = launcher.start("--tensorboard", *flags, f"--data_dir={black_and_white_dir}")
        url = run.wait_for_output(r"TensorBoard at (http://localhost:(\d+)/)")
    assert int(url[2]) > 6006, "the usual port is taken"
    tags = {"loss", "accuracy", "test_accuracy", "worker/staleness", "worker/examples_per_sec"}
    scalars = f"{url[1]}data/plugin/scalars"
    poll_for(lambda: tags <= ask(f"{scalars}/tags").get(".", {}).keys(), "summaries of the chief")
    poll_for(lambda: "worker/staleness" in ask(f"{scalars}/tags").get("worker-1", {}), "summaries of worker 1")
    evaluation = next(event for event in read_run(RunFolder(launcher.train_dir)) if event["event"] == "evaluated")
    _, step, accuracy = ask(f"{scalars}/scalars?run=.&tag=test_accuracy")[0]
    assert (step, accuracy) == (evaluation["global_step"], pytest.approx(evaluation["test_accuracy"]))
    assert ask(f"{scalars}/scalars?run=.&tag=loss")[0][2] > 0

    found = running_with(str(launcher.train_dir))
    (board,) = [of for of in found if " -m tensorboard.main " in of.command and of.name != "sh"]
    board = psutil.Process(board.pid)
    listening = [
        c for p in (board, *board.children(recursive=True)) for c in p.net_connections() if c.status == "LISTEN"
    ]
    assert {connection.laddr.ip for connection in listening} <= {"127.0.0.1", "::1"}, "nobody else can ask it"
    run.kill()
    poll_for(lambda: not launcher.tasks(), "end of the tasks")
    assert "worker 0 stopped and saved global step " in launcher.log("worker-0")
    poll_for(lambda: not running_with(str(launcher.train_dir)), "end of TensorBoard")


AT_IMPORT = """
PRIOR = tf.constant(1.0).numpy()
with tf.Graph().as_default(), tf.Session() as session:
    session.run(tf.constant(PRIOR))
np.random.permutation(4)
GENERATOR = np.random.default_rng()
import multiprocessing, threading
threading.Thread(target=threading.Event().wait).start()
POOL = multiprocessing.Pool(1)
"""
IN_LOAD = """
    import concurrent.futures
    with multiprocessing.Pool(2) as pool, concurrent.futures.ProcessPoolExecutor(2) as executor:
        assert POOL.map(abs, [-1]) == pool.map(abs, [-1]) == list(executor.map(abs, [-1])) == [1]
    print("drawn", split, np.random.random(), GENERATOR.random(), flush=True)
"""
IN_DECODE = """
    def augment(images):
        print("augmented", np.random.random(), flush=True)
        return images

    images = tf.ensure_shape(tf.numpy_function(augment, [images], images.dtype), images.shape)
"""


def start_edited(launcher, edit, *flags):
    """Start a cluster with a user's two files: MNIST's, but `edit` has changed the text of mnist_input.py."""
    user_dir = launcher.train_dir.parent / "own"
    user_dir.mkdir()
    for name, change in (("model.py", str), ("mnist_input.py", edit)):
        (user_dir / name).write_text(change((PROJECT / name).read_text()))
    return launcher.start("--user_dir=own", *flags)


def test_a_users_file_may_start_tensorflow_and_processes_and_draws_its_own_numbers(launcher, black_and_white_dir):
    """As by hand: what is made while the file is imported cannot be forked."""

    def edit(text):
        text = text.replace("\nIMAGE_SHAPE", AT_IMPORT + "IMAGE_SHAPE", 1)
        load = re.search(r"def load.*?(?=\n    images_path)", text, re.DOTALL)[0]
        text = text.replace(load, load + IN_LOAD)
        decode = re.search(r"def decode.*?(?=\n    return)", text, re.DOTALL)[0]
        return text.replace(decode, decode + IN_DECODE)

    flags = ["--train_steps=300", "--sync_replicas", "--max_restarts=0", f"--data_dir={black_and_white_dir}"]
    run = start_edited(launcher, edit, *flags)
    assert run.wait() == 0, run.output()
    drawn = [re.findall(r"drawn train (.*) (.*)", launcher.log(f"worker-{index}")) for index in (0, 1)]
    assert len({number for ((*numbers,),) in drawn for number in numbers}) == 4
    augmented = [set(re.findall(r"augmented (.*)", launcher.log(f"worker-{index}"))) for index in (0, 1)]
    assert all(augmented)
    assert not augmented[0] & augmented[1], "each worker draws its own numbers in its steps, too"


FAILS_ONCE = """
    def fail_once(images, calls=[]):
        calls.append(1)
        if len(calls) > 100 and not os.path.exists("has-failed"):
            os.mkdir("has-failed")
            raise ValueError("the server of pictures is away")
        return images

    images = tf.ensure_shape(tf.numpy_function(fail_once, [images], tf.uint8), [None, NUM_PIXELS])
"""


@pytest.mark.promises("status-1")
def test_an_error_of_a_users_file_after_the_first_step_may_pass(launcher, black_and_white_dir):
    def edit(text):
        decode = re.search(r"def decode.*?(?=\n    return)", text, re.DOTALL)[0]
        return text.replace(decode, decode + FAILS_ONCE)

    run = start_edited(launcher, edit, "--train_steps=2000", "--workers=1", f"--data_dir={black_and_white_dir}")
    assert run.wait() == 0, run.output()
    assert "worker-0 ended with status 1: starting it again (1 of 3)" in run.output()
    error = r"error: \S+/own/mnist_input\.py, line \d+: InvalidArgumentError: ValueError: the server .* away; start"
    assert re.search(error, launcher.log("worker-0"))


DIES_ONCE = """
    def show(self, index):
        import signal
        if not os.path.exists("has-died"):
            os.mkdir("has-died")
            os.kill(os.getpid(), signal.SIGKILL)
        return "shown"

"""


def test_a_chief_that_dies_once_the_result_is_saved_still_writes_the_report(launcher, black_and_white_dir):
    def edit(text):
        examples = re.search(r"class Examples.*?\n\n", text, re.DOTALL)[0]
        return text.replace(examples, examples.rstrip("\n") + "\n" + DIES_ONCE)

    flags = ["--train_steps=2", "--learning_rate=1e-9", "--workers=1", f"--data_dir={black_and_white_dir}"]
    run = start_edited(launcher, edit, *flags)
    assert run.wait() == 0, run.output()
    assert "worker-0 ended with status 137 (signal 9): starting it again (1 of 3)" in run.output()
    assert "waiting for ps 0" not in run.output().partition("starting it again")[2]
    assert "shown" in (launcher.train_dir / "report.html").read_text()


@pytest.mark.parametrize("command", [["bash", "run_local_cluster.sh"], ["sh", "run_local_cluster.sh"], ["LINK"]])
def test_the_script_may_be_given_to_a_shell_or_be_a_link(tmp_path, command):
    (tmp_path / "link").symlink_to(PROJECT / "run_local_cluster.sh")
    command = [str(tmp_path / "link") if word == "LINK" else word for word in command]
    command += [f"--train_dir={tmp_path}/train", "--batch_size=0"]
    run = Process(command, tmp_path / "log", cwd=PROJECT)
    assert run.wait() == 2
    assert "error: flag --batch_size=0: 0 is not a positive integer" in run.output()


def test_one_installation_serves_many_copies(tmp_path, mnist_dir):
    """As docs/teaching.md says: each student copies a clone, in which a link leads to the one environment."""
    subprocess.run(["git", "clone", "--quiet", PROJECT, tmp_path / "srv"], check=True)
    (tmp_path / "srv" / ".venv").symlink_to(sys.prefix)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "distributed-mnist").symlink_to(mnist_dir)
    subprocess.run(["cp", "-r", tmp_path / "srv", tmp_path / "mnist"], check=True)
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "VENV_DIR": ""}
    command = ["./run_local_cluster.sh", "--train_steps=200", "--train_dir=runs/lab"]
    run = Process(command, tmp_path / "log", env, cwd=tmp_path / "mnist")
    assert run.wait() == 0, run.output()
    assert (tmp_path / "mnist" / ".venv").readlink() == (tmp_path / "srv" / ".venv").readlink()
    assert (tmp_path / "mnist" / "runs" / "lab" / "result.json").exists()


@pytest.mark.parametrize("run", ["sync", "bounded"])
def test_who_stops_a_worker_in_the_lab_sees_what_it_quotes(launcher, mnist_dir, run):
    page = (PROJECT / "docs" / "lab.md").read_text()
    flags = re.search(rf"^\./run_local_cluster\.sh (.*) --train_dir=runs/{run}$", page, re.MULTILINE)[1]
    lines = dict(zip(["sync", "bounded"], re.findall(r"^worker 0: from .* on: .*", page, re.MULTILINE), strict=True))
    quoted = ".*".join(map(re.escape, lines[run].split("…")))
    process = launcher.start(*flags.split(), f"--data_dir={mnist_dir}")
    poll_for(lambda: "global step" in launcher.log("worker-1"), "steps of worker 1")
    worker = launcher.tasks()["worker-1"]
    os.kill(worker, signal.SIGSTOP)
    poll_for(lambda: re.search(quoted, launcher.log("worker-0")), f"line: {quoted}")
    os.kill(worker, signal.SIGCONT)
    process.send(signal.SIGINT)
    assert process.wait() == 128 + signal.SIGINT


@pytest.mark.parametrize("run", ["lab", "round_robin", "even"])
def test_a_run_of_the_lab_holds_on_each_ps_what_the_pages_say(launcher, mnist_dir, run):
    page, teaching = ((PROJECT / "docs" / name).read_text() for name in ("lab.md", "teaching.md"))
    flags = re.search(rf"^\./run_local_cluster\.sh (.*) --train_dir=runs/{run}$", page, re.MULTILINE)[1]
    process = launcher.start(*flags.split(), "--train_steps=200", f"--data_dir={mnist_dir}")
    if run == "lab":
        listed = re.search(r"^ps -eo .*?(?=    #)", page, re.MULTILINE)[0]
        poll_for(lambda: {"ps-0", "worker-0", "worker-1"} <= {*_names_listed_by(listed)}, "tasks that ps lists")
    assert process.wait() == 0, process.output()
    held = re.findall(r"worker 0: ps \d holds .* (\d+) bytes", launcher.log("worker-0"))
    quoted = {"lab": re.search(r"^worker 0: ps 0 holds 13 variables, (\d+) bytes$", page, re.MULTILINE).groups()}
    for name, start in {"round_robin": "in turn", "even": "even"}.items():
        line = re.search(rf"^\| 7 \| {start}: (.*) and (.*) bytes", teaching, re.MULTILINE)
        quoted[name] = tuple(number.replace(" ", "") for number in line.groups())
    assert tuple(held) == quoted[run]


def _names_listed_by(command):
    """Return the second word of each line that a command of a page prints."""
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    return [line.split()[1] for line in found.stdout.splitlines()]


@pytest.mark.promises("replaced-folder")
def test_a_run_leaves_its_folder_alone_once_another_run_has_it(tmp_path, mnist_dir):
    flags = [f"--data_dir={mnist_dir}", "--workers=1", "--log_every_secs=0.1", "--recovery_timeout_secs=5"]
    command, link = [str(PROJECT / "run_local_cluster.sh"), *flags], tmp_path / "latest"
    other = Process([*command, f"--train_dir={tmp_path}/other", "--train_steps=100"], tmp_path / "log_of_other")
    assert other.wait() == 0, other.output()
    before = {path: path.read_bytes() for path in (tmp_path / "other").rglob("*") if path.is_file()}
    (tmp_path / "own").mkdir()
    link.symlink_to("own")
    run = Process([*command, f"--train_dir={link}", "--train_steps=5000"], tmp_path / "log_of_run")
    run.wait_for_output(r"global step \d+/5000")
    link.unlink()
    link.symlink_to("other")
    assert run.wait() == 2
    assert f"--train_dir {link} now has the model of another run: move that somewhere else" in run.output()
    assert "finished at global step 5000" in run.output()
    assert "/100" not in run.output()
    assert {path: path.read_bytes() for path in (tmp_path / "other").rglob("*") if path.is_file()} == before


def test_help_says_how_to_use_it(launcher):
    run = launcher.start("--help")
    assert run.wait() == 0
    lines = run.output().splitlines()
    assert lines[0] == "Train on a cluster of processes on this machine:"
    assert "--max_restarts N" in lines[2]
    assert "--locked installs exactly the versions in requirements.lock" in " ".join(run.output().split())
    assert lines[-1].endswith("for as long as this script runs.")


def test_the_flags_are_listed_on_demand(launcher):
    run = launcher.start("--helpfull")
    assert run.wait() == 0
    assert "--train_steps: global step at which training ends" in run.output()


def test_the_path_of_the_python_may_have_a_space_and_what_is_set_for_another_one_does_not_count(launcher, tmp_path):
    python = tmp_path / "my python"
    python.symlink_to(sys.executable)
    run = launcher.start("--batch_size=0", env={"PYTHON": str(python), "PYTHONHOME": "/nowhere", "PYTHONINSPECT": "1"})
    assert run.wait() == 2
    assert "error: flag --batch_size=0: 0 is not a positive integer" in run.output()


class Disk:
    """A launcher on a small disk of its own."""

    def __init__(self, folder, train_dir, size, *arguments):
        self.listing = folder / "listing"
        self._train_dir = train_dir
        train_dir.mkdir()
        run = f'"$@"; status=$?; ls -a {train_dir} >{self.listing}; exit $status'
        launcher = [str(PROJECT / "run_local_cluster.sh"), f"--train_dir={train_dir}", *arguments]
        command = [*full_disk(train_dir, size), "sh", "-c", run, "sh", *launcher]
        self.run = Process(command, folder / "launcher", cwd=folder)

    def fill(self):
        """Leave no byte of space."""
        self._run(f"cat /dev/zero >{self._train_dir}/filler 2>/dev/null; test -s {self._train_dir}/filler")

    def make_room(self):
        self._run(f"rm {self._train_dir}/filler")

    def _run(self, command):
        enter = ["nsenter", f"--target={self.run.pid}", "--user", "--mount", "--preserve-credentials"]
        subprocess.run([*enter, "sh", "-c", command], check=True)


@NEEDS_PRIVATE_MOUNTS
def test_a_disk_that_is_full_at_the_start_is_refused(tmp_path, black_and_white_dir):
    disk = Disk(tmp_path, tmp_path / "train", "64k", f"--data_dir={black_and_white_dir}")
    assert disk.run.wait() == 2
    assert f"error: no checkpoint can be written to --train_dir {tmp_path}/train" in disk.run.output()
    assert "_temp" not in disk.listing.read_text()


@NEEDS_PRIVATE_MOUNTS
@pytest.mark.parametrize(("recovery_timeout_secs", "status"), [(8, 2), (300, 0)])  # a busy ps is silent for a second
def test_a_disk_that_is_full_at_the_end_is_waited_for_before_the_only_copy_of_the_model_goes(
    tmp_path, black_and_white_dir, recovery_timeout_secs, status
):
    flags = ["--train_steps=5000", "--log_every_secs=0.1", f"--data_dir={black_and_white_dir}"]
    timeout = f"--recovery_timeout_secs={recovery_timeout_secs}"
    disk = Disk(tmp_path, tmp_path / "train", "30m", *flags, timeout)
    disk.run.wait_for_output(r"global step \d+/5000")
    disk.fill()
    disk.run.wait_for_output("waiting for the result to be saved")
    if status == 0:
        disk.make_room()
    assert disk.run.wait() == status
    output = disk.run.output()
    assert "test accuracy 1.0000" in output
    assert "no checkpoint could be written" in output
    assert f"{tmp_path}/train/result.json could not be written: No space left on device" in output
    output, _, end = output.partition("; stopped all tasks. Last lines of ")
    assert ("error: worker 0 waited" in end) == (status == 2), "though its log could not take the line"
    if status == 2:  # else the room may have come between two of the things that are saved: then the reason changes
        assert output.count("waiting for the result to be saved") == 1, (
            "each reason is said once, however often it is tried again"
        )
    assert "starting it again" not in output
    listing = disk.listing.read_text()
    assert "_temp" not in listing
    assert ("result.json" in listing) == bool(re.search(r"model\.ckpt-5\d\d\d\.index", listing)) == (status == 0)


@pytest.mark.parametrize("command", [command for command, how in EXERCISED.items() if how is LAUNCHED])
def test_each_command_of_the_pages_that_only_trains_runs(launcher, mnist_dir, tmp_path, command):
    steps = 1100 if "--profile_steps" in command else 200
    data_dir = mnist_dir
    if "tfrecord" in command:
        data_dir = str(tmp_path / "tfrecord")
        convert.convert(mnist_input.load, mnist_input.FEATURES, mnist_dir, data_dir, 16)
    last = [f"--data_dir={data_dir}", f"--train_dir={launcher.train_dir}", f"--train_steps={steps}"]
    run = launcher.start(*command.split()[1:], *last)
    assert run.wait() == 0, run.output()
    assert json.loads((launcher.train_dir / "result.json").read_text())["global_step"] >= steps
