"""Files that appear whole, or not at all."""

import contextlib
import os


def replace_file(path: str, content: bytes) -> None:
    """Write a file through a temporary one beside it; a reader sees the old content or the new one.

    Raises:
      OSError: it cannot be written. What was written of it is removed, since it may fill the disk.
    """
    temporary = path + ".tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise
