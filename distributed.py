r"""Train MNIST with parameter servers: every machine of the cluster runs this script.

On one machine, run each line in a terminal of its own, in any order:

    python distributed.py --job_name=ps --task_index=0
    python distributed.py --job_name=worker --task_index=0
    python distributed.py --job_name=worker --task_index=1

or run them all with ./run_local_cluster.sh. On several machines, give every task the same two lists of addresses:

    python distributed.py --ps_hosts=10.0.0.1:2222 --worker_hosts=10.0.0.2:2222,10.0.0.3:2222 \
        --train_dir=/shared/run1 --job_name=worker --task_index=0
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # as Python does, but for -P and -I

from runtime.process import environment  # first: before TensorFlow

# isort: split
import functools

import tensorflow.compat.v1 as tf

from runtime.data import sources
from runtime.process import phases
from runtime.roles import program
from runtime.roles.flags import define_flags
from runtime.roles.member import Member
from runtime.roles.training import Training, TrainingGraph
from runtime.updates.mode import build_updates

FILES = program.import_files()  # the user's: model.py and mnist_input.py
FLAGS = define_flags()


def main() -> None:
    """Start the server of this task; then serve as a ps, or train as a worker."""
    environment.choose_behavior()
    me = Member.from_flags(FLAGS)
    if me.is_evaluator:
        with phases.preparing():
            source = sources.open_source(FLAGS.data_dir, "t10k", FILES.reader)
        return me.follow_checkpoints(FILES, source)

    # The cluster: the addresses of all tasks, by job. Every task is given the same ones.
    cluster = tf.train.ClusterSpec(me.task.jobs)

    # The server: through it, sessions anywhere in the cluster use the memory and the processors of this task.
    server = tf.train.Server(cluster, me.task.job_name, me.task.index, config=me.server_config)
    me.guard(server)

    # A ps changes variables, and an in-graph worker computes, as the sessions of others demand. join() never returns.
    if me.task.only_serves:
        me.leave_when_told()
        server.join()
    else:
        train(me, cluster, server)


def build_graph(me: Member, cluster: tf.train.ClusterSpec, source: sources.Source) -> TrainingGraph:
    """Build the graph of this worker. Each worker builds its own, and all share the variables on the ps tasks."""
    tf.set_random_seed(FLAGS.seed)
    with tf.device(me.task.device), tf.name_scope("examples_drawn"):  # leaves "input" to the model
        batches = source.draw(me.mode.num_batches, me.batch_size, FLAGS.seed)

    # The model: the functions of model.py and mnist_input.py are called here, and never again. From then on they are a
    # function of parameters and examples.
    traced = me.trace(FILES, batches.signature)

    # The device setter: it places the variables on the ps tasks, and what computes on this worker.
    setter = tf.train.replica_device_setter(worker_device=me.task.device, cluster=cluster, ps_strategy=me.ps_strategy)
    with tf.device(setter), tf.variable_scope("", partitioner=me.partitioner):
        tf.train.create_global_step()
        packing = me.make_variables(traced)

        # The updates. In each of them this worker
        #   pulls the parameters from the ps tasks,
        #   computes the gradients of a batch, and
        #   pushes them to the ps tasks, whose optimizers apply them.
        updates = build_updates(packing, traced, batches, me.mode, me.membership, me.session_config)
    return TrainingGraph(batches, packing, updates, traced)


def train(me: Member, cluster: tf.train.ClusterSpec, server: tf.train.Server) -> None:
    """Train the model together with the other workers; the chief tests it in the end."""
    with phases.preparing():
        source = sources.open_source(FLAGS.data_dir, "train", FILES.reader)
        description, source = source.description, me.share_of(source)  # the rest need not stay in memory
        graph = build_graph(me, cluster, source)
        load_tests = functools.partial(sources.load, FLAGS.data_dir, "t10k", FILES.reader)  # only the chief tests
        training = Training(me, graph, description, load_tests)

    # The session: it waits for the ps tasks and for the model, and is made anew after the loss of a ps.
    with tf.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=me.task.is_chief,
        scaffold=training.scaffold,
        hooks=training.hooks,
        config=me.session_config,
    ) as session:
        while not session.should_stop():
            with training.scaffold.repeating_cancelled_steps(), source.telling_faults():
                session.run(graph.updates.train_op)
    training.finish()


if __name__ == "__main__":
    program.start(main)
