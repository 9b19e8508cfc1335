"""The first half of the launcher: get this machine ready, and become the second half, which runs the cluster.

`run_local_cluster.sh` calls it as `python runtime/launch ARGUMENT...`, in a Python that has the packages.
"""

import signal

# Ctrl-C ends this process without the traceback of an import.
is_interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell may ignore it
if is_interruptible:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import contextlib
import datetime
import logging
import os
import pathlib
import subprocess
import sys

LAUNCH = pathlib.Path(__file__).parent
PROJECT = LAUNCH.parents[1]
sys.path[0] = str(PROJECT)

from runtime.data import download
from runtime.launch.options import HELP, Options, parse, refuse, say

UNSHARE = ["unshare", "--user", "--map-root-user", "--net"]


def main() -> None:
    """Fetch the data, start TensorBoard, make the private network, and run the cluster there."""
    open_standard_files()
    options = parse(sys.argv[1:])
    if asked := list(filter(HELP.match, options.flags)):
        subprocess.run([sys.executable, str(PROJECT / "distributed.py"), *asked])
        return
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        download.fetch(options.data_dir, show_progress=sys.stderr.isatty())
    except download.DownloadError as error:
        refuse(str(error))
    arguments, train_dir = sys.argv[1:], options.train_dir
    if not train_dir:
        train_dir = make_run_folder()
        arguments.append(f"--train_dir={train_dir}")
    if options.tensorboard:
        start_tensorboard(train_dir, options)
    command = [sys.executable, str(LAUNCH / "cluster.py"), *arguments]
    if not options.no_isolation:
        command = isolate(command)
    os.execvp(command[0], command)


def open_standard_files() -> None:
    """Let no file that is opened take the place of a standard stream that is closed."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # it takes the lowest number that is free
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def make_run_folder() -> str:
    """Make a new folder under `runs`, and return its path."""
    path = PROJECT / "runs" / f"{datetime.datetime.now():%Y-%m-%d_%H-%M-%S}"
    while True:
        try:
            path.mkdir(parents=True)
            return os.path.relpath(path)
        except FileExistsError:  # another launcher was as fast
            path = path.with_name(f"{path.name}_")
        except OSError as error:
            refuse(f"{path} cannot be made ({error.strerror}): give --train_dir")


def start_tensorboard(train_dir: str, options: Options) -> None:
    """Start TensorBoard, which only reads files, outside of the cluster's network, where a browser finds it."""
    arguments = ["--locked"] * options.locked + ["--progress"] * sys.stderr.isatty()
    install = [str(LAUNCH / "venv.sh"), *arguments, "runtime/launch/tensorboard.txt"]
    if subprocess.run(install, stdout=subprocess.DEVNULL).returncode:
        say("TensorBoard cannot be installed: this run goes on without")
        return
    board = [sys.executable, str(LAUNCH / "board.py"), train_dir, str(os.getpid())]
    subprocess.Popen(board, stdin=subprocess.DEVNULL, start_new_session=True)


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


if __name__ == "__main__":
    if is_interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # what is fetched is cleared away
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
