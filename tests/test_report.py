"""The report of a run: what the tasks record, what the report makes of it, and that a browser shows it."""

import base64
import contextlib
import errno
import fcntl
import io
import json
import os
import re
import shutil
import sys
import tempfile

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from PIL import Image

from benchmarks.testbed.processes import DEADLINE_SECS, poll_for
from runtime import report
from runtime.cluster.status import REPLACED
from runtime.monitoring.mistakes import Guesses, find_mistakes, guess
from runtime.records import events
from runtime.records.folder import RunFolder
from runtime.report import charts, history
from runtime.report.history import Entry
from tests import browser, forked

START = {"command": ["python", "distributed.py"], "host": "here", "versions": {"tensorflow": "2.21.0"}}
RESULT = {
    "test_accuracy": 0.75, "test_loss": 0.5, "global_step": 300, "train_secs": 9.5, "examples_per_sec": 6000.0,
    "model": "mlp", "optimizer": "adam", "sync_replicas": False, "local_steps": 1, "batch_size": 100, "num_ps": 1,
    "num_workers": 2, "tensorflow_version": "2.21.0",
}  # fmt: skip
MISTAKE = {"index": 7, "label": 1, "guess": 0, "probability": 0.9}
TESTED_FIGURES = {"global_step": 300, "test_accuracy": 0.75, "test_loss": 0.5}
TESTED = {
    **TESTED_FIGURES,
    "confusion": [[2, 0], [1, 1]],
    "mistakes": [{**MISTAKE, "shape": [28, 28], "pixels": base64.b64encode(bytes(range(196)) * 4).decode()}],
}


ONE_GUESS, NO_LABEL = [Guesses(np.array([1]), np.ones(1))], np.array([0])


def progress(step, local_step):
    return {"loss": 1 / step, "examples_per_sec": 10 * step, "global_step": step, "local_step": local_step}


# A run of which the ps dies 6 s after the start, and is started again at 8 s. Worker 1 falls silent at 9 s.
EVENTS = {
    "ps-0": [
        (0, "starting", START), (1, "serving", {}), (8, "starting", START), (9, "serving", {}),
        (30, "ended", {"status": 0, "message": ""}),
    ],
    "worker-0": [
        (0, "starting", START), (0.5, "waiting", {"missing": "ps 0"}), (1, "waited", {}),
        (1.5, "placement", {"ps": 0, "variables": ["hidden/weights"], "num_bytes": 4000}),
        (2, "model", {"origin": "initialised a new model", "global_step": 0}),
        (2, "training", {"batch_size": 100, "global_step": 0, "local_step": 0}), (4, "progress", progress(100, 60)),
        (5, "checkpoint", {"global_step": 120, "secs_taken": 0.1}), (6, "lost", {"task": "ps 0", "reason": "refused"}),
        (6.5, "waiting", {"missing": "ps 0"}), (9, "waited", {}), (9, "back", {"task": "ps 0"}),
        (9, "model", {"origin": "restored /shared/run1/model.ckpt-120", "global_step": 120}),
        (9, "steps lost", {"num_steps": 30, "global_step": 120}),
        (9, "training", {"batch_size": 100, "global_step": 120, "local_step": 80}),
        (20, "progress", progress(300, 180)),
        (25, "finished", {"global_step": 300, "local_step": 180}), (26, "tested", TESTED),
    ],
    "worker-1": [
        (0.25, "starting", START), (2, "training", {"batch_size": 100, "global_step": 0, "local_step": 0}),
        (9, "progress", progress(130, 60)),
    ],
}  # fmt: skip


def write(train_dir, tasks, began_at=1e9, run=1):
    folder = train_dir / "events" / str(run)
    folder.mkdir(parents=True, exist_ok=True)
    for task, of_task in tasks.items():
        with open(folder / f"{task}.jsonl", "a") as file:
            for secs, event, values in of_task:
                print(json.dumps({"unix_secs": began_at + secs, "event": event, **values}), file=file)


@pytest.fixture
def train_dir(tmp_path):
    write(tmp_path, EVENTS)
    (tmp_path / "result.json").write_text(json.dumps(RESULT))
    return tmp_path


def spans(run, task):
    return [entry for entry in history.tell(run, task) if entry.end > entry.start]


