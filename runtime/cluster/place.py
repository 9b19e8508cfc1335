"""Whether this process may act as its task: a ps takes two processes of one name for one that has been restarted.

It then drops the session of the first, in the middle of a step. So a worker looks before its sessions.
"""

from runtime.cluster.host_lists import HostLists, read_board
from runtime.cluster.task import Task


def describe_unconfirmed(task: Task) -> str:
    """Return for which ps to wait until it has the same host lists as `task`, or "" once it has.

    It may never have them: then a `HostListsWatch` ends this process.
    """
    ps = task.others("ps")[0]
    lists = read_board(ps)
    is_confirmed = lists and not HostLists.of(task).describe_difference(lists[0])
    return "" if is_confirmed else f"the host lists of {ps} to be those of this task"
