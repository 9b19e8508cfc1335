"""The display on a terminal: what it makes of what the tasks write, and when the launcher shows it."""

import os
import re

import pytest
from rich.console import Console

from benchmarks.testbed.processes import DEADLINE_SECS, poll_for, running_with
from runtime.display.picture import make_bar, make_picture
from runtime.display.screen import Screen, make_line
from runtime.display.status import RunStatus
from runtime.records.files import Tail
from runtime.records.folder import EVALUATOR, RunFolder
from tests.fake_tasks import WAIT, make_command
from tests.terminal import Terminal

NAMES = ["ps-0", "worker-0", "worker-1"]


def make_run(*events):
    """Return what is known after these events: of which task, at which second, of which kind, with what."""
    run = RunStatus(NAMES)
    for name, secs, kind, values in events:
        run.tell(name, {"unix_secs": secs, "event": kind, **values})
    return run


def steps(global_step, local_step, **values):
    return {"global_step": global_step, "local_step": local_step, **values}


BEGUN = (
    ("ps-0", 0, "serving", {}),
    ("worker-0", 0, "starting", {}),
    ("worker-0", 1, "waiting", {"missing": "ps 0"}),
    ("worker-0", 2, "waited", {}),
    ("worker-0", 2, "model", {"origin": "restored", "global_step": 100}),
    ("worker-0", 10, "training", steps(100, 0, batch_size=50, train_steps=1000)),
    ("worker-1", 10, "training", steps(100, 0, batch_size=50, train_steps=1000)),
)
TRAINED = (
    *BEGUN,
    ("worker-0", 12, "progress", steps(150, 20, loss=0.5, examples_per_sec=500.0)),
    ("worker-1", 14, "progress", steps(200, 60, loss=0.25, examples_per_sec=750.0)),
)


def states(run):
    return [task.state for task in run.tasks.values()]


def test_a_task_waits_trains_and_is_done():
    assert states(make_run()) == ["starting"] * 3
    assert states(make_run(*BEGUN[:3])) == ["serving", "waiting", "starting"]
    assert make_run(*BEGUN[:3]).tasks["worker-0"].note == "for ps 0"
    assert states(make_run(*BEGUN[:4])) == ["serving", "starting", "starting"]
    assert states(make_run(*BEGUN)) == ["serving", "training", "training"]
    waiting = ("worker-0", 15, "waiting", {"missing": "ps 0"})
    assert states(make_run(*TRAINED, waiting)) == ["serving", "waiting", "training"]
    assert states(make_run(*TRAINED, waiting, ("worker-0", 16, "waited", {}))) == ["serving", "training", "training"]
    finished = ("worker-1", 20, "finished", steps(1000, 400))
    assert states(make_run(*TRAINED, finished)) == ["serving", "training", "finishing"]
    ended = ("worker-1", 21, "ended", {"status": 0, "message": ""})
    assert states(make_run(*TRAINED, finished, ended)) == ["serving", "training", "done"]


def test_a_task_that_dies_is_restarting_until_it_trains_again():
    run = make_run(*TRAINED)
    run.tasks["worker-0"].tell({"event": "ended", "status": 137})
    assert (run.tasks["worker-0"].state, run.tasks["worker-0"].note) == ("stopped", "with status 137")
    run.tasks["worker-0"].tell({"event": "restarted", "note": "(1 of 3)"})
    assert (run.tasks["worker-0"].state, run.tasks["worker-0"].note) == ("restarting", "(1 of 3)")
    assert run.examples_per_sec == 750, "those of worker 1"
    run.tell("worker-0", {"unix_secs": 20, "event": "starting"})
    assert run.tasks["worker-0"].state == "restarting"
    run.tell("worker-0", {"unix_secs": 21, "event": "training", **steps(300, 0, batch_size=50, train_steps=1000)})
    assert run.tasks["worker-0"].state == "training"
    assert run.tasks["worker-0"].examples_per_sec == 0, "nothing is known of its new life"


def test_a_task_that_fails_has_stopped():
    run = make_run(*TRAINED, ("worker-1", 15, "ended", {"status": 143, "message": "stopped"}))
    assert (run.tasks["worker-1"].state, run.tasks["worker-1"].note) == ("stopped", "with status 143")


