"""Flags, and what stands where in the graph."""

import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import distributed
import mnist_input
import model
from benchmarks.testbed.messages import tensors_sent, types_sent
from runtime.cluster.membership import Membership
from runtime.cluster.task import Task
from runtime.data.memory import MemorySource
from runtime.machine.session_config import make_session_config
from runtime.model.variables import Lookups
from runtime.process.errors import UnusableError
from runtime.records.folder import RunFolder
from runtime.roles import member
from runtime.roles.member import Member, choose_task
from runtime.updates.mode import EXCHANGES_PER_RUN

PS_HOSTS = ("a:1", "b:2")
WORKER_HOSTS = ("c:3", "d:4")
EXAMPLES = MemorySource(mnist_input.Examples(np.zeros((50, 784), np.uint8), np.zeros(50, np.uint8)))


def build_graph(task):
    """Build a worker's graph as the flags say."""
    me = Member(distributed.FLAGS, task, RunFolder(""), make_session_config(task))
    me.membership = Membership(task, me.timeouts)
    return distributed.build_graph(me, tf.train.ClusterSpec(task.jobs), me.share_of(EXAMPLES))


def build(set_flags, *flags, worker=1):
    """Build a worker's graph, without any server, and return each op's device by its name."""
    set_flags(*flags)
    task = Task("worker", worker, PS_HOSTS, WORKER_HOSTS)
    build_graph(task)
    tf.train.Saver(sharded=True)
    return {op.name: device_of(op) for op in tf.get_default_graph().get_operations()}


def device_of(op):
    """Return where TensorFlow places an op: where it says or, if it uses a variable, where that is."""
    if op.device:
        return op.device
    handles = [tensor for tensor in op.inputs if tensor.dtype == tf.resource]
    return device_of(handles[0].op) if handles else ""


def variable_devices():
    return {variable.op.name: variable.device for variable in tf.global_variables() + tf.local_variables()}


PS_0, PS_1, WORKER_1 = "/job:ps/task:0", "/job:ps/task:1", "/job:worker/task:1"


def test_variables_go_round_robin_to_the_ps_tasks_and_slots_to_their_variables(graph, set_flags):
    build(set_flags)
    assert variable_devices() == {
        "global_step": PS_0,
        "mlp/hidden/weights": PS_1,
        "mlp/hidden/biases": PS_0,
        "mlp/logits/weights": PS_1,
        "mlp/logits/biases": PS_0,
        "mlp/hidden/weights/Adam": PS_1,
        "mlp/hidden/weights/Adam_1": PS_1,
        "mlp/hidden/biases/Adam": PS_0,
        "mlp/hidden/biases/Adam_1": PS_0,
        "mlp/logits/weights/Adam": PS_1,
        "mlp/logits/weights/Adam_1": PS_1,
        "mlp/logits/biases/Adam": PS_0,
        "mlp/logits/biases/Adam_1": PS_0,
    }


@pytest.mark.parametrize(
    "flags",
    [[], ["--sync_replicas"], ["--max_staleness=2"], ["--local_steps=4"], ["--local_steps=4", "--sync_replicas"]],
)
def test_every_mode_saves_the_same_variables(graph, set_flags, flags):
    build(set_flags, "--optimizer=sgd", *flags)
    assert {variable.op.name for variable in tf.global_variables()} == {
        "global_step",
        *(f"mlp/{layer}/{kind}" for layer in ("hidden", "logits") for kind in ("weights", "biases")),
    }


def test_only_examples_that_workers_share_need_a_variable(graph, set_flags):
    build(set_flags, "--sharding=dynamic")
    devices = variable_devices()
    with tf.Graph().as_default():
        build(set_flags, "--sharding=static")
        assert devices == {**variable_devices(), "sharding/runs_dealt_out": PS_0}


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--sync_replicas"],
        ["--model=cnn", "--optimizer=momentum"],
        ["--local_steps=4"],
        ["--local_steps=4", "--sync_replicas"],
        ["--local_steps=4", "--max_staleness=2"],
        ["--sharding=dynamic"],
    ],
)
def test_every_op_has_its_place(graph, set_flags, flags):
    devices = build(set_flags, *flags)
    # What runs once, at the start or in a save, may run wherever the session is.
    unplaced = [name for name, device in devices.items() if not device]
    assert [name for name in unplaced if not re.search("/Initializer/|^save/", name)] == []
    elsewhere = {device for device in devices.values() if not device.startswith((PS_0, PS_1, WORKER_1))}
    assert elsewhere <= {"", "/device:CPU:0", "/device:CPU:*"}


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--sync_replicas"]])
def test_what_computes_is_on_the_worker_and_what_updates_is_on_the_ps(graph, set_flags, flags):
    build(set_flags, *flags)
    operations = graph.get_operations()
    computing = [
        op for op in operations if op.type in ("MatMul", "Relu", "IteratorV2", "IteratorGetNext", "Placeholder")
    ]
    assert {op.device for op in computing} == {WORKER_1}
    updating = [op for op in operations if re.match("ResourceApply|ConditionalAccumulator|Accumulator", op.type)]
    assert {op.device for op in updating} == {PS_0, PS_1}
    queues = {op.device for op in operations if op.type == "FIFOQueueV2"}
    assert queues == ({f"{ps}/device:CPU:*" for ps in (PS_0, PS_1)} if flags else set()), "each ps has its own"


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--model=cnn"],
        ["--optimizer=sgd"],
        ["--local_steps=4"],
        ["--sync_replicas"],
        ["--sync_replicas", "--local_steps=4"],
        ["--sharding=dynamic"],
    ],
)
def test_parameters_and_gradients_are_one_message_for_each_ps_each_way(graph, set_flags, local_servers, flags):
    tensors = run_once(graph, set_flags, local_servers, tensors_sent, *flags)
    worker, ps_tasks = ("worker", 0), [("ps", ps) for ps in range(3)]
    num_exchanges = 1 if len(flags) == 2 else EXCHANGES_PER_RUN
    expected = {way: num_exchanges for ps in ps_tasks for way in ((ps, worker), (worker, ps))}
    if "--local_steps=4" in flags:
        expected[ps_tasks[0], worker] += 1  # the global step, once for the run
    if "--sharding=dynamic" in flags:
        expected[ps_tasks[0], worker] += 1  # which examples to take, once for the run
    assert tensors == expected, "nothing goes from ps to ps"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--sync_replicas"], {tf.bfloat16: 3 * 2 * EXCHANGES_PER_RUN}),
        (
            ["--local_steps=4"],
            {tf.bfloat16: 3 * EXCHANGES_PER_RUN, tf.float32: 3 * EXCHANGES_PER_RUN, tf.int64: 1},
        ),
    ],
)
def test_what_travels_as_bfloat16(graph, set_flags, local_servers, flags, expected):
    types = run_once(graph, set_flags, local_servers, types_sent, "--exchange_dtype=bfloat16", *flags)
    assert types == expected, "of 3 ps tasks, each way"


