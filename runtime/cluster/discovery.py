"""How a task learns of its cluster from a cluster manager, through `TF_CONFIG`."""

import json

from runtime.cluster.task import Task
from runtime.errors import UnusableError


def task_from_tf_config(tf_config: str) -> Task:
    """Read the cluster and the task from the JSON text that cluster managers put into `TF_CONFIG`.

    Its form is `{"cluster": {"ps": [...], "worker": [...]}, "task": {"type": "worker", "index": 0}}`.

    Raises:
      UnusableError: it is not JSON of this form, or the cluster in it is unusable.
    """
    try:
        config = json.loads(tf_config)
        jobs, task = config["cluster"], config["task"]
        if set(jobs) != {"ps", "worker"}:
            raise UnusableError(
                f"TF_CONFIG has the jobs {', '.join(jobs)}, expected ps and worker (the chief is worker 0)"
            )
        return Task(task["type"], int(task["index"]), tuple(jobs["ps"]), tuple(jobs["worker"]))
    except (ValueError, KeyError, TypeError) as error:
        raise UnusableError(
            'TF_CONFIG is not of the form {"cluster": {"ps": [...], "worker": [...]}, "task": {"type": "worker",'
            f' "index": 0}}}}: {error!r}'
        ) from error
