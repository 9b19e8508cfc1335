"""One trace of the whole cluster, for Perfetto or `chrome://tracing`, from what each worker traced of its own runs."""

import json
import os

from runtime.files import replace_file
from runtime.trace import chrome, clocks, parts


def write(train_dir: str) -> str:
    """Merge what the workers traced into `trace.json` in `train_dir`, and return its path, or "" if there is nothing.

    Files of a worker that cannot be read are only said.

    Raises:
      OSError: the trace cannot be written.
      ValueError: it cannot be made.
    """
    trace = parts.read(train_dir)
    if not trace.spans:
        return ""
    offsets = clocks.align(trace)
    path = os.path.join(train_dir, "trace.json")
    events = chrome.make_events(trace.last_job(), offsets)
    replace_file(path, json.dumps({"traceEvents": events}).encode())
    return path
