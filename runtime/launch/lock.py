"""Lock what a file descriptor of the caller stands for: `python runtime/launch/lock.py FD` ends with 1 if another has.

The lock is the caller's: it lasts until the caller, and every process that has inherited the descriptor, has closed it.
"""

import contextlib
import fcntl
import sys

if __name__ == "__main__":
    with contextlib.suppress(OSError):  # some network file systems know no locks
        try:
            fcntl.flock(int(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(1)