def test_the_spans_of_a_task_follow_each_other_and_show_when_it_was_gone(train_dir):
    run = history.read(RunFolder(train_dir))
    assert run.tasks == ["ps 0", "worker 0", "worker 1"]
    assert spans(run, "ps 0") == [
        Entry(0, 1, "starting", "starting"),
        Entry(1, 6, "serving", "serving"),
        Entry(6, 8, "gone", "gone"),
        Entry(8, 9, "starting", "starting"),
        Entry(9, 30, "serving", "serving"),
    ]
    assert spans(run, "worker 0") == [
        Entry(0, 0.5, "starting", "starting"),
        Entry(0.5, 1, "waiting", "waiting for ps 0"),
        Entry(1, 2, "starting", "starting"),
        Entry(2, 6.5, "training", "training"),
        Entry(6.5, 9, "waiting", "waiting for ps 0"),
        Entry(9, 25, "training", "training"),
        Entry(25, 30, "finishing", "finishing"),
    ]
    assert spans(run, "worker 1") == [
        Entry(0.25, 2, "starting", "starting"),
        Entry(2, 9, "training", "training"),
        Entry(9, 30, "gone", "gone"),
    ]


def test_a_loss_that_is_seen_once_the_next_process_serves_is_no_gap(train_dir):
    before = spans(history.read(RunFolder(train_dir)), "ps 0")
    write(train_dir, {"worker-1": [(9.5, "lost", {"task": "ps 0", "reason": REPLACED})]})
    assert spans(history.read(RunFolder(train_dir)), "ps 0") == before


def test_what_went_wrong_and_was_mended_is_told(train_dir):
    run = history.read(RunFolder(train_dir))
    told = {task: [(e.start, e.text) for e in history.tell(run, task) if e.kind == "trouble"] for task in run.tasks}
    assert told == {
        "ps 0": [(8, "started again")],
        "worker 0": [
            (6, "lost ps 0 (refused)"),
            (9, "ps 0 is back"),
            (9, "restored model.ckpt-120, at global step 120"),
            (9, "steps lost: 30, resuming at global step 120"),
        ],
        "worker 1": [(9, "is silent from here on: probably killed")],
    }


DAY_SECS = 86400.0


def test_a_host_whose_clock_is_a_day_behind_costs_the_report_less_than_a_second(train_dir):
    ps = [(1.5, "heard", {"worker": index, "text": "training"}) for index in (0, 1)]
    shutil.rmtree(train_dir / "events")
    behind = [
        (secs - DAY_SECS, event, values) for secs, event, values in [*EVENTS["ps-0"][:2], *ps, EVENTS["ps-0"][-1]]
    ]
    write(train_dir, {"worker-0": EVENTS["worker-0"], "worker-1": EVENTS["worker-1"], "ps-0": behind})
    run = history.read(RunFolder(train_dir))
    assert run.secs == pytest.approx(30, abs=1)
    assert run.began_at == pytest.approx(1e9, abs=1)
    assert [event["by"] for event in run.of_kind("serving")] == ["ps 0"]
    assert spans(run, "ps 0")[-1].kind == "serving"


def test_a_clock_that_is_set_back_before_a_task_starts_again_goes_on_where_it_was(train_dir):
    times = [
        (secs - (DAY_SECS if number >= 9 else 0), *rest) for number, (secs, *rest) in enumerate(EVENTS["worker-0"])
    ]
    shutil.rmtree(train_dir / "events")
    write(train_dir, {**EVENTS, "worker-0": times})
    run = history.read(RunFolder(train_dir))
    assert (run.began_at, run.first_step) == (1e9, 0)
    assert run.secs == pytest.approx(30)


def test_a_clock_that_is_set_while_a_task_runs_changes_no_time_of_its_events(tmp_path, monkeypatch):
    script = """
import sys, time
from runtime.records import events, folder
run = folder.RunFolder(sys.argv[1])
events.start_recording("worker 0", run)
time.time = lambda: 9e9
events.record("training")
events.wait_until_written(60)
"""
    assert forked.run("-c", script, tmp_path).returncode == 0
    assert [event["event"] for event in events.read_run(RunFolder(tmp_path))] == ["starting", "training"]
    started_at, trained_at = (event["unix_secs"] for event in events.read_run(RunFolder(tmp_path)))
    assert started_at <= trained_at < started_at + 60


