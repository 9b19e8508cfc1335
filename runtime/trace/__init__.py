"""One trace of the whole cluster, for Perfetto or `chrome://tracing`, from what each worker traced of its own runs."""

import json
import os

from runtime.files import replace_file
from runtime.trace import chrome, clocks, parts

TRACE_FILE = "trace.json"


def write(train_dir: str) -> str:
    """Merge what the workers traced into `trace.json` in `train_dir`, and return its path, or "" if there is nothing.

    Files of a worker that cannot be read are only said.

    Raises:
      OSError: the trace cannot be written.
      ValueError: it cannot be made.
    """
    runs = parts.read(train_dir)
    if not runs:
        return ""
    offsets = clocks.align(runs)
    path = os.path.join(train_dir, TRACE_FILE)
    replace_file(path, json.dumps(chrome.make_trace(parts.last_job(runs), offsets)).encode())
    return path
