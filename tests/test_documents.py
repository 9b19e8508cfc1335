"""Sections of the documents that are written from the code say what the code says."""

import ast
import os
import re
import shutil
import subprocess

import pytest

from benchmarks import report
from benchmarks.testbed.processes import PROJECT
from tests import documents


@pytest.mark.parametrize(("document", "section"), documents.SECTIONS)
def test_what_is_written_from_the_code_is_up_to_date(tmp_path, document, section):
    renewed = shutil.copy(PROJECT / document, tmp_path)
    report.write_section(tmp_path / renewed, section, documents.SECTIONS[document, section]())
    stale = f"{document} is stale: run .venv/bin/python tests/documents.py"
    assert (tmp_path / renewed).read_text() == (PROJECT / document).read_text(), stale


@pytest.mark.parametrize("script", ["model.py", "mnist_input.py"])
def test_the_model_and_its_input_import_nothing_of_ours(script):
    body = ast.parse((PROJECT / script).read_text()).body
    names = [ast.unparse(node) for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [name for name in names if "runtime" in name] == []


def test_the_script_is_as_short_as_contributing_says():
    script = (PROJECT / "distributed.py").read_text()
    assert len(script.splitlines()) <= 150
    assert len(re.findall(r"^from runtime\b", script, re.MULTILINE)) <= 10
    functions = [node for node in ast.walk(ast.parse(script)) if isinstance(node, ast.FunctionDef)]
    assert max(node.end_lineno - node.lineno + 1 for node in functions) <= 40


def test_the_script_has_the_calls_of_the_tutorials_in_the_order_in_which_they_happen():
    calls = ["ClusterSpec(", "Server(", "server.join()", "replica_device_setter(", "MonitoredTrainingSession("]
    script = (PROJECT / "distributed.py").read_text()
    assert re.findall("|".join(map(re.escape, [*calls, "session.run("])), script) == [*calls, "session.run("]


def test_a_clone_has_what_the_readme_runs(tmp_path):
    subprocess.run(["git", "clone", "--quiet", PROJECT, tmp_path / "distributed-mnist"], check=True)
    assert os.access(tmp_path / "distributed-mnist" / "run_local_cluster.sh", os.X_OK)


def test_the_command_that_counts_lines_works():
    (command,) = re.findall(r"^git ls-files .*", (PROJECT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    done = subprocess.run(["bash", "-c", command], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 5000