@pytest.mark.parametrize(("period_secs", "is_gone"), [(2, True), (60, False)])
def test_a_worker_that_seldom_says_how_far_it_is_is_not_gone(tmp_path, period_secs, is_gone):
    """The last word of one that is killed may also be about a test."""

    def train(at):
        training = {"global_step": 0, "local_step": 0, "period_secs": period_secs}
        return [(0, "starting", START), (2, "training", training), (at, "progress", progress(100, 60))]

    write(tmp_path, {"worker-1": train(50), "worker-0": [*train(20), (21, "evaluated", {"test_loss": 1.0})]})
    told = history.tell(history.read(RunFolder(tmp_path)), "worker 0")
    assert ("gone" in [entry.kind for entry in told]) == is_gone


def test_a_process_that_died_and_was_missed_by_nobody_ended_before_the_next(tmp_path):
    write(tmp_path, {"ps-0": EVENTS["ps-0"], "worker-1": EVENTS["worker-1"]})
    assert [entry[:3] for entry in history.tell(history.read(RunFolder(tmp_path)), "ps 0")] == [
        (0, 1, "starting"), (1, 8, "serving"), (8, 9, "starting"), (9, 30, "serving"),
        (8, 8, "trouble"), (30, 30, "event"),
    ]  # fmt: skip


def test_only_the_last_run_in_a_folder_is_told(train_dir):
    later = {
        "worker-0": [(0, "starting", START), (3, "training", {"batch_size": 1, "global_step": 300, "local_step": 0})]
    }
    write(train_dir, later, began_at=2e9, run=10)
    run = history.read(RunFolder(train_dir))
    assert run.tasks == ["worker 0"]
    assert run.secs == 3


RESUMED = {
    "ps-0": [(60, "starting", START), (61, "serving", {})],
    "worker-0": [
        (60, "starting", START), (62, "model", {"origin": "restored /a/model.ckpt-100", "global_step": 100}),
        (62, "back", {"task": "ps 0"}), (63, "training", {"global_step": 100, "local_step": 0}),
        (64, "progress", progress(110, 5)), (65, "progress", progress(130, 20)),
    ],
}  # fmt: skip


def test_the_report_of_a_run_that_was_resumed_is_of_what_came_then(train_dir):
    write(train_dir, RESUMED, began_at=2e9, run=2)
    run = history.read(RunFolder(train_dir))
    assert (run.began_at, run.secs, run.first_step, run.tasks) == (2e9 + 60, 5, 100, ["ps 0", "worker 0"])
    assert [entry for task in run.tasks for entry in history.tell(run, task) if entry.kind == "trouble"] == []
    assert run.result == {}, "it is of an earlier run"
    write(train_dir, {"worker-0": [(70, "tested", TESTED)]}, began_at=2e9, run=2)
    assert report.write(RunFolder(train_dir))
    page = (train_dir / "report.html").read_text()
    assert "resumed from global step 100 of an earlier run, and took 10.0 s" in page
    assert "<dt>global steps, from 100 on</dt><dd>300</dd>" in page


def test_a_start_that_had_nothing_to_train_does_not_hide_the_run_before(train_dir):
    finished = {"global_step": 300, "local_step": 0}
    ended = (55, "ended", {"status": 0, "message": ""})
    nothing = {"worker-0": [(50, "starting", START), (52, "finished", finished), (53, "tested", TESTED), ended]}
    write(train_dir, nothing, run=2)
    run = history.read(RunFolder(train_dir))
    assert (run.began_at, run.secs, run.result) == (1e9, 30, RESULT)


JOIN = "import sys, time; from runtime.records import events, folder\n"
JOIN += "print(events.join_run(folder.RunFolder(sys.argv[1])), flush=True)\n"