def test_the_speed_is_that_of_all_workers():
    run = make_run(*TRAINED)
    assert (run.global_step, run.train_steps, run.loss) == (200, 1000, 0.25)
    assert run.examples_per_sec == 500 + 750
    of_all = steps(1000, 400, examples_per_sec=2000.0)
    finished = [(name, 20, "finished", of_all) for name in ("worker-0", "worker-1")]
    assert make_run(*TRAINED, *finished).examples_per_sec == 2 * 2000, "of the whole time"


def test_steps_that_are_lost_are_not_counted():
    restored = ("worker-0", 20, "model", {"origin": "restored", "global_step": 120})
    run = make_run(*TRAINED, restored)
    assert run.global_step == 120


def test_the_metric_is_the_first_of_the_last_test():
    run = make_run(*BEGUN)
    assert run.test is None
    run.tell(EVALUATOR, {"unix_secs": 20, "event": "evaluated", "test_accuracy": 0.875, "test_loss": 0.5})
    assert run.test == ("test accuracy", 0.875)
    run.tell("worker-0", {"unix_secs": 30, "event": "tested", "test_auc": 0.75, "test_accuracy": 0.875})
    assert run.test == ("test auc", 0.75)


def test_a_small_loss_is_shown_as_the_log_says_it():
    run = make_run(*TRAINED, ("worker-0", 16, "progress", steps(250, 90, loss=4e-5, examples_per_sec=500.0)))
    assert "loss 4e-05" in "\n".join(draw(run, 100))


def draw(run, columns, *rows, bar=None):
    console = Console(width=columns, color_system=None)
    with console.capture() as capture:
        console.print(make_picture(run, bar or make_bar(), *rows))
    return capture.get().splitlines()


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_the_picture_fits_the_terminal(columns):
    run = make_run(*TRAINED, ("worker-0", 15, "waiting", {"missing": "ps 0 (nothing answers at localhost:2222)" * 4}))
    run.tell("worker-0", {"unix_secs": 15, "event": "evaluated", "test_accuracy": 0.875})
    lines = draw(run, columns)
    assert max(map(len, lines)) <= columns
    assert re.match(r"global step 200/1000 ━+╸? +--:--$", lines[1]), "its speed is not known yet"
    assert "loss 0.2500, test accuracy 0.8750" in lines[2]
    assert [line.split()[0] for line in lines[-3:]] == ["●", "◌", "●"]
    assert "worker 0  waiting   for ps 0 (nothing answers" in lines[-2]
    assert "worker 1  training  local step      60      750 examples/" in lines[-1]


def test_the_time_left_comes_from_the_speed_of_the_last_seconds():
    """The global step has risen by 25 each second, after a faster start."""
    secs, run = [0.0], make_run(*BEGUN)
    bar = make_bar(lambda: secs[0])
    for secs[0], run.global_step in ((0, 0), (1, 400), (5, 450), (9, 550), (15, 700)):
        lines = draw(run, 80, bar=bar)
    assert re.match(r"global step 700/1000 ━+╸? +00:12$", lines[1])


def test_where_rows_are_few_the_workers_are_seen_and_whoever_waits_first():
    names = [*(f"ps-{index}" for index in range(3)), *(f"worker-{index}" for index in range(8))]
    run = RunStatus(names)
    for name in names:
        run.tell(name, {"unix_secs": 1, "event": "serving" if name.startswith("ps") else "finished", **steps(9, 9)})
    for name in ("ps-2", "worker-7"):
        run.tell(name, {"unix_secs": 2, "event": "waiting", "missing": "ps 0"})
    lines = draw(run, 60, 9)
    assert len(lines) == 9
    assert [line[2:10].rstrip() for line in lines[2:8]] == [
        "ps 2", "worker 0", "worker 1", "worker 2", "worker 3", "worker 7",
    ]  # fmt: skip
    assert lines[8] == "and 2 serving, 3 finishing"
    assert [len(draw(run, 60, rows)) for rows in (3, 12, 13, 99)] == [3, 12, 13, 13]


