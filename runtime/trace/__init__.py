"""One trace of the whole cluster, for Perfetto or `chrome://tracing`, from what each worker traced of its own runs."""

import json

from runtime.files import replace_file
from runtime.folder import RunFolder
from runtime.trace import chrome, clocks, parts


def write(folder: RunFolder) -> str:
    """Merge what the workers traced into `trace.json`, and return its path, or "" if there is nothing.

    Files of a worker that cannot be read are only said.

    Raises:
      OSError: the trace cannot be written.
      ValueError: it cannot be made.
    """
    trace = parts.read(folder)
    if not trace.spans:
        return ""
    clocks.align(trace)
    events = chrome.make_events(trace.last_job())
    replace_file(folder.trace, json.dumps({"traceEvents": events}).encode())
    return folder.trace