def test_a_run_goes_on_until_its_last_task_has_ended(tmp_path):
    def join():
        return forked.run("-c", JOIN, tmp_path).stdout.strip().removeprefix(f"{tmp_path}/events/")

    assert [join(), join()] == ["1", "2"]
    with contextlib.ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.NamedTemporaryFile("r")) for _ in range(3)]
        command = [sys.executable, "-c", f"{JOIN}time.sleep(600)", tmp_path]
        tasks = [forked.Popen(command, output) for output in outputs]
        for task in tasks:
            stack.callback(task.wait)
            stack.callback(task.kill)
        joined = [poll_for(output.readline, "run of a task").strip() for output in outputs]
        assert len(set(joined)) == 1, "they began at the same time"
        for task in tasks[:2]:
            task.kill()
            task.wait()
        assert join() == os.path.basename(joined[0])
    assert join() == str(int(os.path.basename(joined[0])) + 1)


def test_the_lock_of_a_run_can_be_shared_on_nfs_too(tmp_path):
    """Whose client turns flock() into locks of fcntl(): these need a file that is open for reading, and for writing."""
    events.join_run(RunFolder(tmp_path))
    lock = events._locks[-1].fileno()
    for kind in (fcntl.LOCK_EX, fcntl.LOCK_SH):
        fcntl.lockf(lock, kind | fcntl.LOCK_NB)


