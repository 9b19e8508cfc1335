"""`python runtime/launch ARGUMENT...`, as `run_local_cluster.sh` calls it, runs a cluster on this machine.

It gets the machine ready, and starts itself again in a private network. There it imports TensorFlow once, and forks a
process for each task: so twenty start as soon as one. Only the tasks import the user's files, each for itself, since
what these make meanwhile, such as random numbers, threads or the runtime of TensorFlow, cannot be forked.
"""

import signal

# Ctrl-C ends this process at once, without the traceback of an import, until there is something to end in order.
is_interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell may ignore it
if is_interruptible:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import contextlib
import datetime
import importlib
import logging
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import NoReturn

LAUNCH = pathlib.Path(__file__).parent
sys.path[0] = str(LAUNCH.parents[1])
importlib.import_module("runtime")
del sys.path[0]  # so nobody's file beside distributed.py takes the place of a module of Python's, until it is told

from runtime.data import download
from runtime.launch.options import HELP, PROJECT, Options, parse, refuse, say
from runtime.launch.supervisor import Supervisor
from runtime.launch.tasks import fork
from runtime.model import user_dir
from runtime.process import limits
from runtime.process.end import end_process, end_with_parent
from runtime.records.folder import RunFolder, why_misread

SCRIPT = "distributed"  # the module that each task runs
# What the tasks get of `runtime/`, already imported.
SHARED = ("process.environment", "roles.flags", "roles.member", "roles.training")
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
# Settings of Linux with the values that forbid users other than root a private network, and that allow it.
NAMESPACES = {
    "kernel/apparmor_restrict_unprivileged_userns": ("1", "0"),  # Ubuntu, from 24.04 on
    "kernel/unprivileged_userns_clone": ("0", "1"),  # Debian
    "user/max_user_namespaces": ("0", "10000"),
}
# Fetches the examples of a user into the folder $2, with the flags that follow; this project is in $1.
FETCH = """
import os, sys
sys.path[0], folder = sys.argv.pop(1), sys.argv.pop(1)
errors = os.dup(2)
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # where TensorFlow's libraries write while they are loaded
try:
    from runtime.process import environment
    from runtime.model import users_files
finally:
    os.dup2(errors, 2)
import distributed

def fetch():
    if hasattr(distributed.FILES.reader, "fetch"):
        users_files.call(distributed.FILES.reader, "fetch", folder)

distributed.program.start(fetch)
"""
# Ways to a private network: that of root; and that of any user, who becomes root of a namespace for it, and then gives
# up the right to write into read-only folders.
WAYS = (
    (["unshare", "--net"], 'ip link set lo up && exec "$0" "$@"'),
    (
        ["unshare", "--user", "--map-root-user", "--net"],
        'ip link set lo up && exec setpriv --bounding-set=-all "$0" "$@"',
    ),
)


REMINDER_SECS = 10.0


