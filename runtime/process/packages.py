"""What is said where a package that this program needs cannot be imported: import this first, it needs none."""

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator


@contextlib.contextmanager
def telling_what_is_missing() -> Iterator[None]:
    """End this process with status 2 and one line if an import fails."""
    try:
        yield
    except ImportError as error:
        first: BaseException = error
        while cause := first.__cause__ or first.__context__:
            first = cause
        print(f"error: {type(first).__name__}: {first}: {_remedy_for(first)}", file=sys.stderr)
        raise SystemExit(2) from None


def _remedy_for(error: BaseException) -> str:
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    for folder in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if any(file.startswith(os.path.abspath(folder) + os.sep) for file in files):
            return f"remove {folder} from PYTHONPATH: its packages are not for this Python"
    if "failed to map segment" in str(error):
        return f"{sys.prefix} is mounted noexec: install it elsewhere; the launcher takes VENV_DIR=/another/folder"
    libraries = os.environ.get("LD_LIBRARY_PATH")
    if libraries and not isinstance(error, ModuleNotFoundError):
        return f"unset LD_LIBRARY_PATH, which is {libraries}"
    return f"install requirements.txt for {sys.executable} again, or use the Python of .venv"