def test_a_picture_that_a_narrower_terminal_has_wrapped_is_erased_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("COLUMNS", raising=False)
    columns = [80]
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((columns[0], 24)))
    screen = Screen(RunFolder(tmp_path), NAMES, str(tmp_path))
    assert screen.draw([], is_last=True).startswith("\r\n"), "there is nothing to erase"
    assert screen.draw([], is_last=True).startswith("\r\x1b[5A"), "an empty row, the bar, and three tasks"
    columns[0] = 40
    assert screen.draw([], is_last=True).startswith("\r\x1b[9A"), "all but the empty row have become two"


def test_only_what_is_appended_is_read(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text("of an earlier run\n")
    tail = Tail(str(path))
    assert tail.read() == []
    with open(path, "a", buffering=1) as file:
        file.write("of this")
        assert tail.read() == [], "a line is not whole yet"
        file.write(" run\nnext\nhalf")
        assert tail.read() == ["of this run", "next"]
        tail.skip_half_line()
        file.write(" a line\nlast\n")
        assert tail.read() == [" a line", "last"]
    assert Tail(str(tmp_path / "no.jsonl")).read() == []


def test_where_a_file_is_replaced_the_rest_of_the_old_one_is_read_and_then_the_new_one(tmp_path):
    path = tmp_path / "log"
    path.touch()
    tail = Tail(str(path))
    with open(path, "a", buffering=1) as file:
        path.rename(tmp_path / "moved")
        file.write("old\n")
        assert tail.read() == ["old"]
        file.write("older\n")
        path.write_text("new\n")
        assert tail.read() == ["older", "new"]


def test_a_file_that_is_not_followed_is_read_where_it_is_and_not_what_takes_its_place(tmp_path):
    path = tmp_path / "log"
    tail = Tail(str(path), follows=False)
    assert tail.read() == []
    with open(path, "a", buffering=1) as file:
        file.write("own\n")
        assert tail.read() == ["own"]
        path.rename(tmp_path / "moved")
        path.write_text("of another run\n")
        file.write("last\n")
        assert tail.read() == ["last"]


@pytest.mark.parametrize(
    ("line", "shown", "style"),
    [
        (
            "W1122 22:01:54.322288 139656219577216 waiting.py:108] worker 0: lost ps 0",
            "22:01:54 worker 0: lost ps 0",
            "yellow",
        ),
        ("run_local_cluster.sh: interrupted", "run_local_cluster.sh: interrupted", ""),
        ("I1122 22:01:58.9 1 progress.py:59] worker 0: global step 28/100, local step 8, loss 2.4", None, ""),
    ],
)
def test_what_the_picture_tells_is_not_said_too(line, shown, style):
    text = make_line(line)
    assert (text and text.plain, text.spans[-1].style if text and text.spans else "") == (shown, style)


@pytest.fixture
def launch(tmp_path):
    """Start the launcher, in a terminal of its own, with one worker that does what a shell script says."""
    terminals = []

    def launch(worker, *flags, before=(), **options):
        terminals.append(Terminal([*before, *make_command(tmp_path, worker, *flags)], cwd=tmp_path, **options))
        return terminals[-1]

    launch.folder = tmp_path
    launch.train_dir = tmp_path / "train"
    yield launch
    (tmp_path / "go-on").touch()  # what a test that has failed has left in the background holds its terminal open
    for terminal in terminals:
        terminal.end()
    assert not [of for of in running_with(str(launch.train_dir)) if "launch" in of.command], "no process may be left"


def wait_for_waiting(terminal):
    poll_for(lambda: any("◌ worker 0  waiting" in line for line in terminal.lines), "task that waits")


def test_the_display_shows_lines_above_and_the_result_below(launch):
    terminal = launch(f"echo 'worker 0: begins'; echo 'test auc 1.0'; echo 'worker 0: saves'; {WAIT}")
    picture = re.compile("worker 0: begins\nworker 0: saves\n\nglobal step 0 .*◌ worker 0  waiting", re.DOTALL)
    poll_for(lambda: picture.search("\n".join(terminal.lines)), "line above a task that waits")
    (launch.folder / "go-on").touch()
    assert terminal.wait(DEADLINE_SECS) == 0
    assert terminal.lines[-2:] == ["test auc 1.0", ""]
    assert terminal.lines[-3].startswith("✓ worker 0")
    assert "\n".join(terminal.lines).count("global step 0") == 1, "no old picture is left"


@pytest.mark.slow
def test_a_window_of_few_rows_keeps_one_picture(launch):
    """A terminal keeps, above its window, what is erased from its first row on, or written below its last."""
    terminal = launch(f"{WAIT} echo 'test accuracy 1.0'", "--ps=9", rows=6, columns=60)
    wait_for_waiting(terminal)
    poll_for(lambda: len(terminal.history) > 20, "pictures")
    (launch.folder / "go-on").touch()
    assert terminal.wait(DEADLINE_SECS) == 0
    assert "\n".join(terminal.lines).count("global step 0") == 1
    assert terminal.lines[-3:] == ["and 8 done", "test accuracy 1.0", ""]


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"CI": "true"}, {"TERM": "dumb"}])
def test_there_are_plain_lines_where_no_display_is_wanted(launch, environment):
    log_line = "W1122 22:01:54.322288 139656219577216 waiting.py:108] worker 0: lost ps 0"
    terminal = launch(f"tell waiting; echo '{log_line}'; echo 'test accuracy 1.0'", env=environment)
    assert terminal.wait(DEADLINE_SECS) == 0
    assert terminal.lines[2:] == ["22:01:54 worker 0: lost ps 0", "test accuracy 1.0", ""]
    assert (launch.train_dir / "logs" / "worker-0.log").read_text() == f"{log_line}\ntest accuracy 1.0\n"
    assert "\x1b" not in "".join(terminal.screen)