def test_where_the_file_system_knows_no_locks_all_runs_share_a_folder(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(events.fcntl, "flock", refuse)
    assert [events.join_run(RunFolder(tmp_path)) for _ in range(2)] == 2 * [f"{tmp_path}/events/1"]


def test_a_flag_that_begins_like_a_metric_and_a_command_that_is_no_text_have_a_report(train_dir):
    (train_dir / "result.json").write_text(json.dumps({**RESULT, "test_dir": None, "test_set": "a", "test_part": 7}))
    write(train_dir, {"worker-2": [(1, "starting", {**START, "command": "distributed.py --flagfile=jos\udce9"})]})
    assert report.write(RunFolder(train_dir))
    page = (train_dir / "report.html").read_text()
    assert "<dt>test accuracy</dt><dd>75.00%</dd>" in page
    assert "test part" not in page
    assert "test_set: a, test_part: 7" in page


def test_a_worker_whose_steps_take_long_is_not_taken_for_dead(tmp_path):
    def is_silent(*at):
        folder = tmp_path / f"{len(at)}"
        worker = [(0, "starting", START), *((secs, "progress", progress(secs, secs)) for secs in at)]
        write(folder, {"worker-0": worker, "worker-1": [(100, "progress", progress(100, 100))]})
        entries = history.tell(history.read(RunFolder(folder)), "worker 0")
        return any("probably killed" in entry.text for entry in entries)

    assert not is_silent(25, 50, 75)
    assert is_silent(70, 75)


def test_events_without_the_beginning_of_a_run_have_a_report(tmp_path):
    write(tmp_path, {"worker-0": EVENTS["worker-0"][-3:]})
    assert report.write(RunFolder(tmp_path))


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_run_that_diverged_has_a_report(train_dir, loss):
    write(train_dir, {"worker-1": [(10, "progress", {**progress(200, 100), "loss": loss})]})
    (train_dir / "result.json").write_text(json.dumps({**RESULT, "test_loss": loss}))
    assert report.write(RunFolder(train_dir))
    assert str(loss) in (train_dir / "report.html").read_text()


def test_a_model_whose_mistakes_could_not_be_shown_is_not_called_perfect(train_dir):
    write(train_dir, {"worker-0": [(27, "tested", {"global_step": 300, "test_accuracy": 0.75, "test_loss": 0.5})]})
    assert report.write(RunFolder(train_dir))
    assert "The model made no mistake." not in (train_dir / "report.html").read_text()


@pytest.mark.parametrize("mistakes", [[], [{**MISTAKE, "pixels": "of a run before pictures had a shape"}]])
def test_a_perfect_model_and_an_old_run_have_a_report(train_dir, mistakes):
    write(train_dir, {"worker-0": [(27, "tested", {**TESTED, "mistakes": mistakes})]})
    assert report.write(RunFolder(train_dir))
    assert ("The model made no mistake." in (train_dir / "report.html").read_text()) == (not mistakes)


@pytest.mark.slow
def test_a_run_that_was_killed_and_left_half_a_line_has_a_report(tmp_path, capsys):
    write(tmp_path, {task: of_task[:6] for task, of_task in EVENTS.items()})
    with open(tmp_path / "events" / "1" / "worker-0.jsonl", "a", errors="surrogateescape") as file:
        file.write('{"unix_secs": 10000\0\udc80')
    made = forked.run("-m", "runtime.report", tmp_path)
    assert (made.returncode, made.stdout) == (0, f"{tmp_path}/report.html\n"), made.stderr
    assert "The run has no result" in (tmp_path / "report.html").read_text()


def test_a_folder_without_a_run_has_no_report(tmp_path):
    made = forked.run("-m", "runtime.report", tmp_path)
    assert made.returncode == 1
    assert "no run has recorded anything here" in made.stderr


def test_an_old_folder_with_nothing_but_a_result_has_a_report(tmp_path):
    (tmp_path / "result.json").write_text(json.dumps(RESULT))
    assert report.write(RunFolder(tmp_path))
    page = (tmp_path / "report.html").read_text()
    assert "<dt>test accuracy</dt><dd>75.00%</dd>" in page
    assert "model: mlp, optimizer: adam, sync_replicas: False, local_steps: 1, batch_size: 100, num_ps: 1" in page


def test_evaluations_become_the_line_of_the_accuracy(train_dir):
    """The evaluator, which may come before the run and go after it, is no task of the run."""
    at = {secs: (secs, "evaluated", {"test_accuracy": secs / 100, "test_loss": 1.0}) for secs in (5, 10, 60)}
    before = history.read(RunFolder(train_dir))
    write(train_dir, {"evaluator-0": [(-60, "starting", START), at[5], at[10], at[60]]})
    after = history.read(RunFolder(train_dir))
    assert [(e["secs"], e["test_accuracy"]) for e in after.evaluations] == [(5, 0.05), (10, 0.1), (26, 0.75), (60, 0.6)]
    assert (after.began_at, after.secs, after.tasks) == (before.began_at, before.secs, before.tasks)


def test_a_result_of_an_earlier_run_is_not_shown(train_dir):
    write(train_dir, {"worker-0": [(0, "training", {}), (5, "evaluated", {"test_loss": 1.0})]}, run=2)
    assert not history.read(RunFolder(train_dir)).result


def test_events_are_recorded_in_a_file_of_the_task(tmp_path, start_recording):
    events.record("too early")
    events.start_recording("worker 3", RunFolder(tmp_path / "train"))
    events.record("serving")
    assert not events.wait_until_written(DEADLINE_SECS)
    assert list(tmp_path.iterdir()) == [], "the chief makes the folder"
    (tmp_path / "train").mkdir()
    events.record("waiting", missing="ps 0")
    assert not events.wait_until_written(DEADLINE_SECS)
    path = tmp_path / "train" / "events" / "1" / "worker-3.jsonl"
    starting, _, waiting = map(json.loads, path.read_text().splitlines())
    assert starting["event"] == "starting"
    assert starting["unix_secs"] < waiting["unix_secs"]
    assert starting["command"][0] == sys.executable
    assert (waiting["event"], waiting["missing"]) == ("waiting", "ps 0")

    def fail(*_):
        raise OSError("no room")

    events.write_later(fail)  # a summary, say
    said = events.wait_until_written(DEADLINE_SECS)
    assert said.startswith("1 of the records of this task are missing (no room): check that")


def test_a_folder_is_not_looked_for_by_its_name_before_it_is_there(tmp_path, start_recording, monkeypatch):
    """A client of NFS would remember for a minute that it was not there."""
    looked_for = []
    isdir = os.path.isdir
    monkeypatch.setattr(events.os.path, "isdir", lambda path: looked_for.append(path) or isdir(path))
    folder = tmp_path / "new"
    events.start_recording("ps 0", RunFolder(folder))
    events.record("serving")
    assert not events.wait_until_written(DEADLINE_SECS)
    assert str(folder) not in looked_for
    folder.mkdir()
    events.record("waiting")
    assert not events.wait_until_written(DEADLINE_SECS)
    assert (folder / "events" / "1" / "ps-0.jsonl").exists()


def test_a_folder_that_cannot_be_written_costs_nothing_but_events(start_recording):
    events.start_recording("worker 1", RunFolder("/dev/null/train"))
    events.record("training")
    assert not events.wait_until_written(DEADLINE_SECS)
    events.record("finished")
    said = events.wait_until_written(DEADLINE_SECS)
    assert said.startswith("this task never saw --train_dir /dev/null/train, so it recorded nothing there: ")


def test_events_that_another_user_lets_nobody_write_are_told_and_cost_no_summaries(start_recording, tmp_path, caplog):
    (tmp_path / "events").touch()  # root may write into any folder
    events.start_recording("ps 0", RunFolder(tmp_path))
    written = []
    events.write_later(lambda folder, task: written.append(task))
    said = events.wait_until_written(DEADLINE_SECS)
    assert said.startswith(f"1 of the records of this task are missing ({tmp_path}/events: File exists): check that")
    assert written == ["ps 0"]

    def fail(folder, task):
        raise OSError("another reason")

    for _ in range(2):  # in turns
        events.write_later(fail)
        events.record("serving")
    events.wait_until_written(DEADLINE_SECS)
    told = "ps 0 cannot record its events: "
    assert caplog.text.count(f"{told}{tmp_path}/events: File exists") == caplog.text.count(f"{told}another reason") == 1


def test_events_that_found_no_room_are_recorded_once_there_is_some(tmp_path):
    script = """
import resource, sys
from runtime.records import events
from runtime.records.folder import RunFolder
events.start_recording("ps 0", RunFolder(sys.argv[1]))
hard_limit = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
for number in range(100):
    resource.setrlimit(resource.RLIMIT_FSIZE, ((1000, 1500, 2000, hard_limit)[number // 25], hard_limit))
    events.record("heard", number=number)
    missing = events.wait_until_written()
    if number % 25 == 24:
        assert bool(missing) == (number < 99), missing
"""
    done = forked.run("-c", script, tmp_path)
    assert done.returncode == 0, done.stderr
    recorded = events.read_run(RunFolder(tmp_path))
    assert [event.get("number") for event in recorded] == [None, *range(100)]


def test_the_confusion_matrix_and_the_worst_mistakes():
    probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.8, 0.2], [0.3, 0.7]], np.float32)
    images = np.arange(8, dtype=np.uint8).reshape(4, 2)
    spec = tf.TensorSpec([1, 2], tf.uint8)
    labels = np.array([0, 1, 1, 1], np.uint8)
    found = find_mistakes([guess(probabilities[:3]), guess(probabilities[3:])], labels, (images, labels), 2, spec)
    assert found["confusion"] == [[1, 0], [2, 1]]
    assert [(m["index"], m["label"], m["guess"], m["probability"]) for m in found["mistakes"]] == [
        (2, "1", "0", 0.8),
        (1, "1", "0", 0.6),
    ]
    assert base64.b64decode(found["mistakes"][0]["pixels"]) == bytes([4, 5])
    json.dumps(found)


