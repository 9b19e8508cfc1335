"""What a task gives back to its machine: memory that it has freed, and that its C library holds on to."""

import contextlib
import ctypes
import gc


def release_free_memory() -> None:
    """Return what is not in use to the system, if the C library is glibc; else only collect Python's garbage.

    A session frees many small pieces when it ends. glibc keeps the pages between those that stay, and the next session
    takes new ones: without this, a worker grows by some megabytes with each session that it loses.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
