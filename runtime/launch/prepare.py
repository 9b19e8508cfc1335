"""`python runtime/launch prepare ARGUMENT...`, as `run_local_cluster.sh` calls it, runs a cluster on this machine.

It gets the machine ready, and becomes what `cluster.py` does, in a private network where there can be one.
"""

import contextlib
import datetime
import logging
import os
import pathlib
import re
import secrets
import signal
import subprocess
import sys
from typing import NoReturn

from runtime.data import download
from runtime.launch.options import HELP, PROJECT, Options, end_as, parse, refuse, say
from runtime.model import user_dir
from runtime.process import limits
from runtime.records.folder import RunFolder, why_misread

LAUNCH = pathlib.Path(__file__).parent
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
import sys
sys.path[0], folder = sys.argv.pop(1), sys.argv.pop(1)
from runtime.launch.cluster import silence
with silence():
    from runtime.process import environment
    from runtime.model import users_files
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


def main() -> None:
    """Get ready, and become what runs the cluster."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # no file of ours may take the number of a closed output
        os.set_inheritable(descriptor, True)
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # see __main__.py
        signal.signal(signal.SIGINT, signal.default_int_handler)  # it waits for who fetches
    try:
        get_ready(parse(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def get_ready(options: Options) -> NoReturn:
    """Fetch the data, start TensorBoard, and become what runs the cluster."""
    if asked := list(filter(HELP.match, options.flags)):
        files = f"--user_dir={user_dir.find()}"  # whose flags are shown, too
        subprocess.run([sys.executable, str(PROJECT / "distributed.py"), files, *asked])
        sys.exit()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if (home := os.path.expanduser("~")) != "~":  # else this user has none
        os.environ.setdefault("HOME", home)  # a private network has another user
    os.environ.setdefault("PYTHONHASHSEED", "0")  # as distributed.py sets it, for the tasks
    if why := limits.why_too_low(options.ps + options.workers):
        refuse(why)
    fetch(options)
    if options.prepare:
        sys.exit()
    arguments, train_dir = sys.argv[1:], options.train_dir
    if not train_dir:
        name = f"{datetime.datetime.now():%Y-%m-%d_%H-%M-%S}_{secrets.token_hex(3)}"  # another launcher may be as fast
        train_dir = os.path.relpath(PROJECT / "runs" / name)
        arguments.insert(0, f"--train_dir={train_dir}")
        if why := why_misread(os.path.abspath(train_dir)):
            refuse(f"the folder of this run, {train_dir}, {why}, with --train_dir")
    if options.tensorboard:
        start_tensorboard(train_dir, options)
    command = [sys.executable, str(LAUNCH), "cluster", *arguments]
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


def start_tensorboard(train_dir: str, options: Options) -> None:
    """Start TensorBoard, which only reads files, outside of the cluster's network, where a browser finds it."""
    install = [str(LAUNCH / "venv.sh"), *["--locked"] * options.locked, "runtime/launch/tensorboard.txt"]
    if subprocess.run(install, stdout=subprocess.DEVNULL).returncode:
        say("TensorBoard could not be installed: the run continues without it")
        return
    arguments = [str(os.getpid()), train_dir, RunFolder(train_dir).logs, sys.executable]
    command = ["sh", "-c", SHOW_TENSORBOARD, *arguments]
    subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def isolate(command: list[str]) -> list[str]:
    """Return what runs `command` in a network that has nothing except a loopback interface of its own.

    A server of TensorFlow listens on every interface and runs whatever it is sent.
    """
    os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"  # where ip is, for others than root
    why = "unshare, ip and setpriv are required"
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
    risk = "other users, and other machines that reach its ports, can use the cluster"
    say(f"no private network here ({why}): {risk}")
    return command
