"""The second half of the launcher: run the tasks of a cluster, and end when all of them have ended.

    python runtime/launch/cluster.py OPTION... FLAG...

It imports TensorFlow once, and forks a process for each task: so twenty start as soon as one.
"""

import signal

# Until there is something to end in order, Ctrl-C ends this process at once, without the traceback of an import.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell ignores it
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import contextlib
import fcntl
import importlib
import os
import pathlib
import sys
from types import ModuleType

PROJECT = pathlib.Path(__file__).parents[2]
sys.path[0] = str(PROJECT)

from runtime.launch.options import Options, parse, refuse, say
from runtime.launch.supervisor import Supervisor
from runtime.launch.tasks import fork

SCRIPT = "distributed"  # the module that each task runs


def main() -> None:
    """Check the flags, make the folder, and run the cluster in it."""
    options = parse(sys.argv[1:])
    options = options._replace(train_dir=os.path.abspath(options.train_dir))
    say("loading TensorFlow")
    script = import_quietly(SCRIPT)
    # The flags of a process can be parsed once, and each task does that itself.
    check = fork.Process(target=script.program.parse_flags, args=([SCRIPT, *options.task_flags],))
    check.start()
    check.join()
    if check.exitcode:
        with contextlib.suppress(OSError):  # the folder under runs/ that was made for this run alone
            os.rmdir(options.train_dir)
        sys.exit(check.exitcode)
    try:
        os.makedirs(options.logs, exist_ok=True)
    except OSError as error:
        refuse(f"--train_dir {options.train_dir} cannot be made: {error.strerror}")
    lock(options)
    sys.exit(Supervisor(options, script.run).run())


def import_quietly(name: str) -> ModuleType:
    """Import a module, without the lines that TensorFlow's libraries write to standard error while they are loaded."""
    standard_error = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        return importlib.import_module(name)
    finally:
        os.dup2(standard_error, 2)
        os.close(standard_error)


def lock(options: Options) -> None:
    """Keep other launchers out, as long as this process or one of its tasks lives: logs and events would be mixed."""
    descriptor = os.open(options.logs, os.O_RDONLY)  # never closed, and inherited by the tasks
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        remedy = "wait until all its processes have ended, or give another folder"
        refuse(f"--train_dir {options.train_dir} is in use by another run: {remedy}")
    except OSError:  # some network file systems know no locks
        pass


if __name__ == "__main__":
    main()
