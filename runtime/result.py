"""What a run found: `result.json`, and the last line of the chief."""

import dataclasses
import json
import os

RESULT_FILE = "result.json"


@dataclasses.dataclass(frozen=True)
class Result:
    """One run's result; its fields are those of `result.json`."""

    test_accuracy: float  # in [0, 1]
    test_loss: float
    global_step: int  # of the parameters that were evaluated
    train_secs: float  # from the chief's first step to its last
    examples_per_sec: float  # used by all workers in that time
    model: str
    optimizer: str
    sync_replicas: bool
    local_steps: int  # between exchanges with the ps
    batch_size: int
    num_ps: int
    num_workers: int
    tensorflow_version: str

    def write(self, train_dir: str) -> None:
        """Write `result.json`, so that a reader finds this one or the last one, whole."""
        path = os.path.join(train_dir, RESULT_FILE)
        with open(path + ".tmp", "w") as file:
            json.dump(dataclasses.asdict(self), file, indent=2)
            file.write("\n")
        os.replace(path + ".tmp", path)

    def __str__(self) -> str:
        return (
            f"test accuracy {self.test_accuracy:.4f} (test loss {self.test_loss:.4f}) after {self.global_step} global"
            f" steps in {self.train_secs:.1f} s, {self.examples_per_sec:.0f} examples/s"
        )