def main() -> None:
    """Get ready, start again in a private network, and run the cluster there."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # no file of ours may take the number of a closed output
        os.set_inheritable(descriptor, True)
    if sys.argv[1:2] == [READY]:
        del sys.argv[1]
        run_cluster(parse(sys.argv[1:]))
    if is_interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # it waits for who fetches
    try:
        get_ready(parse(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def get_ready(options: Options) -> NoReturn:
    """Fetch the data, start TensorBoard, and become the second half, in a private network where there can be one."""
    if asked := list(filter(HELP.match, options.flags)):
        files = f"--user_dir={user_dir.find()}"  # whose flags are shown, too
        subprocess.run([sys.executable, str(PROJECT / "distributed.py"), files, *asked])
        sys.exit()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    os.environ.setdefault("HOME", os.path.expanduser("~"))  # a private network has another user
    os.environ.setdefault("PYTHONHASHSEED", "0")  # as distributed.py sets it, for the second half and what it forks
    if why := limits.why_too_low(options.ps + options.workers):
        refuse(why)
    fetch(options)
    if options.prepare:
        sys.exit()
    arguments, train_dir = sys.argv[1:], options.train_dir
    if not train_dir:
        name = f"{datetime.datetime.now():%Y-%m-%d_%H-%M-%S}_{os.getpid()}"  # another launcher may be as fast
        train_dir = os.path.relpath(PROJECT / "runs" / name)
        arguments.insert(0, f"--train_dir={train_dir}")
        if why := why_misread(os.path.abspath(train_dir)):
            refuse(f"the folder of this run, {train_dir}, {why}, with --train_dir")
    if options.tensorboard:
        start_tensorboard(train_dir, options)
    command = [sys.executable, str(LAUNCH), READY, *arguments]
    if not options.no_isolation:
        command = isolate(command)
    os.execvp(command[0], command)


def fetch(options: Options) -> None:
    """Fill the folder of the examples as the user's mnist_input.py does, in a process of its own, if it may be filled.

    The tasks could not: a private network leads nowhere.
    """
    folder = user_dir.find()
    if why := user_dir.why_unusable(folder):
        refuse(why)
    content = pathlib.Path(folder, "mnist_input.py").read_bytes()
    # A look at the text, without TensorFlow: it is defined, assigned or imported there.
    if re.search(rb"^(def |from .*|\s*)\bfetch\b", content, re.MULTILINE) and download.may_fetch(options.data_dir):
        logging.info("fetching the examples into %s", options.data_dir)
        command = [sys.executable, "-c", FETCH, str(PROJECT), os.path.abspath(options.data_dir), *options.task_flags]
        if code := subprocess.run(command).returncode:
            end_as(code, "fetching the examples")


def end_as(code: int, what: str) -> NoReturn:
    """End as a process has ended, by its exit code, that was busy with `what`."""
    if code < 0:
        print(f"error: {signal.Signals(-code).name} ended {what}", file=sys.stderr)
    sys.exit(code if code > 0 else 128 - code)


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
    os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"  # where ip is, for others than root
    why = "it takes unshare, ip and setpriv"
    for unshare, script in WAYS[os.geteuid() != 0 :]:
        with contextlib.suppress(FileNotFoundError):
            done = subprocess.run([*unshare, "sh", "-c", script, "true"], capture_output=True, text=True)
            if not done.returncode:
                return [*unshare, "sh", "-c", script, *command]
            why = " ".join(done.stderr.split())
    for name, (forbids, allows) in NAMESPACES.items():
        with contextlib.suppress(OSError), open(f"/proc/sys/{name}") as file:
            if file.read().strip() == forbids:
                why += f"; sudo sysctl {name.replace('/', '.')}={allows} allows it"
    risk = "other accounts, and other machines that reach its ports, can use the cluster"
    say(f"no private network here ({why}): {risk}")
    return command


def run_cluster(options: Options) -> NoReturn:
    """Check the flags, make the folder, run the cluster in it, and end this process when all tasks have ended."""
    say("loading TensorFlow")
    with silence():
        for module in SHARED:
            importlib.import_module(f"runtime.{module}")
    predicts = try_script(options.task_flags)
    options = options._replace(train_dir=os.path.abspath(options.train_dir))
    try:
        os.makedirs(options.folder.logs, exist_ok=True)
    except OSError as error:
        refuse(f"--train_dir {error.filename} cannot be written: {error.strerror}")
    try:
        supervisor = Supervisor(options, run_script, predicts)
    except BlockingIOError:
        remedy = "wait until all its processes have ended, or give another folder"
        refuse(f"--train_dir {options.train_dir} is in use by another run: {remedy}")
    sys.exit(supervisor.run())


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Leave out what TensorFlow's libraries write to standard error while they are loaded."""
    standard_error = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(standard_error, 2)
        os.close(standard_error)


def try_script(arguments: Sequence[str]) -> str:
    """Import the script and parse its flags, in a process that ends after that, so that a mistake is reported once.

    Returns:
      `PREDICTS` of the user's mnist_input.py, or "".
    """
    reader, writer = fork.Pipe(duplex=False)

    def try_it() -> None:
        end_with_parent()
        sys.argv = [f"{SCRIPT}.py", *arguments]
        script = import_script()
        script.program.parse_flags(sys.argv)
        writer.send(getattr(script.FILES.reader, "PREDICTS", ""))
        with contextlib.suppress(OSError):  # there may be no reader
            sys.stdout.flush()
        end_process(0)  # whatever threads the user's files have started

    process = fork.Process(target=try_it)
    process.start()
    while process.is_alive():
        process.join(REMINDER_SECS)
        if process.is_alive():
            say("still importing model.py and mnist_input.py")
    if process.exitcode:
        end_as(process.exitcode, f"the import of {SCRIPT}.py")
    return str(reader.recv()) if reader.poll() else sys.exit()  # it has shown the version


def import_script() -> ModuleType:
    """Import the script, and with it the user's files, as a process of its own does."""
    if numbers := sys.modules.get("numpy.random"):
        numbers.seed()  # all tasks have a copy of one state
    sys.path.insert(0, str(PROJECT))
    return importlib.import_module(SCRIPT)


def run_script() -> None:
    """Do what the script does when Python runs it."""
    script = import_script()
    script.program.start(script.main)


if __name__ == "__main__":
    main()
