"""Errors that end a task: what this program found unusable, and what TensorFlow says, in one line."""

import re

import tensorflow.compat.v1 as tf

from runtime.records.folder import why_misread

UNUSABLE_STATUS = 2  # the flags, the input or the environment must change before another attempt can succeed
DIVERGED = "lower --learning_rate, or correct the examples"  # the remedy for a model that is not finite
HEADING = re.compile(r"\s*$|Graph execution error:$|=====|\d+ root error|.*From /job:\S*:$")


class UnusableError(Exception):
    """This task cannot use what it was given: its flags, its input or its environment must change."""


def check_folder(flag: str, folder: str, is_pattern: bool = True) -> None:
    """Raise an UnusableError if the value of a flag is not a folder, or not one that TensorFlow would find."""
    if why := why_misread(folder, is_pattern):
        raise UnusableError(f"--{flag} {folder} {why}")


class UnsavedError(Exception):
    """Something could not be saved. At the end of training, trying again is in vain until somebody has made room."""


# What ends a task with this status, and what it says; `program.import_files()` adds those of the data set.
UNUSABLE: list[type[Exception]] = [UnusableError, UnsavedError]


class DataLostError(Exception):
    """What could be read when the run began cannot be read any more. If it comes again, no attempt will read it."""


class AwayError(TimeoutError):
    """What this task waited for did not come in time; the message says what to do."""


def reason(error: BaseException) -> str:
    r"""Return the name of an error and the one line of its message that says what is wrong.

    An error in a graph has a long message: where the program made each op, sometimes on which task it ran, and then the
    reason, as in `Graph execution error:\n…\nNode: 'save/SaveV2'\nFrom /job:ps/replica:0/task:0:\nNo space left on
    device\n…`. The random part of the name of a file that is half written goes: with it, the same failure would be new
    each time. So does the place in a data set.
    """
    message = error.message if isinstance(error, tf.errors.OpError) else str(error)
    lines = re.split(r"^Node: .*\n", message, flags=re.MULTILINE)[-1].splitlines()
    (line, *_) = [line for line in lines if not HEADING.match(line)] or lines or [""]
    line = re.sub(r"\S+\.tempstate\d+; |Error in user-defined function passed to .* iterator: \S+: ", "", line)
    line = re.sub(r"\.tmp[\da-f]+;", ";", line)
    return f"{type(error).__name__}: {line.strip()}".removesuffix(": ")
