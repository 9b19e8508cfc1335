r"""Train MNIST with parameter servers: every machine of the cluster runs this script.

On one machine, each line in a terminal of its own, in any order:

    python distributed.py --job_name=ps --task_index=0
    python distributed.py --job_name=worker --task_index=0
    python distributed.py --job_name=worker --task_index=1

or all of it with ./run_local_cluster.sh. On several machines, give all tasks the same lists of addresses:

    python distributed.py --ps_hosts=10.0.0.1:2222 --worker_hosts=10.0.0.2:2222,10.0.0.3:2222 \
        --train_dir=/shared/run1 --job_name=worker --task_index=0
"""

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

# TensorFlow reads these when it is imported. A proxy for the web must not stand between the tasks. A task that is back
# must be found soon: by default up to 2 minutes pass between gRPC's attempts. A call to a lost ps must fail at once: by
# default some wait until it is back, and so nothing that waits for them, such as closing a session, would end. What the
# C++ side says below an error, our own lines say better. Keras is a tenth of the import, and nothing here needs it: the
# old one, unlike the new, is left out where it is not installed.
os.environ.setdefault(
    "TF_GRPC_DEFAULT_OPTIONS",
    "grpc.enable_http_proxy=0,grpc.initial_reconnect_backoff_ms=200,grpc.max_reconnect_backoff_ms=400",
)
os.environ.setdefault("GRPC_FAIL_FAST", "true")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

# What the imports make stays, and to look for garbage in it again and again would take half a second of each start.
gc.disable()

import tensorflow.compat.v1 as tf
from absl import app, flags, logging

import mnist_input
import model
from runtime import (
    checkpoints,
    cluster,
    download,
    errors,
    evaluation,
    lifecycle,
    packing,
    placement,
    profiling,
    result,
    roll_call,
    signals,
    updates,
    watch,
)

gc.freeze()
gc.enable()

FLAGS = flags.FLAGS

# Who we are.
flags.DEFINE_enum("job_name", None, ["ps", "worker"], "what this process is")
flags.DEFINE_integer("task_index", None, "its index within the job; worker 0 is the chief", lower_bound=0)
flags.DEFINE_list("ps_hosts", "localhost:2222", "comma-separated host:port of the ps tasks")
flags.DEFINE_list("worker_hosts", "localhost:2223,localhost:2224", "comma-separated host:port of the workers")

# Where things lie.
flags.DEFINE_string("data_dir", download.default_data_dir(), "the four MNIST files; they are fetched if missing")
flags.DEFINE_string(
    "train_dir", "", "shared folder for checkpoints, summaries and result.json; empty: nothing is saved"
)

# What is trained, and how.
flags.DEFINE_enum("model", "mlp", model.MODELS, "the model")
flags.DEFINE_integer("hidden_units", 100, "width of the hidden layer", lower_bound=1)
flags.DEFINE_integer("train_steps", 10000, "global steps at which training ends", lower_bound=1)
flags.DEFINE_integer("batch_size", 100, "examples per worker and step", lower_bound=1)
flags.DEFINE_float("learning_rate", 0.001, "of the optimizer")
flags.DEFINE_enum("optimizer", "adam", updates.OPTIMIZERS, "the optimizer")
flags.DEFINE_boolean("sync_replicas", False, "average the workers' gradients in synchronous updates")
flags.DEFINE_alias("issync", "sync_replicas")
flags.DEFINE_integer(
    "replicas_to_aggregate", None, "gradients per synchronous update; fewer than workers leaves backups", lower_bound=1
)
flags.DEFINE_enum("ps_strategy", "round_robin", placement.PS_STRATEGIES, "how variables are spread over the ps tasks")
flags.DEFINE_integer(
    "partition_bytes", None, "split variables of more than so many bytes over the ps tasks", lower_bound=1
)
flags.DEFINE_integer("local_steps", 1, "steps on a worker's own copy between exchanges with the ps", lower_bound=1)
flags.DEFINE_integer(
    "seed", 0, "of the initial weights and the order of examples", lower_bound=0, upper_bound=2**31 - 1
)