def test_many_classes_are_told_by_the_pairs_that_are_most_often_confused(train_dir):
    """A matrix of them would have more cells than anybody reads, and 100000 classes have memory for none."""
    labels = np.repeat(np.arange(100, dtype=np.int32), 3)
    classes = np.where(labels % 2, labels, 99_999)
    classes[labels == 98] = [99_998, 99_998, 98]
    batches = [Guesses(classes, np.full(300, 0.5, np.float32))]
    found = find_mistakes(batches, labels, (np.zeros([300, 2], np.uint8), labels), 100_000, None)
    assert len(found["confused"]) == 20
    assert found["confused"][0] == ["0", "99999", 3]
    assert len(json.dumps(found)) < 5000
    write(train_dir, {"worker-0": [(27, "tested", {**TESTED_FIGURES, **found})]})
    assert report.write(RunFolder(train_dir))
    page = (train_dir / "report.html").read_text()
    assert "The matrix would have 100000 rows and columns, too many to read." in page
    assert '<th scope="row">0</th><td>99999</td><td>3</td>' in page
    assert "Test examples by their label" not in page


@pytest.mark.parametrize("num_classes", [50, 51])
def test_a_confusion_matrix_has_a_size_that_can_be_read(num_classes):
    found = find_mistakes(ONE_GUESS, NO_LABEL, (np.zeros([1, 2]), NO_LABEL), num_classes, None)
    assert ("confusion" in found, "confused" in found) == (num_classes == 50, num_classes == 51)


