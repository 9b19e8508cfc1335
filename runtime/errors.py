"""Errors that end a task: what this program found unusable, and what TensorFlow says, in one line."""

import re

import tensorflow.compat.v1 as tf

UNUSABLE_STATUS = 2  # the flags, the input or the environment must change before another attempt can succeed
HEADING = re.compile(r"\s*$|Graph execution error:$|=====|\d+ root error|.*From /job:\S*:$")


class UnusableError(Exception):
    """This task cannot use what it was given: its flags, its input or its environment must change."""


def refuse_url(flag: str, folder: str) -> None:
    """Raise an UnusableError if the value of a flag is not a folder, but a place such as gs://bucket/name."""
    scheme, is_url, _ = folder.partition("://")
    if is_url:
        raise UnusableError(f"--{flag} {folder} is not a folder: {scheme}:// is not supported")


class UnsavedError(Exception):
    """Something could not be saved. At the end of training, trying again is in vain until somebody has made room."""


class FinishedError(Exception):
    """Nothing is left to do for this task: the job has finished without it."""


def reason(error: BaseException) -> str:
    r"""Return the name of an error and the one line of its message that says what is wrong.

    An error in a graph has a long message: where the program made each op, sometimes on which task it ran, and then the
    reason, as in `Graph execution error:\n…\nNode: 'save/SaveV2'\nFrom /job:ps/replica:0/task:0:\nNo space left on
    device\n…`.
    """
    message = error.message if isinstance(error, tf.errors.OpError) else str(error)
    lines = re.split(r"^Node: .*\n", message, flags=re.MULTILINE)[-1].splitlines()
    (line, *_) = [line for line in lines if not HEADING.match(line)] or lines or [""]
    return f"{type(error).__name__}: {line.strip()}".removesuffix(": ")
