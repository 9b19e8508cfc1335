"""One trace of the whole cluster, for Perfetto or `chrome://tracing`, from what each worker traced of its own runs."""

import json
import os

from absl import logging

from runtime.trace import chrome, clocks, parts

TRACE_FILE = "trace.json"


def write(train_dir: str) -> str:
    """Merge what the workers traced into `trace.json` in `train_dir`, unless that is empty.

    Returns:
      The path of the trace, or "" if there is none. What cannot be read or written is only said.
    """
    path = os.path.join(train_dir, TRACE_FILE)
    try:
        runs = parts.read(train_dir) if train_dir else []
        if not runs:
            return ""
        offsets = clocks.align(runs)
        with open(path + ".tmp", "w", encoding="utf-8") as file:
            json.dump(chrome.make_trace(runs, offsets), file)
        os.replace(path + ".tmp", path)
    except (OSError, ValueError) as error:
        logging.error("%s could not be made: %r", path, error)
        return ""
    return path
