"""What TensorBoard is shown: who writes which summaries, their values, and how stale asynchronous exchanges are."""

import faulthandler
import glob
import math
import os
import resource
import signal
import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import distributed
import mnist_input
import model
from benchmarks.testbed.processes import DEADLINE_SECS
from runtime.cluster.membership import Membership
from runtime.cluster.task import Task
from runtime.data.memory import MemorySource
from runtime.model.variables import Lookups
from runtime.monitoring import summaries
from runtime.monitoring.evaluation import record_evaluation, record_test
from runtime.monitoring.measures import Measures
from runtime.monitoring.progress import ProgressHook
from runtime.monitoring.summaries import SummaryHook
from runtime.records import events
from runtime.records.folder import RunFolder
from runtime.roles.member import Member
from runtime.roles.training import Training
from runtime.updates.mode import EXCHANGES_PER_RUN as N
from tests.test_updates import Worker

BATCH_SIZE, NUM_RUNS = 10, 3
# Paper without ink: nothing but the last biases gets a gradient, and the logits are these biases, zeros at first.
EXAMPLES = MemorySource(mnist_input.Examples(np.zeros((50, 784), np.uint8), np.zeros(50, np.uint8)), stream=0)
PARAMETERS = ("mlp/hidden/weights", "mlp/hidden/biases", "mlp/logits/weights", "mlp/logits/biases")
NORM_OF_GRADIENT = math.sqrt(9 * 0.1**2 + 0.9**2)  # of ten equal probabilities, less one for the label
RATE = 1e-6  # so low that the parameters stay where they are


@pytest.fixture(autouse=True)
def recording(start_recording):
    """Each test may let this process record."""


def read(folder):
    """Return what the event files in a folder have in the end, as TensorFlow reads them: (step, value) by tag."""
    assert not events.wait_until_written(DEADLINE_SECS)
    found = {}
    for path in sorted(glob.glob(f"{folder}/events.out.*")):
        for event in tf.train.summary_iterator(path):
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, getattr(value, value.WhichOneof("value"))))
    return found


def read_graphs(folder):
    """Return the graphs that the event files in a folder have."""
    paths = glob.glob(f"{folder}/events.out.*")
    found = [event.graph_def for path in paths for event in tf.train.summary_iterator(path)]
    return [tf.GraphDef.FromString(graph_def) for graph_def in found if graph_def]


class StartInput(tf.train.SessionRunHook):
    """Starts the input of a session."""

    def __init__(self, batches):
        self.batches = batches

    def after_create_session(self, session, coord):
        self.batches.start(session, 0)


