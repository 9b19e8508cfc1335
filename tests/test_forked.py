"""A process that is forked from one that has imported TensorFlow is like one that has been started."""

import signal
import subprocess
import sys

import psutil
import pytest

from benchmarks.testbed.processes import PROJECT, Process, poll_for
from tests import forked

SHOW = """
import os, resource, signal, sys
names = ["SIGCHLD", "SIGHUP", "SIGINT", "SIGPIPE", "SIGTERM"]
handlers = [str(signal.getsignal(getattr(signal, name))) for name in names]
print(sys.argv, sys.path[0], os.getcwd(), os.getpgid(0), os.environ.get("GIVEN"), sys.stdin.read())
print(handlers, signal.pthread_sigmask(signal.SIG_BLOCK, []), sys.stdin.fileno(), os.nice(0))
print([os.readlink(f"/proc/self/fd/{n}") for n in range(20) if os.path.exists(f"/proc/self/fd/{n}")])
print(sys.stdout.encoding, sys.stdout.line_buffering, sys.stdin.isatty(), resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_it_has_what_a_started_one_has(tmp_path):
    (tmp_path / "show.py").write_text(SHOW)
    outputs = []
    for popen in (subprocess.Popen, forked.Popen):
        for arguments in (["-c", SHOW, "first"], ["show.py", "--flag"], ["-m", "show", "last"]):
            output = tmp_path / f"{popen.__module__}{arguments[0]}"
            process = Process([sys.executable, *arguments], output, {"GIVEN": "1"}, tmp_path, popen)
            assert process.wait() == 0, process.output()
            outputs.append(process.output().replace(str(output), "output"))
    assert outputs[:3] == outputs[3:]


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("import os; os._exit(4)", 4, ""),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
        ("import signal, threading; signal.raise_signal(15)", -signal.SIGTERM, ""),
    ],
)
def test_it_ends_as_a_started_one_does(code, status, error):
    process = forked.run("-c", code)
    assert process.returncode == status
    assert process.stderr.endswith(error) if error else not process.stderr


def test_each_server_can_be_told_from_the_others():
    code = "import tensorflow.compat.v1 as tf; server = tf.train.Server.create_local_server(); "
    code += "print([device.incarnation for device in tf.Session(server.target).list_devices()])"
    assert forked.run("-c", code).stdout != forked.run("-c", code).stdout


ASK = """
import signal, sys
from tests import forked
with open(sys.argv[1], "ab") as file:
    print(forked.Popen([sys.executable, "-c", "import time; time.sleep(600)"], file).pid, flush=True)
signal.pause()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process outlives its parent")
def test_it_ends_with_the_process_that_asked_for_it(tmp_path):
    asker = Process([sys.executable, "-c", ASK, str(tmp_path / "output")], tmp_path / "asker", cwd=PROJECT)
    child = psutil.Process(int(asker.wait_for_output(r"(\d+)\n")[1]))
    asker.kill()
    poll_for(lambda: not child.is_running(), "end of the child")
