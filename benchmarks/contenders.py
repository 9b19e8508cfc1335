"""The contenders of the comparison, and how one of them is run."""

import json
import os
import subprocess
import sys
from typing import Any, NamedTuple

from benchmarks.report import PROJECT

TIMEOUT_SECS = 600.0
# numpy, TensorFlow and gRPC read these when they are imported: no accelerator, no log of the start, no proxy between
# processes, and no threads of numpy's own, which only evaluates.
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "OPENBLAS_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_GRPC_DEFAULT_OPTIONS": "grpc.enable_http_proxy=0",
}


class Contender(NamedTuple):
    """A way to train."""

    name: str
    module: str  # of benchmarks.peers
    train_steps: int  # enough to reach the target with any good setting
    flags: tuple[str, ...] = ()
    tuned_as: str = ""  # the contender whose setting it takes; empty: it is tuned itself


SYNC, LOCAL, CONSTANT = "--sync_replicas", "--local_steps=", "--constant_batch"
OURS, OURS_16, OURS_64 = "ours, asynchronous", "ours, 16 local steps", "ours, 64 local steps"
OURS_BFLOAT16 = "ours, asynchronous, bfloat16"
OURS_SYNC, OURS_SYNC_16 = "ours, synchronous", "ours, synchronous, 16 local steps"
ARITHMETIC = "the two large products of a step alone"
TORCH_16 = "PyTorch, 16 local steps"
SINGLE_TF = "one process, TensorFlow, XLA, 100 steps per call"
PS_STRATEGY = "ParameterServerStrategy, ten steps per call"
DDP, CLASSIC = "DistributedDataParallel", "the classic script"

# Tuning chooses one number of local steps from each of these families.
OURS_SYNC_LOCAL = [
    Contender(f"ours, synchronous, {h} local steps", "ours", steps, (SYNC, f"{LOCAL}{h}"), OURS_SYNC_16)
    for h, steps in ((32, 8000), (64, 10000), (128, 12000), (256, 15000))
]
TORCH_LOCAL = [
    Contender(f"PyTorch, {h} local steps", "torch_local_steps", 6000, (f"{LOCAL}{h}",), TORCH_16)
    for h in (32, 64, 128, 256)
]
# The learning rate ends at 0, so these steps are hardly more than it takes to reach the target.
OURS_ONE_CYCLE = Contender(
    "ours, synchronous, 64 local steps, one cycle", "ours", 1024, (SYNC, f"{LOCAL}64", "--lr_schedule=one_cycle")
)
RECOMMENDED, RECOMMENDED_TORCH = "recommended", "recommended of PyTorch"
FAMILIES = {RECOMMENDED: [*OURS_SYNC_LOCAL, OURS_ONE_CYCLE], RECOMMENDED_TORCH: TORCH_LOCAL}

# Contenders that one wants to compare run one after the other, because a shared machine changes within a round, too.
CONTENDERS = [
    Contender(OURS, "ours", 7000),
    Contender(OURS_BFLOAT16, "ours", 7000, ("--exchange_dtype=bfloat16",), OURS),
    Contender("ours, 4 local steps", "ours", 12000, (f"{LOCAL}4",), OURS_16),
    Contender("ours, 8 local steps", "ours", 14000, (f"{LOCAL}8",), OURS_16),
    Contender(OURS_16, "ours", 22000, (f"{LOCAL}16",)),
    Contender("ours, 32 local steps", "ours", 42000, (f"{LOCAL}32",), OURS_16),
    Contender(OURS_64, "ours", 45000, (f"{LOCAL}64",), OURS_16),
    Contender("the limit", "limit", 15000, tuned_as=OURS_16),
    Contender(ARITHMETIC, "arithmetic", 15000, tuned_as=OURS_16),
    Contender(OURS_SYNC, "ours", 2200, (SYNC,)),
    Contender(OURS_SYNC_16, "ours", 6000, (SYNC, f"{LOCAL}16")),
    *OURS_SYNC_LOCAL,
    OURS_ONE_CYCLE,
    *TORCH_LOCAL,
    Contender(TORCH_16, "torch_local_steps", 5000, (f"{LOCAL}16",)),
    Contender(DDP, "torch_ddp", 2500),
    Contender("one process, PyTorch", "single_torch", 9000),
    Contender(SINGLE_TF, "single_tf", 20000),
    Contender("one process, TensorFlow", "single_tf", 8000, ("--steps_per_call=1", "--nojit_compile"), SINGLE_TF),
    Contender("MultiWorkerMirroredStrategy", "tf2_multi_worker_mirrored", 2400),
    Contender("ParameterServerStrategy", "tf2_parameter_server", 4000, ("--steps_per_call=1",), PS_STRATEGY),
    Contender(PS_STRATEGY, "tf2_parameter_server", 6000),
    Contender(CLASSIC, "classic", 4500),
    Contender(f"{OURS}, a constant batch", "ours", 20000, (CONSTANT,), OURS),
    Contender(f"{OURS_16}, a constant batch", "ours", 40000, (f"{LOCAL}16", CONSTANT), OURS_16),
]

QUICK = (OURS, OURS_64, OURS_SYNC, DDP, SINGLE_TF, PS_STRATEGY, CLASSIC)  # and the recommended one


def run(contender: Contender, setting: str, seed: int) -> dict[str, Any]:
    """Train once with a setting such as "adam 0.001", and return the result that the peer prints last."""
    optimizer, learning_rate = setting.split()
    command = [sys.executable, "-m", f"benchmarks.peers.{contender.module}", *contender.flags, f"--seed={seed}"]
    command += [f"--train_steps={contender.train_steps}", f"--optimizer={optimizer}"]
    command += [f"--learning_rate={learning_rate}"]
    environment = {**os.environ, **ENVIRONMENT}
    process = subprocess.run(
        command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECS
    )
    if process.returncode:
        sys.exit(f"error: {contender.name} ended with status {process.returncode}:\n{process.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    print(f"{contender.name}, {setting}: {result}", flush=True)
    return result