def train(servers, index, train_dir):
    """Let a worker take some runs, of which the hooks write every one; return its parameters in the end."""
    task = servers.task("worker", index)
    events.start_recording(task, RunFolder(train_dir))
    with tf.Graph().as_default():
        connection = servers.connection("worker", index)
        me = Member(distributed.FLAGS, task, RunFolder(train_dir), connection.config)
        me.membership = Membership(task, me.timeouts)
        graph = distributed.build_graph(me, tf.train.ClusterSpec(task.jobs), EXAMPLES)
        batches, updates = graph.batches, graph.updates
        with tf.device(task.device):
            summaries.build_staleness(updates)
            if task.is_chief:
                training = Training.__new__(Training)  # without its hooks
                training._me, training._graph = me, graph
                training._build_summaries()
            parameters = graph.packing.fetch(Lookups({}, []))
        initializers = [tf.local_variables_initializer()]
        if task.is_chief:
            initializers.append(tf.variables_initializer(updates.unsaved_variables))
        scaffold = tf.train.Scaffold(local_init_op=tf.group(*initializers))
        make = tf.train.ChiefSessionCreator if task.is_chief else tf.train.WorkerSessionCreator
        hooks = [
            StartInput(batches),
            ProgressHook(task, updates, 10000, BATCH_SIZE, log_every_secs=0),
            SummaryHook(task, updates, batches.drawn, RunFolder(train_dir), every_secs=0),
        ]
        with tf.train.MonitoredSession(make(scaffold, connection.target, connection.config), hooks) as session:
            for _ in range(NUM_RUNS):
                session.run(updates.train_op)
            return session.run_step_fn(lambda step_context: step_context.session.run(parameters))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "steps_of_run", "steps_of_gradient"),
    [
        ([], N, 1),
        (["--local_steps=4"], 4 * N, 4 * RATE),
        (["--sync_replicas"], N, 1),
        (["--sync_replicas", "--local_steps=4"], 4, 4 * RATE),
    ],
)
def test_the_chief_writes_what_all_share(local_servers, set_flags, tmp_path, flags, steps_of_run, steps_of_gradient):
    """`steps_of_gradient` is what a worker sends, in gradients: with local steps, the change of its copy."""
    set_flags("--optimizer=sgd", f"--learning_rate={RATE}", f"--batch_size={BATCH_SIZE}", *flags)
    parameters = train(local_servers(2, 1), 0, str(tmp_path))
    found = read(tmp_path)
    norms = {f"{kind}_norm/{name}" for kind in ("gradient", "parameter") for name in PARAMETERS}
    histograms = {f"parameters/{name}" for name in PARAMETERS}
    of_graph = {"accuracy", "learning_rate", *norms, *({"worker/staleness"} if "--sync_replicas" not in flags else ())}
    assert found.keys() == {"loss", "worker/examples_per_sec", "cluster/examples_per_sec", *of_graph, *histograms}

    steps = [steps_of_run * run for run in range(1, NUM_RUNS + 1)]
    values = {tag: [value for _, value in entries] for tag, entries in found.items()}
    for tag in found.keys() - histograms:
        assert [step for step, _ in found[tag]] == steps, tag
    assert values["loss"] == pytest.approx([math.log(10)] * NUM_RUNS, rel=1e-3)
    assert values["accuracy"] == [1] * NUM_RUNS, "equal logits are taken for the first class"
    assert values["learning_rate"] == pytest.approx([RATE] * NUM_RUNS)
    sent = pytest.approx([NORM_OF_GRADIENT * steps_of_gradient] * NUM_RUNS, rel=1e-3)
    assert values["gradient_norm/mlp/logits/biases"] == sent
    assert values["gradient_norm/mlp/hidden/weights"] == [0] * NUM_RUNS
    assert values["cluster/examples_per_sec"] == pytest.approx(values["worker/examples_per_sec"]), "it is alone"
    assert values.get("worker/staleness", [0] * NUM_RUNS) == [0] * NUM_RUNS, "its own steps do not count"

    (graph_def,) = read_graphs(tmp_path)
    scopes = {scope for node in graph_def.node if "exchange" in (scope := node.name.partition("/")[0])}
    assert "exchange" in scopes <= {"exchange", "exchange_1"}, "the next one reads before local steps are applied"

    weights = parameters["mlp/hidden/weights"]
    assert values["parameter_norm/mlp/hidden/weights"] == pytest.approx([np.linalg.norm(weights)] * NUM_RUNS, rel=1e-3)
    assert [step for step, _ in found["parameters/mlp/hidden/weights"]] == [steps[0], steps[-1]], (
        "the first, and the end"
    )
    histogram = values["parameters/mlp/hidden/weights"][-1]
    assert (histogram.num, histogram.min) == (weights.size, pytest.approx(weights.min(), rel=1e-3))


def test_tensorboard_forgets_the_steps_that_are_lost(local_servers, set_flags, tmp_path):
    set_flags(f"--batch_size={BATCH_SIZE}")
    for _ in range(2):  # the second model begins anew
        train(local_servers(1, 1), 0, str(tmp_path))
    assert [step for step, _ in read(tmp_path)["loss"]] == 2 * [N, 2 * N, 3 * N]
    shown = EventAccumulator(str(tmp_path)).Reload().Scalars("loss")
    assert [point.step for point in shown] == [N, 2 * N, 3 * N]


def test_a_learning_rate_of_the_users_has_the_same_tag(local_servers, set_flags, tmp_path, monkeypatch):
    monkeypatch.setattr(model, "build_learning_rate", lambda step: RATE / 2, raising=False)
    set_flags("--optimizer=sgd", f"--batch_size={BATCH_SIZE}")
    train(local_servers(1, 1), 0, str(tmp_path))
    assert [value for _, value in read(tmp_path)["learning_rate"]] == pytest.approx([RATE / 2] * NUM_RUNS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "of_mode"), [([], {"worker/staleness"}), (["--sync_replicas", "--replicas_to_aggregate=1"], set())]
)
def test_another_worker_writes_what_it_alone_knows(local_servers, set_flags, tmp_path, flags, of_mode):
    set_flags(f"--batch_size={BATCH_SIZE}", *flags)
    servers = local_servers(1, 2)
    for index in (0, 1):
        train(servers, index, str(tmp_path))
    assert read_graphs(tmp_path / "worker-1") == []
    found = read(tmp_path / "worker-1")
    assert found.keys() == {"loss", "worker/examples_per_sec", *of_mode}
    for entries in found.values():
        assert [step for step, _ in entries] == [N * run for run in range(NUM_RUNS + 1, 2 * NUM_RUNS + 1)]


