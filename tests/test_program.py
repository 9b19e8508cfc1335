"""How the program ends: a status, and one line for whatever went wrong."""

import contextlib
import fcntl
import os
import pathlib
import signal
import socket
import subprocess
import sys

import psutil
import pytest

from benchmarks.testbed.processes import DEADLINE_SECS, PROJECT, poll_for
from tests import forked
from tests.full_disk import NEEDS_PRIVATE_MOUNTS

CONTAINER = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
RUN = """
from runtime.process import environment
from runtime.roles import program
from runtime.process.errors import UNUSABLE, AwayError, UnsavedError, UnusableError

UNUSABLE.append(KeyError)  # as a user's DataError is

def main():
    {statement}

program.start(main)
"""


@pytest.mark.slow
@pytest.mark.promises("ps-lost-in-test", "unwritable-result", "status-1", "status-2")
@pytest.mark.parametrize(
    ("statement", "status", "message"),
    [
        ("print('well')", 0, ""),
        ("raise UnusableError('a bad flag')", 2, "error: a bad flag\n"),
        ("raise KeyError('a bad file')", 2, "error: 'a bad file'\n"),
        ("raise AwayError('waited')", 1, "error: waited\n"),
        ("raise TimeoutError('timed out')", 1, "error: TimeoutError: timed out; start this task again\n"),
        ("raise UnsavedError('a full disk')", 2, "error: a full disk\n"),
        (
            "import tensorflow as tf; raise tf.errors.UnavailableError(None, None, 'a ps is gone')",
            1,
            "error: UnavailableError: a ps is gone; start this task again\n",
        ),
        ("1 / 0", 1, "error: ZeroDivisionError: division by zero; start this task again\n"),
        ("raise SystemExit", 1, "error: SystemExit; start this task again\n"),
        ("raise UnusableError('two\\nlines')", 2, "error: two lines\n"),
    ],
)
def test_every_end_has_its_status_and_one_line_at_most(statement, status, message):
    forked.check_end(RUN.format(statement=statement), status, message)


TASK = ["distributed.py", "--job_name=ps", "--task_index=0"]


@pytest.mark.parametrize(
    ("before", "script", "number", "status"),
    [
        pytest.param([], TASK, signal.SIGINT, -signal.SIGINT, id="ctrl-c"),
        pytest.param([], ["examples/convert.py", "--shards=2"], signal.SIGINT, -signal.SIGINT, id="convert"),
        pytest.param(CONTAINER, TASK, signal.SIGTERM, 128 + signal.SIGTERM, id="process 1", marks=NEEDS_PRIVATE_MOUNTS),
    ],
)
def test_a_signal_while_tensorflow_is_imported_ends_a_process_without_a_traceback(before, script, number, status):
    command = [*before, sys.executable, *script]
    with subprocess.Popen(command, cwd=PROJECT, stderr=subprocess.PIPE, text=True) as process:
        tasks = poll_for(psutil.Process(process.pid).children, "process 1") if before else [psutil.Process(process.pid)]
        maps = pathlib.Path(f"/proc/{tasks[0].pid}/maps")
        poll_for(lambda: "libtensorflow" in maps.read_text(), "the import of TensorFlow")
        tasks[0].send_signal(number)
        assert "Traceback" not in process.stderr.read()
    assert process.returncode == status


