"""What a task says: whoever says it does not wait for whoever reads it."""

import os
import re
import select
import signal
import subprocess
import sys

import pytest

from benchmarks.testbed.processes import DEADLINE_SECS, PROJECT, poll_for
from runtime.process import output
from tests.terminal import Terminal

START = """
import pathlib, resource, sys
from absl import flags, logging
from runtime.process import output
from runtime.process.end import end_process
flags.FLAGS(sys.argv[:1])
logging.use_absl_handler()
output.write_in_background()
"""
LOST = re.compile(r"lines lost here: (\d+) \(no reader, or no space\)")


def start(script, *arguments, **options):
    return subprocess.Popen([sys.executable, "-c", START + script, *arguments], cwd=PROJECT, text=True, **options)


def test_lines_keep_their_order_and_their_prefix_and_the_error_is_the_last():
    script = """
print("first", end=" "); print("printed")
logging.error("logged")
print("second")
end_process(3, "the end")
"""
    process = start(script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said, _ = process.communicate()
    assert re.fullmatch(
        r"first printed\nE\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ <string>:\d+\] logged\nsecond\nerror: the end\n", said
    )
    assert process.returncode == 3


def test_what_was_printed_before_comes_first():
    """A user's file may print while it is imported."""
    script = f"print('before')\n{START}print('after')\nend_process(0)"
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run([sys.executable, "-c", script], env=buffered, cwd=PROJECT, capture_output=True, text=True)
    assert done.stdout == "before\nafter\n", done


def test_on_a_terminal_a_log_line_has_the_time_and_the_sentence_and_that_of_a_fork_elsewhere_keeps_its_prefix(tmp_path):
    script = """
import os
logging.error("logged")
if not (fork := os.fork()):
    file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1), os.dup2(file, 2)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    output.write_in_background()
    logging.error("logged")
    end_process(0, "")
os.waitpid(fork, 0)
end_process(0, "")
"""
    # Since 3.12 Python warns whoever forks a process that has threads.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", START + script, str(tmp_path / "log")]
    terminal = Terminal(command, cwd=PROJECT)
    assert terminal.wait(DEADLINE_SECS) == 0
    assert re.fullmatch(r"\d\d:\d\d:\d\d logged\n", "\n".join(terminal.lines))
    assert re.fullmatch(r"E\d{4} .* <string>:\d+\] logged\n", (tmp_path / "log").read_text())


def test_a_pipe_that_nobody_reads_holds_up_nobody_and_the_lines_that_it_costs_are_counted(tmp_path):
    script = """
for number in range(5000):
    print(f"{number:050}", file=sys.stderr)
pathlib.Path(sys.argv[1]).touch()
sys.stdin.readline()
end_process(0, "the end")
"""
    with start(script, str(tmp_path / "said"), stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        poll_for((tmp_path / "said").exists, "end of what a process says to nobody")
        print(file=process.stdin, flush=True)
        *lines, last = process.stderr.read().splitlines()
        assert last == "error: the end"
        lost = sum(int(match[1]) for match in map(LOST.fullmatch, lines) if match)
        numbers = [int(line) for line in lines if line.isdecimal()]
        assert numbers == sorted(numbers)
        assert len(numbers) + lost == 5000
        assert lost > 0


def test_a_process_ends_though_nobody_reads_why():
    script = 'print("x" * 1000000); end_process(3, "the end")'
    with start(script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.wait(60) == 3


@pytest.mark.promises("result-waits")
@pytest.mark.parametrize("number", [signal.SIGTERM, None])
def test_the_end_of_a_process_waits_for_a_reader_of_the_result_though_not_beyond_a_signal(number):
    """As where Ctrl-S has stopped the terminal."""
    script = 'print("x" * 1000000); print("test accuracy 1"); end_process(0)'
    with start(script, stdout=subprocess.PIPE) as process:
        written = select.poll()  # select() takes no file number above 1023
        written.register(process.stdout, select.POLLIN)
        poll_for(lambda: written.poll(0), "output")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(3 * output.WRITING_SECS)
        if number:
            process.send_signal(number)
            assert process.wait(DEADLINE_SECS) == -number
        else:
            assert process.stdout.read().endswith("\ntest accuracy 1\n")
            assert process.wait(DEADLINE_SECS) == 0


def test_what_a_log_has_no_room_for_is_counted_and_costs_no_other_line(tmp_path):
    script = """
_, hard_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1225, hard_limit))
for number in range(40):
    print(f"{number:049}", file=sys.stderr)
    output.wait_until_written()
resource.setrlimit(resource.RLIMIT_FSIZE, (hard_limit, hard_limit))
end_process(0, "the end")
"""
    with open(tmp_path / "log", "wb") as log, start(script, stderr=log) as process:
        assert process.wait() == 0
    whole = [f"{number:049}" for number in range(24)]
    lost = "lines lost here: 16 (no reader, or no space)"
    assert (tmp_path / "log").read_text().splitlines() == [*whole, "0" * 25, lost, "error: the end"]


def test_a_last_line_for_which_standard_output_has_no_room_is_said_on_standard_error():
    with open("/dev/full", "w") as full:
        process = start('print("test accuracy 1"); end_process(0)', stdout=full, stderr=subprocess.PIPE)
        _, said = process.communicate()
    assert said == "standard output cannot be written (No space left on device): test accuracy 1\n"


def test_a_line_for_which_a_log_has_no_room_goes_to_the_launcher():
    script = """
import multiprocessing
reader, output.reader_of_lost = multiprocessing.Pipe(duplex=False)
print("test accuracy 1")
output.wait_until_written()
print(reader.poll() and reader.recv_bytes(), file=sys.stderr)
end_process(0)
"""
    with open("/dev/full", "w") as full:
        process = start(script, stdout=full, stderr=subprocess.PIPE)
        _, said = process.communicate()
    lost, line = said.splitlines()
    assert LOST.fullmatch(lost)[1] == "1"
    assert line == repr(b"test accuracy 1\n")


def test_who_writes_to_a_full_pipe_directly_does_not_wait_as_the_code_of_tensorflow(tmp_path):
    script = """
import os
done = pathlib.Path(sys.argv[1])
for _ in range(100):
    try:
        os.write(2, b"x" * 4000)
    except BlockingIOError:
        done.write_text("full")
print("said", file=sys.stderr)
end_process(0)
"""
    process = start(script, str(tmp_path / "done"), stderr=subprocess.PIPE)
    assert process.wait(60) == 0
    assert (tmp_path / "done").read_text() == "full"
    process.stderr.close()


def test_what_a_child_says_that_was_forked_is_not_lost():
    script = """
import multiprocessing
child = multiprocessing.get_context("fork").Process(target=print, args=("of the child",))
child.start()
child.join()
end_process(child.exitcode)
"""
    with start(script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.communicate()[0] == "of the child\n"
