"""Python programs that need not import TensorFlow: each is forked from a process that has imported it.

That process starts with the first of them, and ends with this one, in whatever way. Its children end with it.
"""

import atexit
import ctypes
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile

from benchmarks.testbed.processes import PROJECT

_SIGNAL_AT_END_OF_PARENT = 1  # PR_SET_PDEATHSIG, for Linux' prctl()
_libc = ctypes.CDLL(None, use_errno=True)

# Every child imports what multiprocessing takes for the main module, which is pytest.
_CONTEXT = multiprocessing.get_context("forkserver")
_modules = sorted(name for name in sys.modules if name.partition(".")[0] == "runtime")
_CONTEXT.set_forkserver_preload(["runtime.process.environment", *_modules, "pytest", __name__])


@atexit.register
def _kill_children():
    """Let multiprocessing wait for none at the end of this process, such as one that SIGSTOP has stopped."""
    for child in multiprocessing.active_children():
        child.kill()


class Popen:
    """What `subprocess.Popen` is, for `[sys.executable, ...]` with its output in files, and no input.

    It may run in the user and network namespaces of another process.
    """

    def __init__(
        self,
        arguments,
        stdout,
        stderr=subprocess.STDOUT,
        env=None,
        cwd=None,
        stdin=subprocess.DEVNULL,
        namespaces_of=None,
    ):
        assert arguments[0] == sys.executable, arguments
        assert stdin == subprocess.DEVNULL
        outputs = [stdout.name, stdout.name if stderr == subprocess.STDOUT else stderr.name]
        # Nobody need start Python again for a hash seed, as distributed.py does without one.
        environment = {"PYTHONHASHSEED": "0", **(os.environ if env is None else env)}
        arguments = (list(map(str, arguments[1:])), outputs, environment, cwd or os.getcwd(), namespaces_of)
        self._process = _CONTEXT.Process(target=_become, args=arguments, daemon=True)
        self._process.start()
        self.pid = self._process.pid

    def poll(self):
        return self._process.exitcode

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(str(self._process), timeout)
        return self.poll()

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def run(*arguments, timeout_secs=300):
    """Run Python with these arguments in the project's folder, and return its status and what it wrote."""
    with tempfile.NamedTemporaryFile("r") as stdout, tempfile.NamedTemporaryFile("r") as stderr:
        process = Popen([sys.executable, *arguments], stdout, stderr, cwd=PROJECT)
        try:
            status = process.wait(timeout_secs)
        finally:
            process.kill()
        return subprocess.CompletedProcess(arguments, status, stdout.read(), stderr.read())


def check_end(script, status, message):
    """Run a script that must end with this status, and with this line of an error, or none."""
    process = run("-c", script)
    assert process.returncode == status
    errors = [line for line in process.stderr.splitlines(keepends=True) if line.startswith("error: ")]
    assert errors == ([message] if message else [])
    assert "Traceback" not in process.stderr


def _become(arguments, outputs, environment, cwd, namespaces_of):
    """Be the process that `python ARGUMENTS` would be: this one was forked for it."""
    if namespaces_of:
        for namespace in [os.open(f"/proc/{namespaces_of}/ns/{name}", os.O_RDONLY) for name in ("user", "net")]:
            if _libc.setns(namespace, 0):
                raise OSError(ctypes.get_errno(), "setns() failed")
    if sys.platform == "linux":  # after that, which would undo it
        _libc.prctl(_SIGNAL_AT_END_OF_PARENT, signal.SIGKILL)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    os.closerange(0, os.sysconf("SC_OPEN_MAX"))  # one of these files would keep the server of forks alive
    for path, flags in zip([os.devnull, *outputs], [os.O_RDONLY, *2 * [os.O_WRONLY | os.O_APPEND]], strict=True):
        os.set_inheritable(os.open(path, flags), True)
    sys.stdin = open(0)
    sys.path = [path for path in sys.path if path not in ("", str(PROJECT))]
    _run_python(*arguments)


def _run_python(first, *others):
    """Do what `python` does with these arguments."""
    if first == "-c":
        path, run = "", lambda: exec(compile(others[0], "<string>", "exec"), {"__name__": "__main__"})
    elif first == "-m":
        path, run = os.getcwd(), lambda: runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    else:
        path, run = os.path.dirname(os.path.abspath(first)), lambda: runpy.run_path(first, run_name="__main__")
    sys.path.insert(0, path)
    sys.argv = [first, *others[first in ("-c", "-m") :]]
    run()