@pytest.mark.slow
def test_a_task_ends_though_its_events_cannot_be_written_and_says_so(tmp_path):
    """A lock that is never released stands for a file server that does not answer."""
    (tmp_path / "events").mkdir()
    code = "import sys; from runtime.process import end as process; from runtime.records import events, folder;"
    code += " events.start_recording('ps 0', folder.RunFolder(sys.argv[1]));"
    code += " [events.record('lost') for _ in range(2000)]; process.end_process(3, 'why')"
    with open(tmp_path / "events" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = forked.run("-c", code, tmp_path)
    assert done.returncode == 3
    remedy = f"check that {tmp_path} responds, has space, and lets this user write"
    assert done.stderr == f"2002 of the records of this task are missing: {remedy}\nerror: why\n"


@pytest.mark.slow
def test_a_task_may_open_as_many_files_as_the_system_allows():
    print_limits = "import resource; print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    command = ["sh", "-c", 'ulimit -S -n 256; exec "$@"', "sh", sys.executable, "-c"]
    process = subprocess.run(
        [*command, RUN.format(statement=print_limits)], cwd=PROJECT, capture_output=True, text=True
    )
    soft, hard = process.stdout.split()
    assert soft == hard


def test_no_signal_is_lost_while_a_task_begins_to_listen():
    script = """
import os, signal, time
from runtime.process import environment
from runtime.cluster import signals

install = signal.signal

def install_and_signal(number, handler):
    install(number, handler)
    if number == signal.SIGTERM:
        os.kill(os.getpid(), number)

signal.signal = install_and_signal
signals.start_listening()
time.sleep(60)
"""
    assert forked.run("-c", script).returncode == 128 + signal.SIGTERM


@contextlib.contextmanager
def start_task(body):
    """Start a process that listens to signals as a task does, and end it and its children after that."""
    begin = "import multiprocessing, os, signal, time; from runtime.cluster import signals; signals.start_listening()\n"
    command, options = [sys.executable, "-c", begin + body], {"cwd": PROJECT, "start_new_session": True}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options) as task:
        try:
            yield task
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(task.pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_signal_to_a_child_that_a_task_has_forked_ends_the_child_and_not_the_task():
    """As the end of each `multiprocessing.Pool`; in its first moment, too."""
    body = """
with multiprocessing.Pool(2) as pool:
    pool.map(abs, range(9))
children = [multiprocessing.Process(target=time.sleep, args=(600,)) for _ in range(20)]
for child in children:
    child.start()
    child.terminate()
for child in children:
    child.join(60)
print({child.exitcode for child in children})
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(600)
"""
    with start_task(body) as task:
        assert task.stdout.readline() == "{-15}\n"
        assert task.wait(DEADLINE_SECS) == 128 + signal.SIGTERM


@pytest.mark.slow
def test_a_signal_that_a_users_file_handles_is_left_to_it():
    body = """
signal.signal(signal.SIGALRM, lambda *_: print("handled", flush=True))
signal.raise_signal(signal.SIGALRM)
signals.listen(lambda number: signals.Stop(60, lambda: ""))
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(1.5)
signal.raise_signal(signal.SIGALRM)
print("stopping in order", flush=True)
time.sleep(600)
"""
    with start_task(body) as task:
        assert [task.stdout.readline() for _ in range(3)] == ["handled\n", "handled\n", "stopping in order\n"]
        task.send_signal(signal.SIGTERM)
        assert task.wait(DEADLINE_SECS) == 128 + signal.SIGTERM


@pytest.mark.slow
def test_what_a_task_forks_while_it_asks_others_neither_hangs_nor_crashes():
    """As a `multiprocessing.Pool` in load(), while a thread looks who is there."""
    body = """
import threading
import tensorflow.compat.v1 as tf
from runtime.cluster import status
from runtime.launch.ports import choose_ports
address = f"localhost:{choose_ports(1)[0]}"
server = tf.train.Server({"ps": [address]}, "ps", 0)

def ask():
    while True:
        status.ask(address)

threading.Thread(target=ask, daemon=True).start()
children = []
for _ in range(100):
    children.append(multiprocessing.Process(target=time.sleep, args=(0.05,)))
    children[-1].start()
for child in children:
    child.join(60)
print({child.exitcode for child in children}, flush=True)
"""
    with start_task(f"from runtime.process import environment\n{body}") as task:
        assert task.stdout.readline() == "{0}\n"


def is_alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_child_that_a_task_has_forked_ends_with_it_and_leaves_its_port(number):
    body = """
import socket
server = socket.create_server(("127.0.0.1", 0))
child = multiprocessing.Process(target=time.sleep, args=(600,))
child.start()
print(child.pid, server.getsockname()[1], flush=True)
time.sleep(600)
"""
    with start_task(body) as task:
        child, port = map(int, task.stdout.readline().split())
        task.send_signal(number)
        poll_for(lambda: not is_alive(child), "end of the child")
    with socket.create_server(("127.0.0.1", port)):
        pass


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [["examples/convert.py", "-h"], ["examples/digits/predict.py", "-h"], ["distributed.py", "--version"]]
)
def test_a_script_finds_its_modules_where_python_does_not_look_for_them(arguments):
    """As with -P or PYTHONSAFEPATH, too."""
    done = subprocess.run([sys.executable, "-I", *arguments], cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
