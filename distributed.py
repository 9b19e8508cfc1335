r"""Train MNIST with parameter servers: every machine of the cluster runs this script.

On one machine, run each line in a terminal of its own, in any order:

    python distributed.py --job_name=ps --task_index=0
    python distributed.py --job_name=worker --task_index=0
    python distributed.py --job_name=worker --task_index=1

or run them all with ./run_local_cluster.sh. On several machines, give every task the same two lists of addresses:

    python distributed.py --ps_hosts=10.0.0.1:2222 --worker_hosts=10.0.0.2:2222,10.0.0.3:2222 \
        --train_dir=/shared/run1 --job_name=worker --task_index=0
"""

import contextlib
import os
from collections.abc import Sequence

from runtime import environment  # noqa: F401  # first: it sets what TensorFlow reads when it is imported

# isort: split
import tensorflow.compat.v1 as tf
from absl import logging
from absl.command_name import set_kernel_process_name

import mnist_input
import model
from runtime import events, program, report
from runtime.cluster import host_lists
from runtime.cluster.agreement import Agreement
from runtime.cluster.connection import Connection
from runtime.cluster.discovery import discover
from runtime.cluster.leaving import Departure
from runtime.cluster.roll_call import RollCall, dismiss_servers
from runtime.cluster.task import Task
from runtime.cluster.waiting import Timeouts, Watch
from runtime.data import download, streams
from runtime.data.sources import open_source
from runtime.errors import UnusableError
from runtime.flags import define_flags
from runtime.machine.port import check_address, wait_until_address_leads_here
from runtime.machine.priority import lower_priority
from runtime.machine.session_config import make_server_config, make_session_config
from runtime.session import profiling, summaries
from runtime.session.attendance import RollCallHook, WaitForWorkersHook
from runtime.session.checkpoints import CheckpointHook, make_train_dir
from runtime.session.evaluation import Evaluate, Evaluation, EvaluationHook, record_test
from runtime.session.evaluator import follow_checkpoints
from runtime.session.export import Serving, check_export_dir, export
from runtime.session.input import InputHook
from runtime.session.progress import ProgressHook
from runtime.session.result import Goal, evaluate_and_save, keep_trying, make_result
from runtime.session.scaffold import Job, TrainingScaffold
from runtime.session.stopping import AbandonSessionHook, StopAtStepHook, StopOnSignalHook, StopWithChiefHook
from runtime.updates import placement
from runtime.updates.exchange import Updates
from runtime.updates.mode import Mode, build_updates
from runtime.updates.packing import Packing

FLAGS = define_flags(model.MODELS)


def main() -> None:
    """Start the server of this task; then serve as a ps, or train as a worker."""
    tf.disable_eager_execution()
    tf.disable_control_flow_v2()  # inside a loop of version 2, an optimizer cannot make its state
    task = choose_task().with_replication(FLAGS.replication)
    if task.job_name == "evaluator":
        return evaluate_checkpoints(task)
    set_kernel_process_name(f"{task.job_name}-{task.index}")  # as `ps` and `pkill` show it
    mode = Mode(**{name: getattr(FLAGS, name) for name in Mode._fields})
    mode.check(num_workers=len(task.worker_hosts))
    check_address(task)
    train_dir = make_train_dir(task, FLAGS.train_dir)
    events.start_recording(task, train_dir)

    # The cluster: the addresses of all tasks, by job. Every task is given the same ones.
    cluster = tf.train.ClusterSpec(task.jobs)

    # The server: through it, sessions anywhere in the cluster use the memory and the processors of this task.
    config = make_session_config(task, FLAGS.gpus)
    server = tf.train.Server(cluster, task.job_name, task.index, config=make_server_config(config))
    wait_until_address_leads_here(task, FLAGS.startup_timeout_secs)
    connection = Connection(server.target, config)
    watch = Watch(task, Timeouts(FLAGS.startup_timeout_secs, FLAGS.recovery_timeout_secs))
    host_lists.start_watch(task, connection)

    # A ps changes variables, and an in-graph worker computes, as the sessions of others demand. join() never returns.
    if task.only_serves:
        Departure(task, connection)
        lower_priority(task)
        server.join()
    else:
        train(task, cluster, mode, connection, watch, train_dir)


def choose_task() -> Task:
    """Return this task as the flags give it, or as a cluster manager does where no flag describes the cluster."""
    if not any(FLAGS[name].present for name in ("job_name", "task_index", "ps_hosts", "worker_hosts")):
        if discovery := discover(os.environ):
            FLAGS.set_default("train_dir", discovery.model_dir)
            return discovery.task
    elif "TF_CONFIG" in os.environ:
        logging.info("TF_CONFIG is ignored, since flags describe the cluster")
    if FLAGS.job_name is None or (FLAGS.task_index is None and FLAGS.job_name != "evaluator"):
        raise UnusableError("--job_name (ps, worker or evaluator) and --task_index are required")
    return Task(FLAGS.job_name, FLAGS.task_index or 0, tuple(FLAGS.ps_hosts), tuple(FLAGS.worker_hosts))


