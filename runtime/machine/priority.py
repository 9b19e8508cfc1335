"""A task that trains yields to tasks that start beside it: those need a core for seconds, to import TensorFlow."""

import contextlib
import os
import sys

import psutil

from runtime.cluster.task import Task

NICENESS = 10  # gives a task that starts nine tenths of a core that both want


def lower_priority(task: Task) -> None:
    """Lower the priority of all threads of this process, unless it is the only task on its host.

    Only on Linux do threads have a niceness of their own. It counts among the tasks of one session, as those of the
    launcher: Linux shares the processors among sessions before that.
    """
    if sys.platform != "linux" or task.num_tasks_on_host == 1:
        return
    niceness = max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0))
    lowered: set[int] = set()
    # A thread may start another one before its own turn comes.
    while waiting := {thread.id for thread in psutil.Process().threads()} - lowered:
        for thread in waiting:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.setpriority(os.PRIO_PROCESS, thread, niceness)
        lowered |= waiting
