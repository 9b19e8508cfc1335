"""The flags of `distributed.py`, in groups, and which values are refused. `member.py` and the script read them."""

import contextlib
import math
import pathlib
import re
import sys

from absl import flags

from runtime.data import download
from runtime.data.sources import SHARDINGS
from runtime.machine.session_config import is_gpu_list
from runtime.model.users_files import note_flags
from runtime.monitoring import profiling
from runtime.monitoring.measures import Target
from runtime.process.end import STOP_SECS, end_process
from runtime.process.errors import UNUSABLE_STATUS
from runtime.updates import placement
from runtime.updates.exchange import REPLICATIONS
from runtime.updates.mode import EXCHANGE_DTYPES
from runtime.updates.optimizer import OPTIMIZERS
from runtime.updates.schedule import LR_SCHEDULES

LARGEST = 10**15  # of any whole number: an int64 also holds its products with batches and examples

flags.disclaim_key_flags()  # --help shows them as those of the script


def define_flags() -> flags.FlagValues:
    """Define all flags, and return what holds their values once the command line is parsed.

    Call it once the user's files are imported, whose flags are shown and compared like these.
    """
    note_flags()
    others = set(flags.FLAGS)
    try:
        _define_cluster()
        _define_folders()
        _define_training()
        _define_periods()
        _define_evaluation()
    except flags.DuplicateFlagError as error:
        (name,) = re.findall("The flag '(.*?)' is defined twice", str(error))
        module = flags.FLAGS.find_module_defining_flag(name) or ""
        file = pathlib.Path(str(getattr(sys.modules.get(module), "__file__", module))).name
        end_process(
            UNUSABLE_STATUS, f"{file} defines --{name}, which is a flag of distributed.py: give it another name"
        )
    for name in set(flags.FLAGS) - others:
        if flags.FLAGS[name].flag_type() == "int":
            flags.register_validator(
                name, lambda value: value is None or value <= LARGEST, f"it must be at most {LARGEST}"
            )
        elif flags.FLAGS[name].flag_type() == "float":  # NaN is within all bounds
            flags.register_validator(name, lambda value: value is None or not math.isnan(value), "it must be a number")
    return flags.FLAGS


def _define_cluster() -> None:
    """Define the cluster and this task."""
    flags.DEFINE_boolean("version", False, "print the versions of this program and its packages, and exit")
    flags.DEFINE_enum("job_name", None, ["ps", "worker", "evaluator"], "the job of this process")
    flags.DEFINE_integer("task_index", None, "index of this process in its job; worker 0 is the chief", 0)
    flags.DEFINE_list("ps_hosts", "localhost:2222", "comma-separated host:port addresses of the ps tasks")
    flags.DEFINE_list(
        "worker_hosts", "localhost:2223,localhost:2224", "comma-separated host:port addresses of the workers"
    )
    flags.DEFINE_string(
        "gpus", "auto", "GPUs that the workers of a host may use: auto (all), none, or a list such as 0,2"
    )
    flags.register_validator("gpus", is_gpu_list, "it must be auto, none, or GPU numbers, such as 0,2")


def _define_folders() -> None:
    """Define folders."""
    flags.DEFINE_string(
        "user_dir",
        None,
        "folder with model.py and mnist_input.py; default: the variable USER_DIR, or the folder of this script",
    )
    flags.DEFINE_string(
        "data_dir",
        download.default_data_dir(),
        "folder with the examples that mnist_input.py reads; MNIST is downloaded into an empty one",
    )
    flags.DEFINE_string(
        "train_dir", "", "shared folder for checkpoints, summaries and result.json; if empty, nothing is saved"
    )
    flags.DEFINE_enum(
        "checkpoints", "ps", ["ps", "chief"], "who writes checkpoints: each ps its own part, or the chief everything"
    )
    flags.DEFINE_string("export_dir", "", "folder for the finished model as a SavedModel; if empty, it is not exported")
    for name in ("user_dir", "data_dir"):
        flags.register_validator(name, lambda folder: folder != "", "it must name a folder")
    for name in ("data_dir", "train_dir", "export_dir"):
        flags.register_validator(name, lambda folder: not folder.startswith("~"), download.TILDE)
        flags.register_validator(name, _is_text, "it must be UTF-8, as TensorFlow expects of every path")


