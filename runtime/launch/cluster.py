"""Runs a cluster on this machine, which is ready for it: `python runtime/launch cluster ARGUMENT...`.

It imports TensorFlow once, and forks a process for each task: so twenty start as soon as one. Only the tasks import the
user's files, each for itself, since what these make meanwhile, such as random numbers, threads or the runtime of
TensorFlow, cannot be forked.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import NoReturn

from runtime.launch.options import PROJECT, end_as, parse, refuse, say
from runtime.launch.supervisor import Supervisor
from runtime.launch.tasks import fork
from runtime.process.end import end_process, end_with_parent

SCRIPT = "distributed"  # the module that each task runs
# What the tasks get of `runtime/`, already imported.
SHARED = ("process.environment", "roles.flags", "roles.member", "roles.training")
REMINDER_SECS = 10.0


def main() -> NoReturn:
    """Check the flags, make the folder, run the cluster in it, and end this process when all tasks have ended."""
    options = parse(sys.argv[1:])
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
    end_process(supervisor.run())


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Leave out what TensorFlow's libraries write to standard error while they are loaded, but not what Python does."""
    with open(os.dup(2), "w") as errors, open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        try:
            with contextlib.redirect_stderr(errors):
                yield
        finally:
            os.dup2(errors.fileno(), 2)


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
