"""The report of a run, a self-contained page made from the recorded events."""

from absl import logging

from runtime.records.files import replace_file
from runtime.records.folder import RunFolder
from runtime.report import history, page


def write(folder: RunFolder) -> str:
    """Write `report.html`, if a folder is given, and return its path, or "" if there is none.

    The run is over by then, and its result saved. So a report that cannot be made is only said.
    """
    if not folder.is_given:
        return ""
    try:
        replace_file(folder.report, page.make_page(history.read(folder)).encode(errors="backslashreplace"))
    except Exception as error:  # whatever it is
        logging.warning("%s could not be made: %r", folder.report, error)
        return ""
    return folder.report