def train(
    task: Task, cluster: tf.train.ClusterSpec, mode: Mode, connection: Connection, watch: Watch, train_dir: str
) -> None:
    """Train the model together with the other workers; the chief evaluates it in the end."""
    check_export_dir(task, FLAGS.export_dir)
    train_examples, test_examples, data = load_examples(task)
    batches, updates, evaluation = build_training(task, cluster, mode, connection.config, train_examples)
    evaluate = evaluation.on(test_examples)

    # The session: it waits for the ps tasks and for the model, and is made anew after the loss of a ps. Its hooks run
    # around every step, in this order; at the end, those of the chief alone run before the others.
    roll_call = RollCall(task)
    scaffold = make_scaffold(task, connection, updates, data, train_dir, watch.timeouts)
    checkpoint_hook = CheckpointHook(task, train_dir, scaffold, FLAGS.save_checkpoint_secs)
    progress = ProgressHook(task, updates, FLAGS.train_steps, FLAGS.batch_size, FLAGS.log_every_secs, train_dir)
    with tf.train.MonitoredTrainingSession(
        master=connection.target,
        is_chief=task.is_chief,
        scaffold=scaffold,
        chief_only_hooks=[
            EvaluationHook(task, evaluate, train_dir, roll_call, FLAGS.eval_every_secs, FLAGS.stop_at_accuracy),
            WaitForWorkersHook(roll_call, task, FLAGS.recovery_timeout_secs),
            checkpoint_hook,
        ],
        hooks=[
            InputHook(task, updates, batches.initializer, batches.feed_dict),
            *updates.hooks,
            *profiling.make_profiling_hooks(task, updates.global_step, FLAGS.profile_steps, train_dir),
            StopAtStepHook(task, scaffold, updates.global_step, FLAGS.train_steps),
            StopWithChiefHook(task, roll_call, FLAGS.stop_at_accuracy),
            progress,
            summaries.SummaryHook(task, updates, train_dir, FLAGS.log_every_secs),
            AbandonSessionHook(watch, roll_call),
            StopOnSignalHook(task, roll_call, checkpoint_hook),
            RollCallHook(roll_call, task, FLAGS.sync_replicas, FLAGS.startup_timeout_secs),
        ],
        config=connection.config,
    ) as session:
        lower_priority(task)
        while not session.should_stop():
            with scaffold.repeating_cancelled_steps():
                session.run(updates.train_op)

    if task.is_chief:
        finish(task, connection, watch, evaluate, checkpoint_hook, progress, train_dir)


def finish(
    task: Task,
    connection: Connection,
    watch: Watch,
    evaluate: Evaluate,
    checkpoint_hook: CheckpointHook,
    progress: ProgressHook,
    train_dir: str,
) -> None:
    """Test the finished model, save what came of it, and let the ps tasks go. They keep it until then."""
    session = connection.session()
    measures = evaluate_and_save(session, evaluate, checkpoint_hook)
    result = make_result(task, agreed_flags(), measures, progress)
    print(result)
    steps = [
        lambda: checkpoint_hook.save(session),
        lambda: export(FLAGS.export_dir, build_serving, measures.parameters),
        lambda: result.write(train_dir),
    ]
    keep_trying(task, steps, FLAGS.recovery_timeout_secs)
    with contextlib.suppress(tf.errors.OpError):  # a ps does not answer: then this waits for it below
        session.close()
    dismiss_servers(task, watch)
    record_test(measures, train_dir)
    report.write(train_dir)


def make_scaffold(
    task: Task, connection: Connection, updates: Updates, data: str, train_dir: str, timeouts: Timeouts
) -> TrainingScaffold:
    """Build what makes the sessions of a worker ready; `data` tells the examples from others."""
    agreement = Agreement(task, {**agreed_flags(), "data_dir": data})
    goal = Goal(FLAGS.train_steps, FLAGS.stop_at_accuracy)
    job = Job(agreement, updates.unsaved_variables, train_dir, FLAGS.checkpoints, FLAGS.keep_checkpoints, goal)
    return TrainingScaffold(task, connection, job, timeouts)


def agreed_flags() -> dict[str, object]:
    """Return the flags that all workers must be given alike."""
    names = ["model", "hidden_units", "batch_size", "ps_strategy", "partition_bytes", "seed", "stop_at_accuracy"]
    return {name: FLAGS[name].value for name in (*Mode._fields, *names, "sharding")}