# When.
flags.DEFINE_float("save_checkpoint_secs", 60, "period of the chief's checkpoints", lower_bound=1)
flags.DEFINE_float("log_every_secs", 2, "period of the progress line", lower_bound=0.1)
flags.DEFINE_float(
    "startup_timeout_secs", 300, "how long to wait for the ps tasks and the chief at start", lower_bound=1
)
flags.DEFINE_float("recovery_timeout_secs", 600, "how long to wait for a lost ps or chief to come back", lower_bound=1)

flags.DEFINE_string("profile_steps", None, "A:B: trace the steps of each worker between these two global steps")

flags.register_validator("learning_rate", lambda rate: 0 < rate < float("inf"), "it must be a number above 0")
flags.register_validator("data_dir", bool, "it must name a folder")


@flags.multi_flags_validator(["replicas_to_aggregate", "sync_replicas"], "it needs --sync_replicas")
def _check_replicas(values: dict[str, Any]) -> bool:
    return values["replicas_to_aggregate"] is None or bool(values["sync_replicas"])


@flags.multi_flags_validator(["profile_steps", "train_dir"], "it is A:B, two global steps, and needs --train_dir")
def _check_profile(values: dict[str, Any]) -> bool:
    with contextlib.suppress(ValueError):
        return values["profile_steps"] is None or bool(
            values["train_dir"] and profiling.parse_steps(values["profile_steps"])
        )
    return False


class UsageError(Exception):
    """A flag's value cannot be used."""


# What ends a task with status 2: its flags, its input or its environment must change.
UNUSABLE = (
    UsageError,
    cluster.ClusterError,
    download.DownloadError,
    checkpoints.CheckpointError,
    mnist_input.DataError,
)


class Training(NamedTuple):
    """A worker's graph."""

    batches: mnist_input.Batches
    updates: updates.Updates
    evaluation: evaluation.Evaluation


def main(argv: Sequence[str]) -> None:
    """Start this task's server; then serve as a ps, or train as a worker."""
    task = task_from_flags(argv)
    config = cluster.session_config(task)
    cluster_spec = tf.train.ClusterSpec(task.jobs)
    cluster.check_port_is_free(task)
    cluster.warn_if_reachable(task)
    server = tf.train.Server(cluster_spec, task.job_name, task.index, config=config)
    watching = watch.Watch(task, FLAGS.startup_timeout_secs, FLAGS.recovery_timeout_secs)
    if task.job_name == "ps":
        roll_call.start_leaving_when_evaluated(task, server.target, config)
        cluster.let_others_start()
        server.join()
    else:
        train(task, cluster_spec, server.target, config, watching)


def task_from_flags(argv: Sequence[str]) -> cluster.Task:
    """Return this task as the flags give it, or as `TF_CONFIG` does where no flag describes the cluster."""
    if len(argv) > 1:
        raise UsageError(f"unexpected argument {argv[1]!r}: flags are written --name=value")
    tf_config = os.environ.get("TF_CONFIG")
    if tf_config and not any(FLAGS[name].present for name in ("job_name", "task_index", "ps_hosts", "worker_hosts")):
        return cluster.task_from_tf_config(tf_config)
    if FLAGS.job_name is None or FLAGS.task_index is None:
        raise UsageError("--job_name (ps or worker) and --task_index are required")
    return cluster.Task(FLAGS.job_name, FLAGS.task_index, tuple(FLAGS.ps_hosts), tuple(FLAGS.worker_hosts))