def _define_training() -> None:
    """Define training."""
    flags.DEFINE_integer("train_steps", 10000, "global step at which training ends", lower_bound=1)
    flags.DEFINE_integer("batch_size", 100, "examples per worker and step", lower_bound=1)
    flags.DEFINE_float("learning_rate", 0.001, "peak learning rate of the run")
    flags.DEFINE_enum(
        "lr_schedule", "constant", LR_SCHEDULES, "after the warm-up, the learning rate stays constant, or falls to 0"
    )
    flags.DEFINE_integer(
        "warmup_steps", None, "global steps during which the learning rate rises; default: 0, or 30 % of one cycle", 0
    )
    flags.DEFINE_enum("optimizer", "adam", OPTIMIZERS, "the optimizer; momentum and nesterov use a momentum of 0.9")
    flags.DEFINE_float(
        "clip_norm",
        None,
        "largest global norm of a worker's gradients; larger gradients are scaled down",
        lower_bound=0,
    )
    flags.register_validator("clip_norm", lambda norm: norm != 0, "nothing would be trained: omit it, or raise it")
    flags.DEFINE_float(
        "ema_decay", None, "decay of moving averages of the parameters; tests and exports use these averages", 0
    )
    flags.register_validator("ema_decay", lambda decay: decay is None or decay < 1, "it must be below 1, such as 0.999")
    flags.DEFINE_boolean("sync_replicas", False, "use synchronous updates, which average the gradients of the workers")
    flags.DEFINE_alias("issync", "sync_replicas")
    flags.DEFINE_integer(
        "replicas_to_aggregate", None, "gradients per synchronous update; default: one of each worker", 1
    )
    flags.DEFINE_integer(
        "max_staleness",
        None,
        "how many exchanges a worker may be ahead of the slowest; default: no limit",
        0,
    )
    flags.DEFINE_enum(
        "replication",
        "between_graph",
        REPLICATIONS,
        "each worker builds its own graph, or the chief builds one for all workers",
    )
    flags.DEFINE_enum(
        "ps_strategy", "round_robin", placement.PS_STRATEGIES, "how variables are distributed over the ps tasks"
    )
    flags.DEFINE_integer(
        "partition_bytes", None, "split variables that are larger than this over the ps tasks", lower_bound=1
    )
    flags.DEFINE_integer(
        "local_steps", 1, "steps that a worker takes on its own copy of the parameters per exchange", lower_bound=1
    )
    flags.DEFINE_enum("exchange_dtype", "float32", EXCHANGE_DTYPES, "type in which parameters and gradients are sent")
    flags.DEFINE_enum(
        "sharding",
        "static",
        SHARDINGS,
        "each worker has a fixed share of the examples, or asks for one shard at a time",
    )
    flags.DEFINE_integer("seed", 0, "seed of the initial weights and the order of the examples", 0, 2**31 - 1)
    flags.register_validator("learning_rate", lambda rate: 0 < rate < float("inf"), "it must be a number above 0")
    flags.register_multi_flags_validator(
        ["warmup_steps", "train_steps"],
        lambda values: (values["warmup_steps"] or 0) < values["train_steps"],
        "it must be below --train_steps",
    )
    _refuse_without("replicas_to_aggregate", "sync_replicas")
    flags.register_multi_flags_validator(
        ["max_staleness", "sync_replicas", "replication"],
        lambda values: (
            values["max_staleness"] is None or not (values["sync_replicas"] or values["replication"] == "in_graph")
        ),
        "synchronous workers never get ahead of each other: omit --max_staleness",
    )
    flags.register_multi_flags_validator(
        ["replication", "sync_replicas", "local_steps"],
        lambda values: (
            values["replication"] == "between_graph" or not (values["sync_replicas"] or values["local_steps"] > 1)
        ),
        "in_graph always makes synchronous updates of one step: omit --sync_replicas and --local_steps",
    )


def _define_periods() -> None:
    """Define periods and timeouts."""
    flags.DEFINE_float("save_checkpoint_secs", 60, "seconds between the chief's checkpoints", lower_bound=1)
    flags.DEFINE_integer("keep_checkpoints", 5, "number of most recent checkpoints to keep", lower_bound=1)
    flags.DEFINE_float("log_every_secs", 2, "seconds between progress lines, and between summaries", lower_bound=0.1)
    flags.DEFINE_float("startup_timeout_secs", 300, "how long to wait for the ps tasks and the chief at the start", 1)
    flags.DEFINE_float("recovery_timeout_secs", 600, "how long to wait for a lost ps or chief to return", 1)
    flags.DEFINE_float(
        "stop_timeout_secs", STOP_SECS, "how long the chief may take to save the model after a signal", 1
    )
    flags.DEFINE_string("profile_steps", None, "A:B: trace every worker between the global steps A and B")
    flags.register_validator("profile_steps", profiling.is_step_range, "it must be A:B, two global steps")
    _refuse_without("profile_steps", "train_dir")


def _define_evaluation() -> None:
    """Define evaluation."""
    flags.DEFINE_float(
        "eval_every_secs", None, "seconds between the chief's evaluations; default: only one, at the end", 0.1
    )
    flags.DEFINE_string(
        "stop_at", None, "NAME:VALUE: stop training once this metric is at least VALUE; NAME:<VALUE: at most VALUE"
    )
    flags.register_validator("stop_at", _is_target, "it must be NAME:VALUE, such as accuracy:0.97, or loss:<0.1")
    flags.DEFINE_float("stop_at_accuracy", None, "short for --stop_at=accuracy:VALUE", 0, 1)
    _refuse_without("stop_at", "eval_every_secs")
    _refuse_without("stop_at_accuracy", "eval_every_secs")
    flags.mark_flags_as_mutual_exclusive(["stop_at", "stop_at_accuracy"])


def _refuse_without(name: str, other: str) -> None:
    """Let one flag be given only with another."""
    flags.register_multi_flags_validator(
        [name, other], lambda values: values[name] is None or values[other], f"it needs --{other}"
    )


def _is_target(value: str | None) -> bool:
    with contextlib.suppress(ValueError):
        return value is None or bool(Target.parse(value))
    return False


def _is_text(value: str) -> bool:
    """Return whether a value of the command line was UTF-8; Python has other bytes as lone surrogates."""
    return value.isascii() or value.encode(errors="replace").decode() == value
