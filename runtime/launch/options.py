"""The command line of the launcher: its own options, and the flags that it passes on to the tasks."""

import contextlib
import os
import pathlib
import re
import signal
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from absl import flags

from runtime.data import download
from runtime.process.end import STOP_SECS
from runtime.records.folder import RunFolder, why_misread

PROGRAM = "run_local_cluster.sh"
PROJECT = pathlib.Path(__file__).parents[2]
UNUSABLE_STATUS = 2  # as of the tasks
# What the launcher chooses itself, and what people may write for --ps and --workers.
CHOSEN = re.compile(r"--?(job_name|task_index|(?:ps|worker)_hosts?|worker|num_(?:ps|workers?))(?==|$)")
HELP = re.compile(r"--?(help(full|short|xml)|version)$")


class Options(NamedTuple):
    """The options of the launcher, and what it hands on."""

    ps: int
    workers: int
    train_dir: str  # empty: a new folder
    data_dir: str
    export_dir: str
    stop_timeout_secs: float  # see the flag of the tasks
    max_restarts: int  # of each task
    no_isolation: bool
    locked: bool
    tensorboard: bool
    prepare: bool  # and train nothing
    flags: list[str]  # of distributed.py

    @property
    def task_flags(self) -> list[str]:
        """The flags that all tasks share."""
        folders = {"train_dir": self.train_dir, "data_dir": self.data_dir, "export_dir": self.export_dir}
        own = {**folders, "stop_timeout_secs": self.stop_timeout_secs}
        return [*(f"--{name}={value}" for name, value in own.items()), *self.flags]

    @property
    def folder(self) -> RunFolder:
        """What lies where in the train directory."""
        return RunFolder(self.train_dir)


def parse(arguments: Sequence[str]) -> Options:
    """Return the options that a command line has; end the process with status 2 if the launcher cannot use them."""
    own = flags.FlagValues()
    own.set_gnu_getopt(True)  # a flag of distributed.py may have its value in the next word
    flags.DEFINE_integer("ps", 1, "number of ps tasks", 1, 99, flag_values=own)
    flags.DEFINE_integer("workers", 2, "number of workers", 1, 99, flag_values=own)
    flags.DEFINE_string("train_dir", "", "folder of the run", flag_values=own)
    flags.DEFINE_string("data_dir", download.default_data_dir(), "folder of the examples", flag_values=own)
    flags.DEFINE_string("export_dir", "", "folder of the finished model", flag_values=own)
    flags.DEFINE_float(
        "stop_timeout_secs", STOP_SECS, "how long the chief may take to save the model after a signal", flag_values=own
    )
    flags.DEFINE_integer("max_restarts", 3, "how many times a task may be restarted", 0, flag_values=own)
    for name in ("no_isolation", "locked", "tensorboard", "prepare"):
        flags.DEFINE_boolean(name, False, "", flag_values=own)
    for name in ("train_dir", "data_dir", "export_dir"):
        flags.register_validator(name, lambda folder: not folder.startswith("~"), download.TILDE, own)
    flags.register_validator("data_dir", bool, "it must name a folder", own)
    try:
        _, *others = own([PROGRAM, *arguments], known_only=True)
    except (flags.Error, UnicodeError) as error:
        mistakes = "--flagfile: " * isinstance(error, UnicodeError) + str(error).replace("\n", "; ")
        refuse(f"{mistakes} (see --help)")
    for chosen in filter(None, map(CHOSEN.match, others)):
        refuse(f"--{chosen[1]} is not a flag of the launcher: give the number of tasks with --ps=N and --workers=N")
    values: dict[str, Any] = own.flag_values_dict()
    if own["train_dir"].present and not own.train_dir:  # as of a variable of the shell that is not set
        refuse("flag --train_dir=: it must name a folder; omit it for a new one in runs/")
    for name in ("train_dir", "export_dir"):
        if why := why_misread(values[name]):
            refuse(f"--{name} {values[name]} {why}")
    return Options(**values, flags=others)


def say(line: str) -> None:
    """Write a line of the launcher, before it has a `Console`; there need be no reader."""
    with contextlib.suppress(OSError):
        os.write(1, f"{PROGRAM}: {line}\n".encode(errors="surrogateescape"))


def refuse(message: str) -> NoReturn:
    """End this process with status 2 and one line."""
    with contextlib.suppress(OSError):
        os.write(2, f"error: {message}\n".encode(errors="surrogateescape"))
    raise SystemExit(UNUSABLE_STATUS)


def end_as(code: int, what: str) -> NoReturn:
    """End as a process has ended, by its exit code, that was busy with `what`."""
    if code < 0:
        print(f"error: {what} was terminated by {signal.Signals(-code).name}", file=sys.stderr)
    sys.exit(code if code > 0 else 128 - code)
