"""TensorBoard beside a local cluster: `show_tensorboard.py TRAIN_DIR LOG PID` shows a run until process PID has ended.

It listens on localhost alone, at port 6006 or, if that is taken, at one of the next hundred. What it says goes into the
file LOG, of which the launcher shows the first line.
"""

import os
import sys
import time

from tensorboard import program

RELOAD_SECS = 2  # how often it looks for new summaries
LOOK_SECS = 0.5


def show(train_dir: str, log: str, parent: int) -> None:
    """Show the run in `train_dir` until `parent`, which has started this process, is gone, however that ended."""
    while not os.path.isdir(os.path.dirname(log)):  # the launcher makes it when it has checked its flags
        _end_with(parent)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    board = program.TensorBoard()
    board.configure(logdir=train_dir, host="localhost", reload_interval=RELOAD_SECS)
    try:
        print(f"TensorBoard at {board.launch()} until this run ends", flush=True)
    except program.TensorBoardServerException as error:
        print(f"TensorBoard cannot start, and this run goes on without: {error}", flush=True)
        return
    while True:
        _end_with(parent)


def _end_with(parent: int) -> None:
    time.sleep(LOOK_SECS)
    if os.getppid() != parent:
        sys.exit()


if __name__ == "__main__":
    show(sys.argv[1], sys.argv[2], int(sys.argv[3]))