@pytest.mark.parametrize(
    ("spec", "mode"),
    [
        (tf.TensorSpec([4, 6], tf.uint8), "L"),
        (tf.TensorSpec([4, 6, 1], tf.uint8), "L"),
        (tf.TensorSpec([4, 6, 3], tf.uint8), "RGB"),
        (tf.TensorSpec([4, 6, 2], tf.uint8), None),
        (tf.TensorSpec([4, 6], tf.float32), None),
        (tf.TensorSpec([24], tf.uint8), None),
        ({"a": tf.TensorSpec([4, 6], tf.uint8)}, None),
    ],
)
def test_only_what_input_calls_a_picture_is_drawn(train_dir, spec, mode):
    size = 24 if isinstance(spec, dict) else spec.shape.num_elements()
    dtype = np.uint8 if isinstance(spec, dict) else spec.dtype.as_numpy_dtype
    inputs = np.arange(size).astype(dtype)[None]
    found = find_mistakes(ONE_GUESS, NO_LABEL, (inputs, NO_LABEL), 2, spec)
    write(train_dir, {"worker-0": [(27, "tested", {**TESTED_FIGURES, **found})]})
    assert report.write(RunFolder(train_dir))
    page = (train_dir / "report.html").read_text()
    if not mode:
        assert "<img" not in page
        assert re.search(r"<b>\[ ?0\.?  ?1\.?  ?2\.? ", page)
        return
    image = Image.open(io.BytesIO(base64.b64decode(re.search(r'base64,([^"]*)" width="6" height="4"', page)[1])))
    assert (image.mode, image.size) == (mode, (6, 4))
    assert image.getpixel((1, 0)) == (254 if mode == "L" else (3, 4, 5))


def labels(chart):
    return re.findall(r"<text [^>]*>([^<]*)</text>", chart)


def test_the_lines_of_workers_differ_and_look_the_same_in_every_chart():
    workers = {f"worker {number}": [(0, 0), (number, number)] for number in range(1, 60)}
    charts_of = [charts.make_line_chart("t", "x", "y", lines) for lines in (workers, {"test": [(0, 0)], **workers})]
    alone, with_test = ([re.findall(r'<path (class="line.*?) d=.*?</svg>(.*?)</li>', chart)][0] for chart in charts_of)
    assert with_test[1:] == alone
    assert len({style for style, _ in with_test}) == 60


def test_what_comes_first_does_not_flatten_what_comes_later():
    later = [(step, 0.9 + step / 10000) for step in range(200, 1000, 100)]
    assert "0.94" in labels(charts.make_line_chart("t", "x", "y", {"test": [(0, 0.1), *later]}))
    assert "0.2" in labels(charts.make_line_chart("t", "x", "y", {"test": [(0, 0.1), (1000, 0.9)]}))
    of_three = [(100, 0.9), (500, 0.91), (1000, 0.92)]  # the first one after exactly a tenth
    assert "0.91" in labels(charts.make_line_chart("t", "x", "y", {"test": [(0, 0.1), *of_three]}))
    a_quarter = [(0, 0), (200, 3), (600, 3.5), (1000, 4)]
    assert "2" in labels(charts.make_line_chart("t", "x", "y", {"test": a_quarter}))


def test_what_is_never_below_0_has_its_axis_there():
    chart = charts.make_line_chart("t", "x", "y", {"test": [(0, 0), (1, 1)]})
    assert f'cy="{charts.HEIGHT - charts.BOTTOM:.1f}"' in chart


def test_every_label_of_a_chart_is_inside_the_picture():
    chart = charts.make_line_chart("t", "x", "y", {"test": [(0, 0), (1, 1)]})
    places = re.findall(r'<text x="([\d.]+)" y="([\d.]+)"', chart)
    assert len(places) == len(labels(chart))
    assert all(0 <= float(x) <= charts.WIDTH and 0 <= float(y) <= charts.HEIGHT for x, y in places)


def test_a_loss_below_0_is_drawn_whole():
    points = [(step, 3 - step / 100) for step in range(0, 1000, 100)]
    for line in (points, points[4:], [(0, -2), (9, -2)]):
        chart = charts.make_line_chart("t", "x", "y", {"loss": line})
        assert chart.count("<circle") == len(line)


