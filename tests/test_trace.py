import itertools
import json
import pathlib
import shutil
import time
from typing import NamedTuple

import pytest
import tensorflow.compat.v1 as tf

from runtime import trace
from runtime.monitoring import profiling
from runtime.records import clocks, events
from runtime.records.folder import RunFolder
from runtime.trace import Message, Profile, Span
from tests import forked

PROJECT = pathlib.Path(__file__).parents[1]


class Trace(NamedTuple):
    """What a viewer makes of a file."""

    tasks: dict  # the names of the processes, by their numbers
    spans: list
    arrows: list  # both ends of each

    @classmethod
    def read(cls, path):
        events = json.loads(pathlib.Path(path).read_text())["traceEvents"]
        ends = {phase: {event["id"]: event for event in events if event["ph"] == phase} for phase in "sf"}
        assert ends["s"].keys() == ends["f"].keys(), "an arrow lacks an end"
        return cls(
            {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"},
            [event for event in events if event["ph"] == "X"],
            [(start, ends["f"][number]) for number, start in ends["s"].items()],
        )

    def span_at(self, end):
        """Return the name of the span to which the end of an arrow belongs."""
        (span,) = (
            span
            for span in self.spans
            if (span["pid"], span["tid"]) == (end["pid"], end["tid"])
            and span["ts"] <= end["ts"] <= span["ts"] + span["dur"]
        )
        return span["name"]


@pytest.fixture(scope="module")
def traced(tmp_path_factory, local_servers):
    """Two workers on real servers trace the runs of their graphs, each with both ps tasks."""
    train_dir = tmp_path_factory.mktemp("traced")
    servers = local_servers(2, 2)
    for index in range(2):
        task = servers.task("worker", index)
        with tf.Graph().as_default():
            with tf.device(tf.train.replica_device_setter(worker_device=task.device, cluster=task.jobs)):
                variables = [tf.get_variable(name, initializer=1.0) for name in ("first", "second")]
                step = tf.train.create_global_step()
                changes = [variable.assign_add(2 * variable) for variable in variables]
                with tf.control_dependencies(changes):
                    step = step.assign_add(1).read_value()
            hooks = [profiling.ProfileHook(task, step, "2:3", RunFolder(train_dir))]
            creator = tf.train.ChiefSessionCreator(master=servers.workers[index].target)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(events, "_recorder", None)
                events.start_recording(task, RunFolder(train_dir))
                with tf.train.MonitoredSession(creator, hooks) as session:
                    for _ in range(4):
                        session.run(step)
    shutil.rmtree(train_dir / "events")
    return train_dir


@pytest.fixture
def train_dir(tmp_path, traced):
    """A copy of what the workers traced, for one test."""
    shutil.copytree(traced, tmp_path / "train")
    return str(tmp_path / "train")


def change_clocks(train_dir, secs, workers="*"):
    """Change the times in what workers wrote as if the clocks of some tasks were ahead."""
    for path in pathlib.Path(train_dir).glob(f"profile/{workers}/*.pb"):
        metadata = tf.RunMetadata.FromString(path.read_bytes())
        for device in metadata.step_stats.dev_stats:
            job_name, index = device.device.split("/")[1][4:], device.device.split("/")[3][5:]
            for stats in device.node_stats:
                stats.all_start_micros += round(secs.get(f"{job_name} {index}", 0) * 1e6)
                if stats.all_start_nanos:
                    stats.all_start_nanos += round(secs.get(f"{job_name} {index}", 0) * 1e9)
        path.write_bytes(metadata.SerializeToString())


ALL_WAYS = {
    way
    for ps, worker in itertools.product(["ps 0", "ps 1"], ["worker 0", "worker 1"])
    for way in ((ps, worker), (worker, ps))
}


@pytest.mark.parametrize("secs", [{}, {"ps 1": 3600, "worker 0": -7.5}, {"worker 1": -900}])
def test_each_task_is_there_once_and_messages_are_arrows_forward_in_time(train_dir, secs):
    change_clocks(train_dir, secs)
    result = Trace.read(trace.write(RunFolder(train_dir)))
    assert sorted(result.tasks.values()) == ["ps 0", "ps 1", "worker 0", "worker 1"]
    assert all(start["ts"] <= end["ts"] for start, end in result.arrows)
    assert {(result.tasks[start["pid"]], result.tasks[end["pid"]]) for start, end in result.arrows} >= ALL_WAYS
    assert {result.span_at(end) for _, end in result.arrows} == {"RecvTensor"}
    assert "Mul" in {result.span_at(start) for start, _ in result.arrows}
    by_lane = {}
    for span in sorted(result.spans, key=lambda span: span["ts"]):
        assert span["ts"] >= by_lane.get(span["tid"], 0), "two spans overlap"
        by_lane[span["tid"]] = span["ts"] + span["dur"] - 1e-3
    assert max(span["ts"] for span in result.spans) < 600e6, "an hour would be the clocks'"


def test_parts_that_are_broken_are_named_and_left_out(train_dir, caplog):
    cut, *others = sorted(pathlib.Path(train_dir).glob("profile/worker-0/*.pb"))
    assert others
    cut.write_bytes(cut.read_bytes()[:-100])
    (cut.parent / "step-7.pb").touch()
    (cut.parent / "step-8.pb").mkdir()
    result = Trace.read(trace.write(RunFolder(train_dir)))
    assert set(result.tasks.values()) == {"ps 0", "ps 1", "worker 0", "worker 1"}
    for name in (cut.name, "step-7.pb", "step-8.pb"):
        assert f"worker-0/{name}, which cannot be read" in caplog.text


def test_only_the_last_run_in_a_folder_is_shown(train_dir):
    run = pathlib.Path(train_dir, "events", "1")
    run.mkdir(parents=True)
    start = {"unix_secs": time.time() - 1800, "event": "starting"}
    (run / "worker-0.jsonl").write_text(f"{json.dumps(start)}\n")
    change_clocks(train_dir, {"ps 0": -3600, "ps 1": -3600, "worker 1": -3600}, "worker-1")
    assert set(Trace.read(trace.write(RunFolder(train_dir))).tasks.values()) == {"ps 0", "ps 1", "worker 0"}


def test_a_later_run_that_traced_nothing_leaves_the_trace(train_dir):
    before = Trace.read(trace.write(RunFolder(train_dir)))
    run = pathlib.Path(train_dir, "events", "7")
    run.mkdir(parents=True)
    (run / "worker-0.jsonl").write_text(f"{json.dumps({'unix_secs': time.time() + 1800, 'event': 'starting'})}\n")
    assert Trace.read(trace.write(RunFolder(train_dir))).tasks == before.tasks


def test_by_hand(train_dir):
    process = forked.run("-m", "runtime.trace", train_dir)
    assert (process.returncode, process.stdout) == (0, f"{train_dir}/trace.json\n"), process.stderr


def test_a_folder_without_parts_has_no_trace(tmp_path):
    process = forked.run("-m", "runtime.trace", tmp_path)
    said = f"there is no trace in {tmp_path}: no worker has traced any of the --profile_steps there"
    assert (process.returncode, said in process.stderr) == (1, True)
    assert forked.run("-m", "runtime.trace").returncode == 2


def delay(sender, sent_at, receiver, arrived_at):
    return clocks.Delay(sender, receiver, arrived_at - sent_at)


def message(sender, sent_at, receiver, arrived_at):
    return Message(
        Span(sender, "", "Mul", sent_at - 1, sent_at, {}), Span(receiver, "", "", arrived_at - 1, arrived_at, {})
    )


def test_a_message_that_came_after_a_long_wait_is_no_part_of_what_comes_then():
    early, late = message("ps 0", 1, "worker 0", 700e9), message("ps 0", 700e9, "worker 0", 701e9)
    last = Profile([*early, *late], [early, late]).since(1)
    assert last == Profile([early.received, *late], [late])


def test_clocks_that_differ_are_set_to_the_middle_of_what_the_messages_allow():
    delays = [
        delay("worker 0", 0, "ps 0", 140),  # at least 0 + 140 on the clock of ps 0
        delay("worker 0", 50, "ps 0", 170),  # the faster one: its clock is ahead by 120 at most
        delay("ps 0", 300, "worker 0", 220),  # and by 80 at least
    ]
    assert clocks.estimate_offsets(delays) == {"worker 0": 0, "ps 0": -100}


def test_clocks_stay_where_no_message_arrives_too_early():
    delays = [delay("worker 0", 0, "ps 0", 140), delay("ps 0", 300, "worker 0", 310)]
    assert clocks.estimate_offsets(delays) == {"worker 0": 0, "ps 0": 0}


def test_tasks_on_another_machine_are_set_alike():
    delays = [
        delay("worker 0", 0, "ps 0", 140),
        delay("ps 0", 300, "worker 0", 260),
        delay("worker 1", 0, "ps 0", 10),  # on the machine of ps 0
        delay("ps 0", 300, "worker 1", 310),
    ]
    assert clocks.estimate_offsets(delays) == {"worker 0": 0, "ps 0": -90, "worker 1": -90}


def test_two_clocks_are_compared_by_way_of_all_others():
    delays = [
        delay("worker 0", 0, "ps 0", 100),
        delay("ps 0", 0, "worker 0", 100),
        delay("worker 0", 0, "ps 1", 30),  # ps 1 is behind worker 0 by 70 to 130
        delay("ps 1", 0, "worker 0", 230),
        delay("worker 1", 0, "ps 0", 5),  # the same clock as that of ps 0, and as far from ps 1
        delay("ps 0", 0, "worker 1", 5),
        delay("worker 1", 100, "ps 1", 110),
        delay("ps 1", 0, "worker 1", 400),
    ]
    offsets = clocks.estimate_offsets(delays)
    for sender, receiver, nanoseconds in delays:
        assert offsets[sender] <= nanoseconds + offsets[receiver]


def test_a_task_that_only_receives_keeps_its_clock():
    delays = [delay("worker 0", 100, "ps 0", 50), delay("worker 0", 0, "ps 1", 10)]
    assert clocks.estimate_offsets(delays) == {"worker 0": 0, "ps 0": 0, "ps 1": 0}


def test_a_clock_that_was_set_meanwhile_is_no_error():
    delays = [delay("worker 0", 100, "ps 0", 50), delay("ps 0", 100, "worker 0", 50)]
    assert clocks.estimate_offsets(delays) == {"worker 0": 0, "ps 0": 0}


def test_a_trace_that_cannot_be_written_says_why_and_leaves_nothing(train_dir):
    pathlib.Path(train_dir, "trace.json").unlink(missing_ok=True)
    pathlib.Path(train_dir, "trace.json").mkdir()
    process = forked.run("-m", "runtime.trace", train_dir)
    assert process.returncode == 1
    assert "the trace of all tasks could not be made ([Errno 21] Is a directory" in process.stderr
    assert not pathlib.Path(train_dir, "trace.json.tmp").exists()