def load_examples(task: Task) -> tuple[streams.Source, streams.Columns, str]:
    """Return what this worker trains on, all test examples for the chief, and what tells the data from others."""
    source = open_source(FLAGS.data_dir, "train", mnist_input)
    test_examples = open_source(FLAGS.data_dir, "t10k", mnist_input).load() if task.is_chief else ()
    share = source if FLAGS.sharding == "dynamic" else source.share(task.index, task.num_clients)
    return share, test_examples, source.description


def build_training(
    task: Task, cluster: tf.train.ClusterSpec, mode: Mode, config: tf.ConfigProto, source: streams.Source
) -> tuple[streams.Batches, Updates, Evaluation]:
    """Build the graph of this worker. Each worker builds its own, and all share the variables on the ps tasks."""
    tf.set_random_seed(FLAGS.seed)

    # The device setter: it places the variables on the ps tasks, and what computes on this worker.
    strategy = placement.make_strategy(FLAGS.ps_strategy, len(task.ps_hosts))
    partitioner = placement.make_partitioner(FLAGS.partition_bytes, len(task.ps_hosts))
    setter = tf.train.replica_device_setter(worker_device=task.device, cluster=cluster, ps_strategy=strategy)
    with tf.device(setter), tf.variable_scope("", partitioner=partitioner):
        tf.train.create_global_step()
        parameters = model.build_parameters(FLAGS.model, FLAGS.hidden_units)
        packing = Packing(parameters)
        batch_size = FLAGS.batch_size * task.batches_per_step
        with tf.device(task.device), tf.name_scope("input"):
            decode = mnist_input.decode
            batches = streams.build_batches(source, mode.batches_per_run, batch_size, FLAGS.seed, decode)

        def build_loss(parts: Sequence[tf.Tensor], inputs: tf.Tensor) -> tf.Tensor:
            images, labels = batches.batch(inputs)
            return model.build_loss(model.build_logits(packing.by_name(parts), images), labels)

        updates = build_updates(packing, build_loss, batches.inputs, mode, task, config)
        evaluation = build_evaluation(packing, task.device)
        with tf.device(task.device), tf.name_scope("evaluation_of_batch"):
            images, labels = batches.batch(batches.inputs[-1])
            accuracy = model.build_accuracy(model.build_logits(evaluation.parameters, images), labels)
        summaries.build(task, updates, packing, evaluation.parameters, accuracy, mode.schedule)
    placement.log_placement(task)
    return batches, updates, evaluation


def build_evaluation(packing: Packing, device: str) -> Evaluation:
    """Build the part of the graph that measures the model on the examples that it is fed."""
    with tf.device(device), tf.name_scope("evaluation"):
        parameters = packing.by_name(packing.split(packing.read()))
        images = tf.placeholder(tf.uint8, [None, mnist_input.NUM_PIXELS], name="test_images")
        labels = tf.placeholder(tf.int32, [None], name="test_labels")
        logits = model.build_logits(parameters, mnist_input.to_float(images))
        loss, accuracy = model.build_loss(logits, labels), model.build_accuracy(logits, labels)
    return Evaluation(parameters, images, labels, logits, loss, accuracy)


def evaluate_checkpoints(task: Task) -> None:
    """Evaluate the checkpoints of a run that others train. The evaluator has a graph and a session of its own."""
    train_dir = make_train_dir(task, FLAGS.train_dir)
    tf.train.create_global_step()
    packing = Packing(model.build_parameters(FLAGS.model, FLAGS.hidden_units))
    evaluate = build_evaluation(packing, device="").on(open_source(FLAGS.data_dir, "t10k", mnist_input).load())
    timeouts = Timeouts(FLAGS.startup_timeout_secs, FLAGS.recovery_timeout_secs + FLAGS.save_checkpoint_secs)
    follow_checkpoints(task, evaluate, train_dir, Goal(FLAGS.train_steps, FLAGS.stop_at_accuracy), timeouts)


def build_serving() -> Serving:
    """Build what an exported model computes: from images, uint8 [n, 28, 28], to their classes and probabilities."""
    parameters = model.build_parameters(FLAGS.model, FLAGS.hidden_units)
    images = tf.placeholder(tf.uint8, [None, *mnist_input.IMAGE_SHAPE], name="images")
    logits = model.build_logits(parameters, mnist_input.to_float(tf.reshape(images, [-1, mnist_input.NUM_PIXELS])))
    outputs = {"classes": tf.argmax(logits, axis=1), "probabilities": tf.nn.softmax(logits)}
    return Serving({"images": images}, outputs, parameters)


def run() -> None:
    """Do what the command line says, and end this process."""
    program.start(main, data_errors=(download.DownloadError, mnist_input.DataError))


if __name__ == "__main__":
    run()