def train(
    task: cluster.Task, cluster_spec: tf.train.ClusterSpec, target: str, config: tf.ConfigProto, watching: watch.Watch
) -> None:
    """Build the model, train it together with the other workers, and, as the chief, evaluate it."""
    replicas = num_replicas(task)  # refuses too many before anything is built
    train_dir = checkpoints.make_train_dir(task, FLAGS.train_dir)
    train_examples, test_examples = load_examples(task)

    tf.disable_eager_execution()
    tf.disable_control_flow_v2()  # an optimizer cannot make its state inside a loop of version 2
    strategy = placement.make_strategy(FLAGS.ps_strategy, len(task.ps_hosts))
    partitioner = placement.make_partitioner(FLAGS.partition_bytes, len(task.ps_hosts))
    with (
        tf.device(
            tf.train.replica_device_setter(worker_device=task.device, cluster=cluster_spec, ps_strategy=strategy)
        ),
        tf.variable_scope("", partitioner=partitioner),
    ):
        training = build_training(task, train_examples)
    if task.is_chief:
        placement.log(task)
        checkpoints.check_last_checkpoint(train_dir)
    roll = roll_call.RollCall(task)
    scaffold = make_scaffold(task, target, config, train_dir, training)
    progress = lifecycle.ProgressHook(
        task,
        training.updates.num_steps,
        training.updates.loss,
        training.updates.global_step,
        FLAGS.train_steps,
        FLAGS.batch_size,
        replicas,
        FLAGS.log_every_secs,
    )
    saving_hooks = checkpoints.make_saving_hooks(
        train_dir if task.is_chief else "", scaffold, FLAGS.save_checkpoint_secs, FLAGS.log_every_secs
    )
    with tf.train.MonitoredTrainingSession(
        master=target,
        is_chief=task.is_chief,
        scaffold=scaffold,
        chief_only_hooks=[
            roll_call.WaitForWorkersHook(roll, task),  # first, so that what follows sees the last step
            *saving_hooks,
        ],
        hooks=[
            *training.updates.hooks,
            *profiling.make_hooks(task, training.updates.global_step, FLAGS.profile_steps, train_dir),
            lifecycle.StopAtStepHook(task, scaffold, training.updates.global_step, FLAGS.train_steps),
            progress,
            watch.AbandonSessionHook(watching),
            signals.StopOnSignalHook(task, saving_hooks),
            roll_call.RollCallHook(roll, task, FLAGS.sync_replicas, FLAGS.startup_timeout_secs),  # its word is the last
        ],
        config=config,
        stop_grace_period_secs=0.5,  # the thread that applies synchronous updates never stops by itself
    ) as session:
        cluster.let_others_start()
        while not session.should_stop():
            session.run(training.updates.train_op)

    if test_examples:
        with tf.Session(target, config=config) as session:
            measures = training.evaluation.run(session, test_examples)
            found = make_result(task, measures, progress)
            if train_dir:
                found.write(train_dir)
            print(found, flush=True)
            roll.say(session, roll_call.EVALUATED)


def load_examples(task: cluster.Task) -> tuple[mnist_input.Examples, mnist_input.Examples | None]:
    """Return this worker's shard of the training examples and, for the chief, all test examples."""
    download.fetch(FLAGS.data_dir)
    train_examples = mnist_input.load(FLAGS.data_dir, "train")
    test_examples = mnist_input.load(FLAGS.data_dir, "t10k") if task.is_chief else None
    return mnist_input.shard(train_examples, task.index, len(task.worker_hosts)), test_examples


def num_replicas(task: cluster.Task) -> int:
    """Return how many workers' gradients make one update, and so one global step.

    Raises:
      UsageError: `--replicas_to_aggregate` is more than there are workers.
    """
    num_workers = len(task.worker_hosts)
    if (FLAGS.replicas_to_aggregate or 1) > num_workers:
        raise UsageError(
            f"--replicas_to_aggregate is {FLAGS.replicas_to_aggregate}, expected at most {num_workers}, the number of"
            " workers"
        )
    return (FLAGS.replicas_to_aggregate or num_workers) if FLAGS.sync_replicas else 1


def make_scaffold(
    task: cluster.Task, target: str, config: tf.ConfigProto, train_dir: str, training: Training
) -> lifecycle.TrainingScaffold:
    """Build what makes a worker's sessions ready."""
    return lifecycle.TrainingScaffold(
        task,
        target,
        config,
        train_dir,
        unsaved_variables=training.updates.unsaved_variables,
        local_init_op=training.batches.initializer,
        local_init_feed_dict=training.batches.feed_dict,
        startup_timeout_secs=FLAGS.startup_timeout_secs,
        recovery_timeout_secs=FLAGS.recovery_timeout_secs,
    )