def test_a_run_that_goes_on_fills_the_width():
    assert labels(charts.make_line_chart("t", "x", "y", {"test": [(800, 1), (1000, 2)]}))[-5:] == [
        "800", "850", "900", "950", "1\u202f000",
    ]  # fmt: skip
    assert charts.make_line_chart("t", "x", "y", {"test": [(7, 1), (7, 2)]})


def test_huge_numbers_are_short(train_dir):
    write(train_dir, {"worker-1": [(10 + at, "progress", {**progress(200, 100), "loss": 1e30 * at}) for at in (0, 1)]})
    (train_dir / "result.json").write_text(json.dumps({**RESULT, "test_loss": 1.25e30}))
    assert report.write(RunFolder(train_dir))
    page = (train_dir / "report.html").read_text()
    assert "<dt>test loss</dt><dd>1.25e30</dd>" in page
    assert max(len(label) for label in labels(page) if label[0].isdigit()) <= 8


def test_one_point_is_no_chart_and_a_table_says_whether_it_has_all():
    assert charts.make_line_chart("t", "x", "y", {"test": [(1, 1)]}) == ""
    assert "t: all points" in charts.make_line_chart("t", "x", "y", {"test": [(1, 1)], "worker 0": [(1, 1), (2, 1)]})
    assert "t: some of the points" in charts.make_line_chart("t", "x", "y", {"test": [(n, n) for n in range(99)]})


def test_seconds_are_counted_from_the_first_step_of_training(train_dir):
    run = history.read(RunFolder(train_dir))
    assert run.trained_at == 2
    assert report.write(RunFolder(train_dir))
    page = (train_dir / "report.html").read_text()
    assert "Loss by seconds of training" in page
    assert "Test accuracy by" not in page, "there was one test"
    assert '<tr><th scope="row">worker 1</th><td>7</td><td>0.007692</td></tr>' in page


def test_a_lane_tells_what_lasts_and_no_moment(train_dir):
    assert report.write(RunFolder(train_dir))
    page = (train_dir / "report.html").read_text()
    assert 'aria-label="worker 1: starting until 2.0 s, training until 9.0 s, gone until 30.0 s"' in page
    assert page.count('<i class="event"') > 0


@pytest.mark.parametrize(("low", "high", "ticks"), [(0, 10, [0, 2, 4, 6, 8, 10]), (0.93, 1, [0.94, 0.96, 0.98, 1.0])])
def test_ticks_are_round_numbers(low, high, ticks):
    assert charts.make_ticks(low, high) == ticks


needs_browser = pytest.mark.skipif(browser.IS_MISSING, reason="needs chromium (Debian: apt-get install chromium)")


@needs_browser
def test_a_browser_shows_the_page_without_complaint_and_fetches_nothing(train_dir):
    path, net_log = report.write(RunFolder(train_dir)), train_dir / "net.json"
    shown = browser.browse(path, f"--log-net-log={net_log}", "--enable-logging=stderr", "--dump-dom")
    assert re.findall(r".*CONSOLE.*", shown.stderr) == []
    # What the browser itself would like to have, such as an update, has no origin.
    fetched = re.findall(r'"initiator":"(?!not an origin)[^}]*', net_log.read_text())
    assert fetched == []
    assert len(re.findall(r"<section><h2>", shown.stdout)) == 7
    assert shown.stdout.count('role="img"') == 2 + 3, "the charts, and a lane for each task"
    assert '<i class="gone"' in shown.stdout


@needs_browser
@pytest.mark.parametrize("name", browser.SCREENS)
def test_a_page_suits_the_screen(train_dir, name):
    screen = browser.SCREENS[name]
    picture = browser.take_picture(report.write(RunFolder(train_dir)), screen, train_dir / f"{name}.png")
    assert picture.size == (screen.width, screen.height)
    back, colors = picture.getpixel((0, 0)), picture.getcolors(picture.width * picture.height)
    assert (max(back) < 64) if screen.is_dark else (min(back) > 192)
    assert len(colors) > 100, "text and charts"
    right_edge = picture.crop((screen.width - 4, 0, screen.width, screen.height))
    assert right_edge.getcolors() == [(4 * screen.height, back)], "nothing is wider than the screen"