@pytest.mark.slow
@pytest.mark.parametrize("num_ps", [1, 2])
def test_staleness_is_what_others_add_between_a_read_and_its_write(local_servers, tmp_path, num_ps):
    """Of two ps tasks, that of the global step has no parameter."""
    servers = local_servers(num_ps, 2)

    def make_queue(name):
        with tf.device(servers.task("worker", 1).device):
            return tf.FIFOQueue(N, tf.float32, [()], shared_name=name)

    def build_loss(weight):
        """Say that the weight was read, and wait for permission to go on."""
        with tf.control_dependencies([make_queue("reads").enqueue(weight)]):
            return make_queue("permissions").dequeue() * weight

    chief, worker = Worker(servers, 0), Worker(servers, 1, loss=build_loss)
    task, session = servers.task("worker", 1), worker.session
    with session.graph.as_default():
        wait_for_read = make_queue("reads").dequeue()
        permit_all = make_queue("permissions").enqueue_many([tf.ones([N])])
        summaries.build_staleness(worker.updates)
        hook = SummaryHook(task, worker.updates, [], RunFolder(tmp_path), every_secs=0)
    events.start_recording(task, RunFolder(tmp_path))
    hook.after_create_session(session, worker.coord)
    fetches, results = hook.before_run(None).fetches, []
    run = threading.Thread(target=lambda: results.extend(session.run([fetches, worker.train_op])), daemon=True)
    run.start()
    session.run(wait_for_read)
    chief.step()
    chief.step()
    session.run(permit_all)
    run.join(DEADLINE_SECS)
    context = tf.train.SessionRunContext(None, session)
    hook.after_run(context, tf.train.SessionRunValues(results[0], None, None))
    # Of N exchanges in a run, the first meets what the chief did meanwhile, and no other meets anything.
    found = read(tmp_path / "worker-1")
    assert {tag: [value for _, value in entries] for tag, entries in found.items()} == {"worker/staleness": [2 * N / N]}


MEASURES = Measures(
    loss=0.25, metrics={"accuracy": 0.9375}, global_step=40, parameters={}, find_mistakes=lambda spec: {}
)


@pytest.mark.parametrize(("job_name", "folder"), [("worker", ""), ("evaluator", "evaluator")])
def test_tests_of_the_model_are_events_and_are_drawn_where_their_task_writes(tmp_path, job_name, folder):
    task = Task(job_name, 0, ("a:1",), ("b:2",))
    events.start_recording(task, RunFolder(tmp_path))
    record_evaluation(task, MEASURES, checkpoint_step=30)
    record_test(MEASURES._replace(global_step=50), None)
    assert read(tmp_path / folder) == {
        "test_accuracy": [(40, 0.9375), (50, 0.9375)],
        "test_loss": [(40, 0.25), (50, 0.25)],
    }
    _, evaluated, tested = events.read_run(RunFolder(tmp_path))
    figures = {"global_step": 40, "test_accuracy": 0.9375, "test_loss": 0.25}
    by = {"unix_secs": evaluated["unix_secs"], "by": f"{job_name} 0"}
    assert evaluated == {"event": "evaluated", **figures, "checkpoint_step": 30, **by}
    assert (tested["event"], tested["global_step"]) == ("tested", 50)


def test_a_full_disk_costs_its_summaries_and_nothing_else(tmp_path, capfd):
    folder = tmp_path / "full"
    writer = summaries.EventFile(str(folder))
    folder.touch()  # a file, in which nothing can be written
    with pytest.raises(OSError, match=f"{folder}: File exists"):
        writer.write(tf.Event(step=1))
    folder.unlink()
    writer.write(tf.Event(step=2))
    writer.write(tf.Event(step=3))
    (path,) = folder.iterdir()
    assert [event.step for event in tf.train.summary_iterator(str(path))] == [0, 2, 3]
    assert "Traceback" not in "".join(capfd.readouterr())


def test_a_disk_that_hangs_holds_up_no_other_thread(tmp_path):
    """A pipe that is full and has no reader stands for a file server that hangs."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writer = summaries.EventFile(str(tmp_path))
    writer._path = str(pipe)
    writing = threading.Thread(target=writer.write, args=[tf.Event(graph_def=bytes(1 << 20))])
    faulthandler.dump_traceback_later(DEADLINE_SECS, exit=True)  # else this process would stand still for ever
    writing.start()
    os.set_blocking(reader, True)
    num_read = 0
    while num_read < 1 << 20:
        num_read += len(os.read(reader, 1 << 16))
    writing.join()
    faulthandler.cancel_dump_traceback_later()
    os.close(reader)


def test_a_full_disk_is_not_strewn_with_empty_files(tmp_path):
    writer = summaries.EventFile(str(tmp_path))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # else it ends this process
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        for step in range(3):
            with pytest.raises(OSError, match="File too large"):
                writer.write(tf.Event(step=step))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
    writer.write(tf.Event(step=3))
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.slow
def test_a_model_that_diverges_costs_its_histograms_and_nothing_else(local_servers, set_flags, tmp_path, caplog):
    set_flags("--optimizer=momentum", "--learning_rate=1e38", f"--batch_size={BATCH_SIZE}")
    parameters = train(local_servers(1, 1), 0, str(tmp_path))
    assert not np.isfinite(parameters["mlp/logits/biases"]).all()
    assert "no summaries (histograms) at global step" in caplog.text
    assert "loss" in read(tmp_path)
