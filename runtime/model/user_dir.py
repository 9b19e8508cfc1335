"""The folder of a user's two files: which one it is, and whether it can be used."""

import contextlib
import functools
import os
import pathlib
import sys

from absl import flags

import runtime

PROJECT = os.path.dirname(os.path.dirname(os.path.abspath(runtime.__file__)))
NAMES = ("mnist_input", "model")  # of the modules


@functools.cache  # the user's files may change what it depends on
def find() -> str:
    """Return the absolute path of the folder that the command line names, or else `USER_DIR`; by default the project's.

    All flags together can be parsed only later, once the user's files have defined theirs.
    """
    own = flags.FlagValues()
    own.set_gnu_getopt(True)  # another flag may have its value in the next word
    flags.DEFINE_string("user_dir", os.environ.get("USER_DIR") or PROJECT, "", flag_values=own)
    with contextlib.suppress(flags.Error, UnicodeError):  # who parses all flags says so
        own(sys.argv, known_only=True)
    return os.path.abspath(str(own["user_dir"].value))


def why_unusable(folder: str) -> str:
    """Return why the folder cannot be imported from, and what to do; or nothing, if it can be."""
    missing = [f"{name}.py" for name in NAMES if not os.path.isfile(os.path.join(folder, f"{name}.py"))]
    if missing:
        found = f"has no {' and no '.join(missing)}" if os.path.isdir(folder) else "is not a folder"
        return f"--user_dir {folder} {found}: name a folder with model.py and mnist_input.py, here or in USER_DIR"
    for searched in dict.fromkeys((folder, PROJECT)):
        # Any part of Python may be needed, and what is imported already, unless it has come from there.
        files = {path: path.stem for path in pathlib.Path(searched).glob("*.py")}
        files |= {path: path.parent.name for path in pathlib.Path(searched).glob("*/__init__.py")}
        hidden = sorted(str(path.relative_to(searched)) for path, name in files.items() if _hides(path, name))
        if hidden:
            why = "but the program needs its own modules of these names: rename yours"
            return f"{'--user_dir ' * (searched != PROJECT)}{searched} has {', '.join(hidden)}, {why}"
    return ""


def _hides(path: pathlib.Path, name: str) -> bool:
    """Return whether a file, or a package, takes the place of a module that the program needs."""
    needed = sys.stdlib_module_names | sys.modules.keys() | {"PIL"}
    if name not in needed - {"__main__", "distributed", "test", *NAMES}:  # nobody needs Python's own tests
        return False
    imported = str(getattr(sys.modules.get(name), "__dict__", {}).get("__file__"))
    return name in sys.stdlib_module_names or os.path.realpath(imported) != os.path.realpath(path)
