"""A task that trains yields to tasks that start beside it: those need a core for seconds, to import TensorFlow."""

import contextlib
import os
import sys

import psutil

from runtime.cluster.task import Task
from runtime.process import set_session_niceness

NICENESS = 10  # gives a task that starts nine tenths of a core that both want


def lower_priority(task: Task) -> None:
    """Lower the priority of all threads of this process, and of its session, unless it is the only task on its host.

    Only on Linux do threads and sessions have a niceness of their own.
    """
    if sys.platform != "linux" or task.num_tasks_on_host == 1:
        return
    set_session_niceness(NICENESS)
    niceness = max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0))
    is_complete = False
    while not is_complete:  # a thread may start another one before its own turn comes
        is_complete = True
        for thread in psutil.Process().threads():
            with contextlib.suppress(ProcessLookupError):  # it has ended
                if os.getpriority(os.PRIO_PROCESS, thread.id) < niceness:
                    os.setpriority(os.PRIO_PROCESS, thread.id, niceness)
                    is_complete = False
