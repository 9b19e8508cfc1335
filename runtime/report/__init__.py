"""The report of a run: one page without network, from what the tasks recorded in the train directory."""

import os

from absl import logging

from runtime.files import replace_file
from runtime.report import history, page


def write(train_dir: str) -> str:
    """Write `report.html` into `train_dir`, unless that is empty, and return its path, or "" if there is none.

    The run is over by then, and its result saved. So a report that cannot be made is only said.
    """
    if not train_dir:
        return ""
    path = os.path.join(train_dir, "report.html")
    try:
        replace_file(path, page.make_page(history.read(train_dir)).encode())
    except Exception as error:  # whatever it is
        logging.error("%s could not be made: %r", path, error)
        return ""
    return path
