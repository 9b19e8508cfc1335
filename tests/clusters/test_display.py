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


def test_ctrl_c_saves_and_leaves_a_clean_terminal_and_a_lost_task_is_shown(launch, tmp_path):
    terminal = launch("--train_steps=1000000", "--save_checkpoint_secs=600")
    poll_for(lambda: "training" in states_shown(terminal, "worker 1"), "worker that trains")
    (worker,) = [process for process in running_with(f"{tmp_path}/train") if process.name == "worker-1"]
    os.kill(worker.pid, signal.SIGKILL)
    poll_for(lambda: "restarting" in states_shown(terminal, "worker 1"), "worker that is restarted")
    assert "worker-1 ended with status 137: starting it again (1 of 3)" in "\n".join(terminal.lines)
    poll_for(lambda: states_shown(terminal, "worker 1")[-1] == "training", "worker that trains again")
    terminal.press(b"\x03")
    assert terminal.wait(DEADLINE_SECS) == 128 + signal.SIGINT
    assert re.search(r"model\.ckpt-[1-9]", (tmp_path / "train" / "checkpoint").read_text()), "the chief has saved"
    assert terminal.is_cursor_shown
    end = "\n".join(terminal.lines)
    assert "run_local_cluster.sh: stopping every task in order" in end
    assert re.search(r"\nglobal step .*━.*\n(.*\n)?✗ ps 0 .*\n✗ worker 0  stopped .*\n✗ worker 1  stopped .*\n", end)
    command = f"{PROJECT}/run_local_cluster.sh --train_dir={tmp_path}/train"
    assert f"to go on from the last checkpoint: {command}" in "".join(terminal.lines)
    assert len(re.findall("global step .*━", end)) == 1, "each picture replaces the last"