def test_the_end_of_a_log_is_shown_without_its_prefix(launch):
    terminal = launch("echo 'E1122 22:01:54.322288 139656219577216 waiting.py:108] worker 0: lost'; exit 2")
    assert terminal.wait(DEADLINE_SECS) == 2
    assert terminal.lines[-2:] == ["22:01:54 worker 0: lost", ""]


def test_there_is_no_display_where_standard_output_goes_into_a_file(launch):
    with open(launch.folder / "output", "w") as file:
        terminal = launch("tell waiting; echo 'worker 0: begins'; echo 'test accuracy 1.0'", stdout=file)
    assert terminal.wait(DEADLINE_SECS) == 0
    assert (launch.folder / "output").read_text().endswith("logs\nworker 0: begins\ntest accuracy 1.0\n")
    assert terminal.lines == [""]


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}])
def test_what_the_libraries_say_of_a_lost_ps_stays_in_the_log(launch, environment):
    """It is what gRPC says when a ps is killed."""
    call = "remote target /job:ps/replica:0/task:0 while calling /tensorflow.WorkerService/CleanupGraph:"
    said = [
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        "E0000 00:00:1795800005.733182     138 master_session.cc:1972] Cleanup partition error: UNAVAILABLE: failed",
        f"Additional GRPC error information from {call}",
        ':UNKNOWN:Error received from peer  {grpc_status:14, grpc_message:"failed to connect to all addresses"}',
        "F0000 00:00:1795800005.733182     138 tensor.cc:12] Check failed: a fatal error ends the process",
    ]
    terminal = launch("cat lines; echo 'worker 0: goes on'", env=environment)
    (launch.folder / "lines").write_text("".join(f"{line}\n" for line in said))
    assert terminal.wait(DEADLINE_SECS) == 0
    assert terminal.lines[2:4] == ["Check failed: a fatal error ends the process", "worker 0: goes on"]
    assert (launch.train_dir / "logs" / "worker-0.log").read_text().splitlines()[:-1] == said


def test_there_is_no_display_where_standard_error_goes_into_a_file(launch):
    with open(launch.folder / "errors", "w") as file:
        terminal = launch("tell waiting; echo 'test accuracy 1.0'", stderr=file)
    assert terminal.wait(DEADLINE_SECS) == 0
    assert (launch.folder / "errors").read_text() == ""
    assert terminal.lines[2:] == ["test accuracy 1.0", ""]


