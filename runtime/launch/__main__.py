"""`python runtime/launch ARGUMENT...`, as `run_local_cluster.sh` calls it, runs a cluster on this machine.

It gets the machine ready, and starts itself again in a private network. There it imports TensorFlow once, and forks a
process for each task: so twenty start as soon as one.
"""

import signal

# Ctrl-C ends this process at once, without the traceback of an import, until there is something to end in order.
is_interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell may ignore it
if is_interruptible:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import contextlib
import datetime
import functools
import importlib
import logging
import os
import pathlib
import re
import subprocess
import sys
from types import ModuleType
from typing import NoReturn

LAUNCH = pathlib.Path(__file__).parent
sys.path[0] = str(LAUNCH.parents[1])

from runtime.data import download
from runtime.folder import RunFolder
from runtime.launch.options import HELP, PROJECT, Options, parse, refuse, say
from runtime.launch.supervisor import Supervisor

SCRIPT = "distributed"  # the module that each task runs
READY = "--ready"  # the first argument of the second half
# Shows the run in folder $1 until process $0 has ended, which makes the folder $2 when it has checked its flags.
SHOW_TENSORBOARD = """
until [ -d "$2" ]; do
  kill -0 "$0" || exit
  sleep 0.5
done
exec >>"$2/tensorboard.log" 2>&1
"$3" -m tensorboard.main --logdir "$1" --host localhost --reload_interval 2 &
while kill -0 "$0"; do sleep 0.5; done
kill $!
"""
# Fetches the examples of a user into the folder $1.
FETCH = """
import sys
from runtime import environment
import mnist_input
try:
    mnist_input.fetch(sys.argv[1])
except mnist_input.DataError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
"""
UNSHARE = ["unshare", "--user", "--map-root-user", "--net"]


def main() -> None:
    """Get ready, start again in a private network, and run the cluster there."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # no file of ours may take the number of a closed output
        os.set_inheritable(descriptor, True)
    if sys.argv[1:2] == [READY]:
        del sys.argv[1]
        run_cluster(parse(sys.argv[1:]))
    if is_interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # what is fetched is cleared away
    try:
        get_ready(parse(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def get_ready(options: Options) -> NoReturn:
    """Fetch the data, start TensorBoard, and become the second half, in a private network where there can be one."""
    if asked := list(filter(HELP.match, options.flags)):
        subprocess.run([sys.executable, str(PROJECT / "distributed.py"), *asked])
        sys.exit()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        fetch(options.data_dir)
    except download.DownloadError as error:
        refuse(str(error))
    arguments, train_dir = sys.argv[1:], options.train_dir
    if not train_dir:
        name = f"{datetime.datetime.now():%Y-%m-%d_%H-%M-%S}_{os.getpid()}"  # another launcher may be as fast
        train_dir = os.path.relpath(PROJECT / "runs" / name)
        arguments.insert(0, f"--train_dir={train_dir}")
    if options.tensorboard:
        start_tensorboard(train_dir, options)
    command = [sys.executable, str(LAUNCH), READY, *arguments]
    if not options.no_isolation:
        command = isolate(command)
    os.execvp(command[0], command)


def fetch(data_dir: str) -> None:
    """Fetch MNIST; or fill an empty folder as the user's mnist_input.py does, in a process that imports TensorFlow.

    The tasks could not: a private network leads nowhere.
    """
    if not re.search(r"^def fetch\(", (PROJECT / "mnist_input.py").read_text(), re.MULTILINE):
        download.fetch(data_dir)
    elif not os.path.isdir(data_dir) or not os.listdir(data_dir):
        logging.info("fetching the examples into %s", data_dir)
        command = [sys.executable, "-c", FETCH, os.path.abspath(data_dir)]
        if status := subprocess.run(command, cwd=PROJECT).returncode:
            sys.exit(status)


def start_tensorboard(train_dir: str, options: Options) -> None:
    """Start TensorBoard, which only reads files, outside of the cluster's network, where a browser finds it."""
    install = [str(LAUNCH / "venv.sh"), *["--locked"] * options.locked, "runtime/launch/tensorboard.txt"]
    if subprocess.run(install, stdout=subprocess.DEVNULL).returncode:
        say("TensorBoard cannot be installed: this run goes on without")
        return
    arguments = [str(os.getpid()), train_dir, RunFolder(train_dir).logs, sys.executable]
    command = ["sh", "-c", SHOW_TENSORBOARD, *arguments]
    subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def isolate(command: list[str]) -> list[str]:
    """Return what runs `command` in a network that has nothing except a loopback interface of its own.

    A server of TensorFlow listens on every interface and runs whatever it is sent.
    """
    os.environ["PATH"] += ":/usr/sbin:/sbin"  # where ip is, for users other than root
    with contextlib.suppress(FileNotFoundError):
        if not subprocess.run([*UNSHARE, "ip", "link", "set", "lo", "up"], capture_output=True).returncode:
            return [*UNSHARE, "sh", "-c", 'ip link set lo up && exec "$0" "$@"', *command]
    why = "no private network here (it takes unshare and ip)"
    say(f"{why}: whoever reaches this machine's ports can use the cluster")
    return command


def run_cluster(options: Options) -> NoReturn:
    """Check the flags, make the folder, run the cluster in it, and end this process when all tasks have ended."""
    say("loading TensorFlow")
    script = import_quietly(SCRIPT)
    script.program.parse_flags([SCRIPT, *options.task_flags])  # each task parses its own, too
    options = options._replace(train_dir=os.path.abspath(options.train_dir))
    try:
        os.makedirs(options.folder.logs, exist_ok=True)
    except OSError as error:
        refuse(f"--train_dir {options.train_dir} cannot be written: {error.strerror}")
    run_task = functools.partial(script.program.start, script.main, script.mnist_input.DataError)
    try:
        supervisor = Supervisor(options, run_task, getattr(script.mnist_input, "PREDICTS", ""))
    except BlockingIOError:
        remedy = "wait until all its processes have ended, or give another folder"
        refuse(f"--train_dir {options.train_dir} is in use by another run: {remedy}")
    sys.exit(supervisor.run())


def import_quietly(name: str) -> ModuleType:
    """Import a module, without the lines that TensorFlow's libraries write to standard error while they are loaded."""
    standard_error = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        return importlib.import_module(name)
    except SystemExit as error:  # a user's file ends the program while it is imported: nobody else would say so
        os.dup2(standard_error, 2)
        sys.excepthook(SystemExit, error, error.__traceback__)
        raise
    finally:
        os.dup2(standard_error, 2)
        os.close(standard_error)


if __name__ == "__main__":
    main()
