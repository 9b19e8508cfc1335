"""One trace of the whole cluster, for Perfetto or `chrome://tracing`, from what each worker traced of its own runs."""

import json

from absl import logging

from runtime.records.events import read_run
from runtime.records.files import replace_file
from runtime.records.folder import RunFolder
from runtime.trace import chrome, parts


def write(folder: RunFolder) -> str:
    """Merge what the workers traced into `trace.json`, and return its path, or "" if there is none.

    The run is over by then. So a trace that cannot be made is only said, and so are files that cannot be read.
    """
    trace = parts.read(folder)
    if not trace.spans:
        logging.error("there is no trace in %s: no worker has traced any of the --profile_steps there", folder.path)
        return ""
    try:
        trace.align()
        starts = [event["unix_secs"] for event in read_run(folder) if event["by"] == "worker 0"]
        last = trace.since(starts[0] if starts else 0)
        events = chrome.make_events(last if last.spans else trace)  # the last run may have traced nothing
        replace_file(folder.trace, json.dumps({"traceEvents": events}).encode())
    except (OSError, ValueError) as error:
        logging.error("the trace of all tasks could not be made (%s): free disk space or fix permissions", error)
        return ""
    return folder.trace