def test_there_is_no_display_where_a_shell_has_sent_the_run_into_the_background(launch):
    terminal = launch("tell waiting; echo 'test accuracy 1.0'", before=["bash", "-c", 'set -m; "$@" & wait', "bash"])
    assert terminal.wait(DEADLINE_SECS) == 0
    assert terminal.lines[2] == "test accuracy 1.0"
    assert "global step" not in "".join(terminal.shown())


def test_a_run_that_ctrl_z_and_bg_have_sent_into_the_background_draws_no_more(launch):
    before = ["bash", "-c", 'set -m; "$@"; bg; echo "in the background"; wait %1', "bash"]
    terminal = launch(f"{WAIT} echo 'test accuracy 1.0'", before=before)
    wait_for_waiting(terminal)
    terminal.press(b"\x1a")
    poll_for(lambda: "in the background" in terminal.lines, "bg")
    (launch.folder / "go-on").touch()
    assert terminal.wait(DEADLINE_SECS) == 0
    shown = terminal.lines[terminal.lines.index("in the background") :]
    assert "test accuracy 1.0" in shown
    assert not [line for line in shown if "global step" in line]


def test_tensorboard_says_its_address_above(launch):
    said = "TensorBoard 2.20.0 at http://here/ (Press CTRL+C to quit)"
    terminal = launch(f"{WAIT} echo noise >>train/logs/tensorboard.log; echo '{said}' >>train/logs/tensorboard.log")
    wait_for_waiting(terminal)
    (launch.folder / "go-on").touch()
    assert terminal.wait(DEADLINE_SECS) == 0
    shown = "run_local_cluster.sh: TensorBoard at http://here/ until this run ends"
    assert re.search(f"\n{shown}\n\nglobal step 0 ━+\n", "\n".join(terminal.lines))
    assert "noise" not in "\n".join(terminal.lines)


@pytest.mark.parametrize("pause", ["sleep 0.5", "true"], ids=["while_it_runs", "at_its_end"])
def test_a_display_that_fails_hurts_nobody(launch, pause):
    strange = 'echo "{\\"unix_secs\\": 2, \\"event\\": \\"model\\"}" >>train/events/1/worker-0.jsonl'
    terminal = launch(f"{WAIT} {strange}; {pause}; echo 'worker 0: goes on'; echo 'test accuracy 1.0'")
    wait_for_waiting(terminal)
    (launch.folder / "go-on").touch()
    assert terminal.wait(DEADLINE_SECS) == 0
    assert "the display has failed: KeyError('global_step')" in "\n".join(terminal.lines)
    assert terminal.lines[-3:] == ["worker 0: goes on", "test accuracy 1.0", ""]


@pytest.mark.slow
@pytest.mark.promises("folder-in-use")
def test_a_second_launcher_is_kept_out_of_the_folder(launch):
    """The logs and events of two would be mixed."""
    first = launch(WAIT)
    wait_for_waiting(first)
    second = launch(WAIT)
    assert second.wait(DEADLINE_SECS) == 2
    remedy = "wait until all its processes have ended, or give another folder"
    assert f"error: --train_dir {launch.train_dir} is in use by another run: {remedy}" in "".join(second.lines)
    (launch.folder / "go-on").touch()
    assert first.wait(DEADLINE_SECS) == 0
    assert launch("exit").wait(DEADLINE_SECS) == 0


@pytest.mark.parametrize(
    ("key", "status", "said"),
    [(b"\x03", 130, "stopping all tasks"), (b"\x1c", 131, "ending every task at once")],
    ids=["Ctrl-C", "Ctrl-backslash"],
)
def test_a_key_ends_the_run_while_it_starts_and_nothing_is_shown_as_starting(launch, key, status, said):
    terminal = launch("exec sleep 1000")
    poll_for(lambda: any("○ worker 0  starting" in line for line in terminal.lines), "task that starts")
    terminal.press(key)
    assert terminal.wait(DEADLINE_SECS) == status
    end = "\n".join(terminal.lines)
    assert said in end
    assert "✗ worker 0  stopped" in end
    assert "starting\n" not in end.partition("global step")[2]
    assert len(re.findall("global step .*━", end)) == 1, "each picture replaces the last"
