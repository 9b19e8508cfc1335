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
    is_complete = False
    while not is_complete:  # a thread may start another one before its own turn comes
        is_complete = True
        for thread in psutil.Process().threads():
            with contextlib.suppress(ProcessLookupError):  # it has ended
                if os.getpriority(os.PRIO_PROCESS, thread.id) < niceness:
                    os.setpriority(os.PRIO_PROCESS, thread.id, niceness)
                    is_complete = False
