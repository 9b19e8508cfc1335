"""A project in which the launcher is the real one, and each task is a shell script."""

import os
import re
import shutil
import sys

from benchmarks.testbed.processes import PROJECT

# In the place of distributed.py: a worker does what worker.sh says, and a ps what ps.sh does, or ends at once.
SCRIPT = """
import os, sys

class program:
    parse_flags = staticmethod(lambda arguments: None)
    start = staticmethod(lambda main: main())

class FILES:
    import mnist_input as reader

def main():
    script = "./worker.sh" if "--job_name=worker" in sys.argv else "./ps.sh"
    if os.path.exists(script):
        os.execvp("sh", ["sh", script, *sys.argv])
"""
READER = """
import os
PREDICTS = os.environ.get("PREDICTS", "examples/digits/predict.py PICTURE...")
"""
# Append an event to those of worker 0 in the last run.
TELL = """tell() {
  run=$(ls -d train/events/*/ | tail -n 1)
  echo "{\\"unix_secs\\": 1, \\"event\\": \\"$1\\", \\"missing\\": \\"ps 0\\"}" >>"${run}worker-0.jsonl"
}
"""
WAIT = "while ! [ -e go-on ]; do tell waiting; sleep 0.05; done\n"  # a display that has just begun sees it, too


def make_command(folder, worker, *options):
    """Return what launches a cluster of one ps and one worker, which runs `worker`, in `folder`."""
    if not (folder / "runtime").exists():
        shutil.copytree(PROJECT / "runtime", folder / "runtime", copy_function=os.symlink)
        cluster = folder / "runtime" / "launch" / "cluster.py"
        text, count = re.subn(r"\nSHARED = .*", "\nSHARED = ()", cluster.read_text())
        assert count == 1  # these import TensorFlow, and no task needs it
        cluster.unlink()
        cluster.write_text(text)
        (folder / "model.py").touch()
        if not (folder / "mnist_input.py").exists():
            (folder / "mnist_input.py").write_text(READER)
    (folder / "distributed.py").write_text(SCRIPT)
    (folder / "worker.sh").write_text(TELL + worker)
    own = ["--no_isolation", "--workers=1", "--train_dir=train", f"--data_dir={folder}"]
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (folder / f"{name}-ubyte.gz").touch()
    return [sys.executable, os.path.join(folder, "runtime", "launch"), "prepare", *own, *options]