def build_training(task: cluster.Task, examples: mnist_input.Examples) -> Training:
    """Build a worker's whole graph, under the device function that places it."""
    tf.set_random_seed(FLAGS.seed)
    tf.train.create_global_step()
    test = evaluation.Evaluation(FLAGS.model, FLAGS.hidden_units)  # first: it makes the variables; the rest has copies
    packed = packing.Packing(tf.trainable_variables())
    num_batches = FLAGS.local_steps * (1 if FLAGS.sync_replicas else updates.EXCHANGES_PER_RUN)
    with tf.device(task.device):
        batches = mnist_input.build_batches(examples, num_batches, FLAGS.batch_size, FLAGS.seed, stream=task.index)

        def build_logits(parameters: Sequence[tf.Tensor], indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            images, labels = batches.batch(indices)
            with packed.replaced_by(parameters):
                return model.build_logits(images, FLAGS.model, FLAGS.hidden_units), labels

        def build_loss(parameters: Sequence[tf.Tensor], indices: tf.Tensor) -> tf.Tensor:
            return model.build_loss(*build_logits(parameters, indices))

        optimizer = updates.make_optimizer(FLAGS.optimizer, FLAGS.learning_rate)
        if FLAGS.local_steps == 1:
            build_exchange = updates.make_gradients(packed, build_loss, batches.indices, optimizer)
        else:
            num_shares = 1 if FLAGS.sync_replicas else updates.SHARES_OF_WORKER * len(task.worker_hosts)
            build_exchange = updates.make_local_steps(
                packed, build_loss, batches.indices, optimizer, FLAGS.local_steps, FLAGS.train_steps, num_shares
            )
        logits, labels = build_logits(packed.split(packed.read()), batches.indices[-1])
        tf.summary.scalar("accuracy", model.build_accuracy(logits, labels))

    if FLAGS.sync_replicas:
        how = updates.build_sync_updates(packed, build_exchange, num_replicas(task), task)
    else:
        max_pending = 0 if FLAGS.local_steps == 1 else 1
        how = updates.build_async_updates(packed, build_exchange, max_pending, FLAGS.train_steps, task)
    tf.summary.scalar("loss", how.loss)
    return Training(batches, how, test)


def make_result(task: cluster.Task, measures: evaluation.Measures, progress: lifecycle.ProgressHook) -> result.Result:
    """Return what this run found."""
    return result.Result(
        test_accuracy=round(measures.accuracy, 6),
        test_loss=round(measures.loss, 6),
        global_step=measures.global_step,
        train_secs=round(progress.train_secs, 3),
        examples_per_sec=round(progress.num_examples / progress.train_secs, 1) if progress.train_secs else 0.0,
        model=FLAGS.model,
        optimizer=FLAGS.optimizer,
        sync_replicas=FLAGS.sync_replicas,
        local_steps=FLAGS.local_steps,
        batch_size=FLAGS.batch_size,
        num_ps=len(task.ps_hosts),
        num_workers=len(task.worker_hosts),
        tensorflow_version=tf.__version__,
    )


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parse the command line as absl does, but end with status 2 and one line where it is wrong."""
    try:
        return list(FLAGS(argv))
    except flags.Error as error:
        print(f"error: {error} (see --help)", file=sys.stderr)
        sys.exit(2)


def run(argv: Sequence[str]) -> None:
    """Run `main`, and end the process with a status and, if something went wrong, one line that says what."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own handler never runs in server.join()
    status = 0
    try:
        main(argv)
    except UNUSABLE as error:
        print(f"error: {error}", file=sys.stderr)
        status = 2
    except (TimeoutError, signals.StoppedError) as error:
        print(f"error: {error}", file=sys.stderr)
        status = 1
    except tf.errors.OpError as error:
        print(f"error: {errors.reason(error)}; start this task again", file=sys.stderr)
        status = 1
    logging.flush()
    sys.stdout.flush()
    os._exit(status)  # at once: neither a server nor a session in use can be stopped


if __name__ == "__main__":
    tf.logging.set_verbosity(tf.logging.ERROR)  # below that it mostly tells that TensorFlow 1 is old
    FLAGS.set_default("verbosity", logging.INFO)
    app.run(run, flags_parser=parse_flags)
