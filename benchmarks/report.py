"""Documents that benchmarks and tests write into: sections between markers, tables, and what the figures hold for."""

import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

PROJECT = pathlib.Path(__file__).parents[1]
PERFORMANCE = PROJECT / "docs" / "performance.md"
DETAILS = PROJECT / "benchmarks" / "README.md"
# The figures do not depend on these files, and benchmarks write some of them.
NOT_MEASURED = (":!docs", ":!*.md", ":!benchmarks/*.json")


def write_section(path: pathlib.Path, name: str, text: str) -> None:
    """Replace what stands between `<!-- begin NAME -->` and `<!-- end NAME -->` in a Markdown document.

    Raises:
      ValueError: the document does not have both markers once, in this order.
    """
    document = path.read_text()
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    if document.count(begin) != 1 or document.count(end) != 1 or document.index(begin) > document.index(end):
        raise ValueError(f"{path}: expected the markers {begin} and {end} once each, in this order")
    before, _, rest = document.partition(begin)
    _, _, after = rest.partition(end)
    path.write_text(f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}")


def write_json(path: pathlib.Path, fields: Mapping[str, Any]) -> None:
    """Write an object, one field a line."""
    path.write_text(
        "{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(fields[name])}" for name in fields) + "\n}\n"
    )


def make_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def median_and_spread(values: Sequence[float]) -> list[str]:
    """Return two cells of a table: the median, and the least and the greatest value."""
    return [f"{statistics.median(values):.2f}", f"{min(values):.2f} to {max(values):.2f}"]


def run_header() -> str:
    """Return one line on what the figures of a run hold for: machine, versions, commit and date."""
    return f"{_machine()}; {_versions()}; {_commit()}; {datetime.date.today():%d %B %Y}."


def _machine() -> str:
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else None
    processor = model.group(1) if model else platform.processor() or platform.machine()
    gigabytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return f"{processor}, {len(os.sched_getaffinity(0))} cores, {gigabytes:.0f} GiB of memory"


def _versions() -> str:
    versions = [f"Python {platform.python_version()}"]
    for name, package in (("TensorFlow", "tensorflow"), ("PyTorch", "torch")):
        try:
            versions.append(f"{name} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:  # PyTorch is a requirement of the comparison only
            continue
    return ", ".join(versions)


def _commit() -> str:
    try:
        commit = _git("rev-parse", "--short=7", "HEAD")
        changes = _git("status", "--porcelain", "--untracked-files=no", "--", ".", *NOT_MEASURED)
    except (OSError, subprocess.CalledProcessError):
        return "commit unknown"
    return f"commit {commit}{' with uncommitted changes' if changes else ''}"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=PROJECT, capture_output=True, text=True, check=True).stdout.strip()
