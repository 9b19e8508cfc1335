"""What the launcher prints at the end: where a run's results are, and the commands that go on with it."""

import os
import shlex
import sys
from collections.abc import Sequence

from runtime.launch.options import PROGRAM, PROJECT, Options
from runtime.model import user_dir
from runtime.records.files import read_json
from runtime.records.folder import RunFolder


def has_saved(folder: RunFolder) -> bool:
    """Whether a run has a checkpoint."""
    return os.path.exists(folder.checkpoint_state)


def describe_how_to_go_on(folder: RunFolder) -> str:
    """Return the command that goes on with a run that has not come to its end."""
    what = "resume from the last checkpoint" if has_saved(folder) else "start over"
    return f"to {what}: {_make_command(sys.argv[1:])}"


def describe_what_is_next(options: Options, predicts: str) -> list[str]:
    """Return where all lies, and what people may do with it, if the run has left a result.

    `predicts` is `PREDICTS` of the user's `mnist_input.py`, or empty.
    """
    folder, given = options.folder, sys.argv[1:]
    result = read_json(folder.result)
    if not (step := result.get("global_step")):
        return []
    model = options.export_dir or os.path.join(_shorten(folder.path), "model")
    lines = ["", f"folder    {_shorten(folder.path)}"]
    if os.path.exists(folder.report):
        lines.append(f"report    {_shorten(folder.report)}")
    if not result.get("reached"):  # else the same target would end it at once
        others = [word for word in given if not word.startswith("--train_steps=")]
        lines.append(f"train on  {_make_command([*others, f'--train_steps={2 * step}'])}")
    if not options.export_dir:
        lines.append(f"export    {_make_command([*given, f'--export_dir={model}'])}")
    if predicts:
        script, _, what = predicts.partition(" ")
        path = os.path.join(user_dir.find(), script)
        path = path if os.path.exists(path) else f"{PROJECT}/{script}"  # as for a copy of MNIST's mnist_input.py
        predict = [_shorten(sys.executable), _shorten(path), f"--model={model}"]
        lines.append(f"predict   {shlex.join(predict)} {what}")
    return lines


def _make_command(arguments: Sequence[str]) -> str:
    """Return what people type to run the launcher."""
    path = _shorten(f"{PROJECT}/{PROGRAM}")
    return shlex.join([path if "/" in path else f"./{path}", *arguments])


def _shorten(path: str) -> str:
    """Return a path as it is seen from here, if that is shorter."""
    return min(os.path.relpath(path), path, key=len)
