"""How the program starts and ends: from the command line to an exit status, with one line for every error."""

import importlib
import platform
import re
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import NoReturn

import tensorflow.compat.v1 as tf
from absl import app, flags, logging

from runtime import VERSION
from runtime.cluster import membership, signals
from runtime.data.download import DownloadError
from runtime.model import user_dir
from runtime.model.files import Files
from runtime.process import output, threads
from runtime.process.end import allow_many_files, end_process
from runtime.process.errors import UNUSABLE, UNUSABLE_STATUS, AwayError, UnusableError
from runtime.process.phases import describe_failure, preparing


def import_files() -> Files:
    """Import the user's files; end this process if they cannot be imported.

    From then on their `DataError`, if they have one, ends the process as an `UnusableError` does.
    """
    folder = user_dir.find()
    try:
        if why := user_dir.why_unusable(folder):
            raise UnusableError(why)
        sys.path.insert(0, folder)
        with preparing():
            reader, model = map(_import, user_dir.NAMES)
            files = Files(model, reader)
    except Exception as error:
        end_process(*describe_end(error))
    UNUSABLE.extend([DownloadError, getattr(reader, "DataError", UnusableError)])
    return files


def _import(name: str) -> ModuleType:
    before = sys.argv.copy()
    module = importlib.import_module(name)
    if sys.argv != before:
        remedy = "do not change it, since it holds the flags of this task"
        raise UnusableError(f"{module.__file__} changes sys.argv to {sys.argv!r:.50}: {remedy}")
    return module


def start(main: Callable[[], None]) -> None:
    """Parse the command line and run `main`, the program; end the process with a status."""
    tf.logging.set_verbosity(tf.logging.ERROR)  # its warnings mostly say that the API of TensorFlow 1 is deprecated
    tf.get_logger().handlers.clear()  # absl shows what is left
    flags.FLAGS.set_default("verbosity", logging.INFO)
    app.run(lambda _: _run(main), flags_parser=parse_flags)


def parse_flags(arguments: Sequence[str]) -> list[str]:
    """Parse flags as absl does, but report a mistake in one line and end with status 2."""
    try:
        program, *others = flags.FLAGS(arguments)
        if others:
            raise flags.Error(f"unexpected argument {others[0]!r}: flags are written --name=value")
    except (flags.Error, UnicodeError) as error:
        is_unknown = isinstance(error, flags.UnrecognizedFlagError)  # argparse in a user's file, say, defines none
        own = "; define a model's own flags with absl: see docs/your-own.md" * is_unknown
        output.write_in_background()
        message = re.sub(r"\('Non-boolean argument.*?', (.*)\)", r"\1 is neither true nor false", str(error))
        message = "--flagfile: " * isinstance(error, UnicodeError) + message.replace("\n", "; ")  # of several flags
        end_process(UNUSABLE_STATUS, f"{message} (see --help{own})")
    if "version" in flags.FLAGS and flags.FLAGS["version"].value:
        print(f"distributed-mnist {VERSION}, TensorFlow {tf.__version__}, Python {platform.python_version()}")
        sys.exit()
    return [program]


def _run(main: Callable[[], None]) -> None:
    def end_by(error: BaseException) -> NoReturn:
        status, message = describe_end(error)
        end_process(status, message, membership.tell_others if status == UNUSABLE_STATUS else None)

    output.write_in_background()
    allow_many_files()
    threads.end_on_errors_by(end_by)
    signals.start_listening()
    try:
        main()
    except (Exception, SystemExit) as error:  # the program itself raises no SystemExit from here on
        end_by(error)
    end_process(0)


def describe_end(error: BaseException) -> tuple[int, str]:
    """Return the exit status of a process that `error` ends, and the line that says why."""
    if isinstance(error, tuple(UNUSABLE)):
        return UNUSABLE_STATUS, " ".join(str(error).splitlines())
    if isinstance(error, AwayError):
        return 1, str(error)
    logging.debug("unexpected error", exc_info=error)  # at --verbosity=1
    return describe_failure(error)
