"""TensorBoard beside a local cluster: `python runtime/launch/board.py TRAIN_DIR PID` shows a run until PID ends.

It listens on localhost alone, at port 6006 or, if that is taken, at one of the next hundred.
"""

import os
import sys
import time

from tensorboard import program

RELOAD_SECS = 2  # how often it looks for new summaries
LOOK_SECS = 0.5


def show(train_dir: str, parent: int) -> None:
    """Show the run in `train_dir` until `parent`, which has started this process, is gone, however that ended."""
    board = program.TensorBoard()
    board.configure(logdir=train_dir, host="localhost", reload_interval=RELOAD_SECS)
    try:
        url = board.launch()
    except program.TensorBoardServerException as error:
        print(f"run_local_cluster.sh: TensorBoard cannot start, and this run goes on without: {error}", flush=True)
        return
    print(f"run_local_cluster.sh: TensorBoard at {url} until this run ends", flush=True)
    while os.getppid() == parent:
        time.sleep(LOOK_SECS)


if __name__ == "__main__":
    show(sys.argv[1], int(sys.argv[2]))
