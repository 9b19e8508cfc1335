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
    """Define the cluster, and which of its tasks this process is."""
    flags.DEFINE_boolean("version", False, "print the version of this program and of what it uses, and end")
    flags.DEFINE_enum("job_name", None, ["ps", "worker", "evaluator"], "what this process is")
    flags.DEFINE_integer("task_index", None, "its index within the job; worker 0 is the chief", 0)
    flags.DEFINE_list("ps_hosts", "localhost:2222", "comma-separated host:port of the ps tasks")
    flags.DEFINE_list("worker_hosts", "localhost:2223,localhost:2224", "comma-separated host:port of the workers")
    flags.DEFINE_string("gpus", "auto", "the GPUs of each host for its workers: auto for all, none, or some, as in 0,2")
    flags.register_validator("gpus", is_gpu_list, "it is auto, none, or numbers of GPUs, such as 0,2")


def _define_folders() -> None:
    """Define the folders, and who writes there."""
    flags.DEFINE_string(
        "user_dir",
        None,
        "folder of model.py and mnist_input.py; default: USER_DIR in the environment, or this script's",
    )
    flags.DEFINE_string(
        "data_dir",
        download.default_data_dir(),
        "folder of the examples, as mnist_input.py reads them; into an empty one, MNIST's are fetched",
    )
    flags.DEFINE_string(
        "train_dir", "", "shared folder for checkpoints, summaries and result.json; empty: nothing is saved"
    )
    flags.DEFINE_enum("checkpoints", "ps", ["ps", "chief"], "who writes them: each ps its part, or the chief all")
    flags.DEFINE_string("export_dir", "", "folder for the finished model as a SavedModel; empty: it is not exported")
    for name in ("user_dir", "data_dir"):
        flags.register_validator(name, lambda folder: folder != "", "it must name a folder")
    for name in ("data_dir", "train_dir", "export_dir"):
        flags.register_validator(name, lambda folder: not folder.startswith("~"), download.TILDE)
        flags.register_validator(name, _is_text, "it must be UTF-8, as TensorFlow expects of every path")


def _define_training() -> None:
    """Define how the model is trained."""
    flags.DEFINE_integer("train_steps", 10000, "global step at which training ends", lower_bound=1)
    flags.DEFINE_integer("batch_size", 100, "examples per worker and step", lower_bound=1)
    flags.DEFINE_float("learning_rate", 0.001, "learning rate of the optimizer, at its highest")
    flags.DEFINE_enum("lr_schedule", "constant", LR_SCHEDULES, "after the warm-up, constant or falling to 0 at the end")
    flags.DEFINE_integer(
        "warmup_steps", None, "global steps in which the learning rate rises; default: 0, or 30 % of one cycle", 0
    )
    flags.DEFINE_enum("optimizer", "adam", OPTIMIZERS, "the optimizer; momentum is 0.9, Nesterov's too")
    flags.DEFINE_float("clip_norm", None, "the largest norm of all gradients of a worker together", lower_bound=0)
    flags.register_validator("clip_norm", lambda norm: norm != 0, "nothing would be trained: leave it out, or raise it")
    flags.DEFINE_float("ema_decay", None, "of moving averages of the parameters, which are then tested and exported", 0)
    flags.register_validator("ema_decay", lambda decay: decay is None or decay < 1, "it must be below 1, such as 0.999")
    flags.DEFINE_boolean("sync_replicas", False, "average the gradients of the workers in synchronous updates")
    flags.DEFINE_alias("issync", "sync_replicas")
    flags.DEFINE_integer("replicas_to_aggregate", None, "gradients per synchronous update; default: all workers", 1)
    flags.DEFINE_integer(
        "max_staleness",
        None,
        "exchanges that a worker may be ahead of the slowest; default: any number",
        0,
    )
    flags.DEFINE_enum(
        "replication", "between_graph", REPLICATIONS, "each worker builds a graph, or the chief builds one for all"
    )
    flags.DEFINE_enum(
        "ps_strategy", "round_robin", placement.PS_STRATEGIES, "how variables are spread over the ps tasks"
    )
    flags.DEFINE_integer("partition_bytes", None, "split variables larger than this over the ps tasks", lower_bound=1)
    flags.DEFINE_integer("local_steps", 1, "steps on a worker's own copy between exchanges with the ps", lower_bound=1)
    flags.DEFINE_enum("exchange_dtype", "float32", EXCHANGE_DTYPES, "how parameters and gradients travel")
    flags.DEFINE_enum(
        "sharding", "static", SHARDINGS, "a share of the examples for each worker, or as workers take them"
    )
    flags.DEFINE_integer("seed", 0, "seed of the initial weights and of the order of examples", 0, 2**31 - 1)
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
        "workers that take each update together are not ahead: leave --max_staleness out",
    )
    flags.register_multi_flags_validator(
        ["replication", "sync_replicas", "local_steps"],
        lambda values: (
            values["replication"] == "between_graph" or not (values["sync_replicas"] or values["local_steps"] > 1)
        ),
        "in_graph has synchronous updates of one step, so it takes neither --sync_replicas nor --local_steps",
    )


def _define_periods() -> None:
    """Define periods and timeouts."""
    flags.DEFINE_float("save_checkpoint_secs", 60, "period of the chief's checkpoints", lower_bound=1)
    flags.DEFINE_integer("keep_checkpoints", 5, "how many of the last checkpoints are kept", lower_bound=1)
    flags.DEFINE_float("log_every_secs", 2, "period of the progress line and of summaries", lower_bound=0.1)
    flags.DEFINE_float("startup_timeout_secs", 300, "how long to wait for the ps tasks and the chief at start", 1)
    flags.DEFINE_float("recovery_timeout_secs", 600, "how long to wait for a lost ps or chief to come back", 1)
    flags.DEFINE_float("stop_timeout_secs", STOP_SECS, "how long the chief may take to save after a signal", 1)
    flags.DEFINE_string("profile_steps", None, "A:B: trace the steps of each worker between these two global steps")
    flags.register_validator("profile_steps", profiling.is_step_range, "it must be A:B, two global steps")
    _refuse_without("profile_steps", "train_dir")


def _define_evaluation() -> None:
    """Define evaluation while the workers train."""
    flags.DEFINE_float("eval_every_secs", None, "period of the chief's evaluations; default: only at the end", 0.1)
    flags.DEFINE_string(
        "stop_at", None, "NAME:VALUE: end training when an evaluation finds this metric as high; as low: NAME:<VALUE"
    )
    flags.register_validator("stop_at", _is_target, "it must be NAME:VALUE, such as accuracy:0.97, or loss:<0.1")
    flags.DEFINE_float("stop_at_accuracy", None, "the same as --stop_at=accuracy:VALUE", 0, 1)
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