def test_only_training_builds_what_a_model_has_for_it(graph, set_flags, monkeypatch):
    build_logits = model.build_logits

    def build_logits_with_dropout(images, is_training):
        kept = tf.nn.dropout(images, rate=0.5, name="dropout") if is_training else images
        return build_logits(kept, is_training)

    monkeypatch.setattr(model, "build_logits", build_logits_with_dropout)
    set_flags()
    built = build_graph(Task("worker", 1, PS_HOSTS, WORKER_HOSTS))
    columns = built.batches.columns(built.batches.inputs[0])
    built.model.build_measures(built.packing.fetch(Lookups({}, [])), columns)
    names = [op.name for op in graph.get_operations()]
    assert any(name.startswith("measures/") and "/logits/" in name for name in names)
    scopes = {name.partition("/")[0] for name in names if "/dropout" in name}
    assert scopes == {f"exchange{'_' * (n > 0)}{n or ''}" for n in range(EXCHANGES_PER_RUN)}


def run_once(graph, set_flags, local_servers, count, *flags):
    """Return what `count` counts in a run of a worker and three ps tasks."""
    set_flags(*flags)
    servers = local_servers(3, 1)
    batches, _, updates, *_ = build_graph(servers.task("worker", 0))
    with servers.worker_session(0, graph) as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        session.run(tf.variables_initializer(updates.unsaved_variables))
        batches.start(session, 0)
        return count(session, updates.train_op)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_weights(local_servers, set_flags):
    servers = local_servers(1, 1)

    def weights(seed):
        set_flags(f"--seed={seed}")
        with tf.Graph().as_default() as graph:
            build_graph(servers.task("worker", 0))
            with servers.worker_session(0, graph) as session:
                session.run(tf.global_variables_initializer())
                return session.run(tf.trainable_variables()[0])

    np.testing.assert_array_equal(weights(3), weights(3))
    assert (weights(3) != weights(4)).any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "replicas"),
    [
        ([], 1),
        (["--sync_replicas"], 2),
        (["--issync=1"], 2),
        (["--sync_replicas", "--replicas_to_aggregate=1"], 1),
    ],
)
def test_replicas_in_a_global_step(graph, set_flags, flags, replicas):
    set_flags(*flags)
    updates = build_graph(Task("worker", 0, PS_HOSTS, WORKER_HOSTS)).updates
    assert updates.num_replicas == replicas


def test_a_process_whose_server_never_starts_ends(set_flags, monkeypatch):
    ends = []
    monkeypatch.setattr(member, "end_process", lambda *end: ends.append(end))
    monkeypatch.setattr(member, "STARTING_SECS", -1.0)
    set_flags("--startup_timeout_secs=1")
    task = Task("ps", 0, PS_HOSTS, WORKER_HOSTS)
    Member(distributed.FLAGS, task, RunFolder(""), make_session_config(task))._end_unless_started()
    ((status, message),) = ends
    assert (status, message.startswith("ps 0: its server has not started within 0 s: raise the limits")) == (1, True)


def test_the_cluster_comes_from_tf_config_unless_a_flag_describes_it(set_flags, monkeypatch):
    monkeypatch.setenv(
        "TF_CONFIG", '{"cluster": {"ps": ["a:1"], "worker": ["b:2"]}, "task": {"type": "ps", "index": 0}}'
    )
    set_flags("--train_steps=5")
    assert choose_task(distributed.FLAGS) == Task("ps", 0, ("a:1",), ("b:2",))


def test_a_manager_that_names_no_cluster_is_quoted(set_flags, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"sparseCluster": {"ps": ["a:1"]}}')
    set_flags()
    with pytest.raises(UnusableError, match=r'are required, since TF_CONFIG has no "cluster": {"sparseCluster": {'):
        choose_task(distributed.FLAGS)


def test_flags_win_over_tf_config(set_flags, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "not used")
    set_flags("--job_name=worker", "--task_index=1")
    task = choose_task(distributed.FLAGS)
    assert task == Task("worker", 1, ("localhost:2222",), ("localhost:2223", "localhost:2224"))
