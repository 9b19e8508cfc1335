"""A whole run of a cluster on this machine, and its result."""

import json
import pathlib
import tempfile
from typing import Any

from benchmarks.testbed.processes import Cluster


def train(num_workers: int, *flags: str, script: str = "distributed.py") -> dict[str, Any]:
    """Train with one ps and `num_workers` workers until the end, and return what is in `result.json`.

    Raises:
      RuntimeError: a task did not end with status 0.
    """
    with tempfile.TemporaryDirectory() as folder:
        with Cluster(folder, 1, num_workers, f"--train_dir={folder}", *flags, script=script) as tasks:
            tasks.start()
            if any(tasks.wait().values()):
                raise RuntimeError(f"{flags}: a task has failed: {tasks['worker 0'].output()[-2000:]}")
        result: dict[str, Any] = json.loads(pathlib.Path(folder, "result.json").read_text())
    print(*flags, result, flush=True)
    return result
