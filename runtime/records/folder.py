"""The train directory of a run: what lies where."""

import errno
import os
import re
import sys

EVALUATOR = "evaluator 0"  # beside the tasks of the cluster


def why_misread(path: str, is_pattern: bool = True) -> str:
    """Return why TensorFlow would not find at `path` what Python writes there, or nothing if it would.

    It takes a `path` in which it looks for a checkpoint or an exported model for a pattern.
    """
    scheme, is_url, _ = path.partition("://")
    if is_url:
        return f"is not a folder: {scheme}:// is not supported"
    if os.path.lexists(path) and not os.path.isdir(path):
        return f"is a {'file' if os.path.exists(path) else 'link to nothing'}, expected a folder"
    if is_pattern and re.search(r"[*?[\]\\]", path):
        return (
            "has one of the characters * ? [ ] \\ in its path, which TensorFlow takes for a pattern: use another folder"
        )
    if os.fsencode(path) != path.encode(errors="surrogateescape"):
        encoding = sys.getfilesystemencoding()
        return (
            f"has characters that Python encodes as {encoding} in this locale, but TensorFlow as UTF-8: set"
            " LC_ALL=C.UTF-8, or use another folder"
        )
    return ""


class RunFolder:
    """The paths in a train directory. Everything that reads or writes there asks for them here.

    Without a train directory nothing is saved, and all paths are empty.
    """

    def __init__(self, path: str | os.PathLike[str]):
        """Take an absolute path, or an empty one."""
        self.path = os.fspath(path)
        self.is_given = bool(self.path)
        self.lock = self._join("chief.lock")  # says which process trains here, and is locked while it does
        self.checkpoint = self._join("model.ckpt")  # begins the names of the files of all checkpoints
        self.checkpoint_state = self._join("checkpoint")  # names the last of them, as TensorFlow demands
        self.uses = self._join("variables.json")  # what tells whether a checkpoint has them under the same names
        self.result = self._join("result.json")
        self.report = self._join("report.html")
        self.trace = self._join("trace.json")
        self.profile = self._join("profile")  # the parts of the trace
        self.events = self._join("events")
        self.logs = self._join("logs")

    def remedy_for(self, reason: str) -> str:
        """Return what to do where nothing can be written here, for this reason."""
        if not os.path.isdir(self.path):
            return "create the folder again"
        if os.strerror(errno.EFBIG) in reason:
            return "raise the limit of file sizes, ulimit -f"
        return "free disk space (or inodes: df -i) or fix permissions"

    def _join(self, *names: str) -> str:
        return os.path.join(self.path, *names) if self.is_given else ""

    @property
    def runs(self) -> list[int]:
        """The numbers of the runs that have recorded events here."""
        names = os.listdir(self.events) if os.path.isdir(self.events) else []
        return [int(name) for name in names if name.isdecimal()]

    def run(self, number: int) -> str:
        """Return the folder of what the tasks of a run record."""
        return self._join("events", str(number))

    def events_of(self, run: str, task: object) -> str:
        """Return the path of what a task, such as "worker 0", records in the folder of a run."""
        return os.path.join(run, f"{_name(task)}.jsonl")

    def log_of(self, task: object) -> str:
        """Return the path of what a task of the launcher has said."""
        return self._join("logs", f"{_name(task)}.log")

    def profile_of(self, task: object) -> str:
        """Return the folder of what a task traces."""
        return self._join("profile", _name(task))

    def summaries_of(self, task: object) -> str:
        """Return the folder of what a task writes for TensorBoard, which takes each folder for a run."""
        if _name(task) == "worker-0":  # the chief's are those of the run
            return self.path
        return self._join(_name(task).replace("evaluator-0", "evaluator"))


def _name(task: object) -> str:
    return str(task).replace(" ", "-")
