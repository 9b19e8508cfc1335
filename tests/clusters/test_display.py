"""What a person sees on a terminal while a cluster trains."""

import os
import re
import signal

import pytest

from benchmarks.testbed.processes import DEADLINE_SECS, PROJECT, poll_for, running_with
from tests.terminal import Terminal


@pytest.fixture
def launch(tmp_path, black_and_white_dir):
    """Run the launcher in a terminal of its own."""
    terminals = []

    def launch(*flags):
        options = [f"--train_dir={tmp_path}/train", f"--data_dir={black_and_white_dir}", "--log_every_secs=0.3"]
        terminals.append(Terminal([str(PROJECT / "run_local_cluster.sh"), *options, *flags], cwd=tmp_path))
        terminals[-1].train_dir = tmp_path / "train"
        return terminals[-1]

    yield launch
    for terminal in terminals:
        terminal.end()
    assert running_with(f"{tmp_path}/train") == [], "no process may be left"


def states_shown(terminal, name):
    """Return the states that the line of a task has shown, in their order."""
    states = [state for screen in terminal.shown() for state in re.findall(rf"^\S {name} +(\w+)", screen, re.MULTILINE)]
    return [state for i, state in enumerate(states) if i == 0 or state != states[i - 1]]


def test_a_terminal_shows_how_the_tasks_come_along(launch):
    terminal = launch("--train_steps=1500", "--sync_replicas", "--eval_every_secs=0.5")
    assert terminal.wait(DEADLINE_SECS) == 0, terminal.lines
    assert states_shown(terminal, "ps 0")[0] == "starting"
    assert states_shown(terminal, "ps 0")[-2:] == ["serving", "done"]
    for name in ("worker 0", "worker 1"):
        states = states_shown(terminal, name)
        assert states[0] == "starting"
        assert states.index("training") < states.index("done") == len(states) - 1
    assert any(
        re.search(r"global step \d+/1500 .*\d+:\d\d\n\d+ examples/s, loss \d\.\d+, test accuracy \d", screen)
        for screen in terminal.shown()
    )
    end = "\n".join(terminal.lines)
    assert re.search(r"\nglobal step 1500/1500 ━+ 00:00\n\d+ examples/s, .*accuracy 1.0000\n✓ ps 0 .*\n✓ .*\n✓ ", end)
    assert re.search(r"\ntest accuracy 1.0000 .* examples/s\n\nfolder    .*\nreport    ", end)
    assert re.search(r"\n\d\d:\d\d:\d\d worker 0: finished at global step", end)
    assert "] worker 0: finished at global step" in (terminal.train_dir / "logs" / "worker-0.log").read_text()
    assert len(re.findall("global step .*━", end)) == 1, "each picture replaces the last"
    assert terminal.is_cursor_shown


LABS = ("docs/lab.md", "docs/lab.zh-CN.md")


def test_the_demonstration_of_the_readme_shows_what_each_page_quotes(launch, tmp_path):
    """The kill goes to the ps of this run alone: others on this machine may have the same name."""
    pages = [(PROJECT / page).read_text() for page in ("README.md", "README.zh-CN.md", *LABS)]
    demonstration = r"```sh\n\./run_local_cluster\.sh (.*)\n```\n\n[^`]*```sh\npkill -9 ps-0\n```"
    flags = re.search(demonstration, pages[0])[1].split()
    terminal = launch(*flags, "--save_checkpoint_secs=600")  # a save just before the kill would leave no step to lose
    poll_for(
        lambda: re.search(r"\n. worker 0 .* local step +[1-9]", "\n".join(terminal.lines)), "steps that can be lost"
    )
    (ps,) = [process for process in running_with(f"{tmp_path}/train") if process.name == "ps-0"]
    os.kill(ps.pid, signal.SIGKILL)
    for page in pages:
        (quoted,) = re.findall(r"```text\n([^`]*: ps-0 ended with [^`]*)```", page)
        lines = [".*".join(map(re.escape, line.split("…"))) for line in quoted.splitlines()]
        poll_for(lambda lines=lines: re.search("(?s:.*)".join(lines), "\n".join(terminal.lines)), f"lines: {quoted}")
    assert "CleanupGraph" not in "\n".join(terminal.lines)
    terminal.press(b"\x03")
    assert terminal.wait(DEADLINE_SECS) == 128 + signal.SIGINT


def test_ctrl_c_saves_and_leaves_a_clean_terminal_and_a_lost_task_is_shown(launch, tmp_path):
    terminal = launch("--train_steps=1000000", "--save_checkpoint_secs=600")
    poll_for(lambda: "training" in states_shown(terminal, "worker 1"), "worker that trains")
    (worker,) = [process for process in running_with(f"{tmp_path}/train") if process.name == "worker-1"]
    os.kill(worker.pid, signal.SIGKILL)
    poll_for(lambda: "restarting" in states_shown(terminal, "worker 1"), "worker that is restarted")
    assert "worker-1 ended with status 137 (signal 9): starting it again (1 of 3)" in "\n".join(terminal.lines)
    poll_for(lambda: states_shown(terminal, "worker 1")[-1] == "training", "worker that trains again")
    terminal.press(b"\x03")
    assert terminal.wait(DEADLINE_SECS) == 128 + signal.SIGINT
    assert re.search(r"model\.ckpt-[1-9]", (tmp_path / "train" / "checkpoint").read_text()), "the chief has saved"
    assert terminal.is_cursor_shown
    end = "\n".join(terminal.lines)
    assert "run_local_cluster.sh: stopping all tasks" in end
    assert re.search(r"\nglobal step .*━.*\n(.*\n)?✗ ps 0 .*\n✗ worker 0  stopped .*\n✗ worker 1  stopped .*\n", end)
    command = f"{PROJECT}/run_local_cluster.sh --train_dir={tmp_path}/train"
    assert f"to resume from the last checkpoint: {command}" in "".join(terminal.lines)
    assert len(re.findall("global step .*━", end)) == 1, "each picture replaces the last"
