"""What GitHub reads, and the version."""

import re
import subprocess
import sys

import pytest

from benchmarks.testbed.processes import PROJECT
from runtime import VERSION
from tests import forked

GITHUB = PROJECT / ".github"


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", "workflows/*.yml"),
        ("github-issue-forms", "ISSUE_TEMPLATE/defect.yml"),
    ],
)
def test_a_file_is_as_github_demands(schema, files):
    paths = list(map(str, GITHUB.glob(files)))
    assert paths
    command = [sys.executable, "-m", "check_jsonschema", f"--builtin-schema=vendor.{schema}", *paths]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_workflow_runs_what_ci_runs_on_every_python():
    workflow = (GITHUB / "workflows" / "ci.yml").read_text()
    assert "- run: .ci/run\n" in workflow
    for minor in range(10, 14):
        assert f'"3.{minor}"' in workflow


def test_the_version_is_the_same_everywhere():
    assert f'\nversion = "{VERSION}"\n' in (PROJECT / "pyproject.toml").read_text()
    latest = re.search(r"^## (\S+) \(\d{4}-\d\d-\d\d\)$", (PROJECT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    assert VERSION.startswith(f"{latest}.")
    printed = forked.run("distributed.py", "--version")
    assert (printed.returncode, printed.stdout.partition(",")[0]) == (0, f"distributed-mnist {VERSION}")


def test_what_is_no_python_keeps_its_line_ends_on_every_system():
    """A shell takes no carriage return, as git on Windows adds it."""
    git = ["git", "-c", "core.autocrlf=true"]
    listed = subprocess.run([*git, "ls-files"], cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    scripts = [name for name in listed.splitlines() if (PROJECT / name).read_bytes()[:2] == b"#!"]
    assert {"run_local_cluster.sh", "tests/run", ".ci/run", "deploy/slurm.sbatch"} <= {*scripts}
    done = subprocess.run(
        [*git, "check-attr", "eol", *scripts], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [f"{name}: eol: lf" for name in scripts]
