r"""Train MNIST with parameter servers: every machine of the cluster runs this script.

On one machine, run each line in a terminal of its own, in any order:

    python distributed.py --job_name=ps --task_index=0
    python distributed.py --job_name=worker --task_index=0
    python distributed.py --job_name=worker --task_index=1

or run them all with ./run_local_cluster.sh. On several machines, give every task the same two lists of addresses:

    python distributed.py --ps_hosts=10.0.0.1:2222 --worker_hosts=10.0.0.2:2222,10.0.0.3:2222 \
        --train_dir=/shared/run1 --job_name=worker --task_index=0
"""

from runtime import environment, users_files  # noqa: F401  # first: before TensorFlow and the user's files

# isort: split
import tensorflow.compat.v1 as tf

import mnist_input
import model
from runtime import program, tables
from runtime.data import sources, streams
from runtime.flags import define_flags
from runtime.member import Member
from runtime.monitoring.evaluation import EvaluationGraph
from runtime.saving.export import Serving
from runtime.training import Training, TrainingGraph
from runtime.updates.mode import build_updates
from runtime.updates.packing import Packing

FLAGS = define_flags(model.MODELS)
INPUT = mnist_input.INPUT  # an example, as an exported model takes it


def main() -> None:
    """Start the server of this task; then serve as a ps, or train as a worker."""
    tf.disable_eager_execution()
    tf.disable_control_flow_v2()  # inside a loop of version 2, an optimizer cannot make its state
    me = Member.from_flags(FLAGS)
    if me.is_evaluator:
        return follow_checkpoints(me)

    # The cluster: the addresses of all tasks, by job. Every task is given the same ones.
    cluster = tf.train.ClusterSpec(me.task.jobs)

    # The server: through it, sessions anywhere in the cluster use the memory and the processors of this task.
    server = tf.train.Server(cluster, me.task.job_name, me.task.index, config=me.server_config)
    me.guard(server)

    # A ps changes variables, and an in-graph worker computes, as the sessions of others demand. join() never returns.
    if me.task.only_serves:
        me.leave_when_told()
        me.yield_to_starts()
        server.join()
    else:
        train(me, cluster, server)


def build_graph(me: Member, cluster: tf.train.ClusterSpec, source: sources.Source) -> TrainingGraph:
    """Build the graph of this worker. Each worker builds its own, and all share the variables on the ps tasks."""
    tf.set_random_seed(FLAGS.seed)

    # The device setter: it places the variables on the ps tasks, and what computes on this worker.
    device = me.task.device
    setter = tf.train.replica_device_setter(worker_device=device, cluster=cluster, ps_strategy=me.ps_strategy)
    with tf.device(setter), tf.variable_scope("", partitioner=me.partitioner):
        tf.train.create_global_step()
        packing = Packing(me.make_tables(users_files.build_parameters(model, FLAGS.model, FLAGS.hidden_units)))
        with tf.device(device), tf.name_scope("input"):
            batches = streams.build_batches(source, me.mode.num_batches, me.batch_size, FLAGS.seed, mnist_input.decode)

        def build_loss(parameters: tables.Parameters, inputs: tf.Tensor) -> tf.Tensor:
            images, labels = batches.batch(inputs)
            return model.build_loss(build_logits(parameters, images, is_training=True), labels)

        def build_ids(inputs: tf.Tensor) -> tables.Ids:
            return tables.build_ids(model, batches.batch(inputs)[0])

        updates = build_updates(packing, build_loss, build_ids, batches.inputs, me.mode, me.task, me.session_config)
        evaluation = build_evaluation(packing, device)
        with tf.device(device), tf.name_scope("evaluation_of_batch"):
            images, labels = batches.batch(batches.inputs[-1])
            parameters = packing.fetch(tables.build_ids(model, images))
            accuracy = model.build_accuracy(build_logits(parameters, images), labels)
    return TrainingGraph(batches, packing, updates, evaluation, parameters, accuracy)


def train(me: Member, cluster: tf.train.ClusterSpec, server: tf.train.Server) -> None:
    """Train the model together with the other workers; the chief tests it in the end."""
    source = sources.open_source(FLAGS.data_dir, "train", mnist_input)
    test_examples = sources.open_source(FLAGS.data_dir, "t10k", mnist_input).load() if me.task.is_chief else ()
    graph = build_graph(me, cluster, me.share_of(source))

    # The session: it waits for the ps tasks and for the model, and is made anew after the loss of a ps.
    training = Training(me, graph, source.description, test_examples)
    with tf.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=me.task.is_chief,
        scaffold=training.scaffold,
        chief_only_hooks=training.chief_only_hooks,
        hooks=training.hooks,
        config=me.session_config,
    ) as session:
        me.yield_to_starts()
        while not session.should_stop():
            with training.scaffold.repeating_cancelled_steps():
                session.run(graph.updates.train_op)
    training.finish(build_serving)


def build_logits(parameters: tables.Parameters, images: tf.Tensor, is_training: bool = False) -> tf.Tensor:
    """Build the logits; a model may have others for training. Of a table it gets the rows that the images need."""
    build = getattr(model, "build_training_logits", model.build_logits) if is_training else model.build_logits
    values = tables.look_up(parameters, tables.build_ids(model, images))
    return users_files.check_result(build.__name__, build(values, images), "[b, classes]")


def build_evaluation(packing: Packing, device: str) -> EvaluationGraph:
    """Build the part of the graph that measures the model on the examples that it is fed."""
    with tf.device(device), tf.name_scope("evaluation"):
        choices, parameters = packing.fetch_chosen()
        images = tf.placeholder(INPUT.dtype, [None, INPUT.shape.num_elements()], name="test_images")
        labels = tf.placeholder(tf.int32, [None], name="test_labels")
        inputs = mnist_input.to_inputs(images)
        logits = build_logits(parameters, inputs)
        loss, accuracy = model.build_loss(logits, labels), model.build_accuracy(logits, labels)
        ids = tables.build_ids(model, inputs)
        return EvaluationGraph(choices, parameters, images, labels, ids, logits, loss, accuracy)


def follow_checkpoints(me: Member) -> None:
    """Evaluate the checkpoints of a run that others train. The evaluator has a graph and a session of its own."""
    tf.train.create_global_step()
    packing = Packing(me.make_tables(users_files.build_parameters(model, FLAGS.model, FLAGS.hidden_units)))
    test_examples = sources.open_source(FLAGS.data_dir, "t10k", mnist_input).load()
    me.follow_checkpoints(build_evaluation(packing, device=""), test_examples)


def build_serving() -> Serving:
    """Build what an exported model computes: from images, such as uint8 [n, 28, 28], to classes and probabilities."""
    parameters = tables.make_variables(users_files.build_parameters(model, FLAGS.model, FLAGS.hidden_units))
    images = tf.placeholder(INPUT.dtype, [None, *INPUT.shape], INPUT.name)
    logits = build_logits(parameters, mnist_input.to_inputs(tf.reshape(images, [-1, INPUT.shape.num_elements()])))
    outputs = {"classes": tf.argmax(logits, axis=1), "probabilities": tf.nn.softmax(logits)}
    return Serving({INPUT.name: images}, outputs, parameters)


if __name__ == "__main__":
    program.start(main, mnist_input.DataError)
