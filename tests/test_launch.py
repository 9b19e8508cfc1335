import os
import shutil
import socket
import subprocess

import pytest

from benchmarks.testbed.processes import PROJECT
from runtime.launch.ports import choose_ports

# Stands in for the Python of a virtual environment: it notes what pip is asked for, and succeeds.
FAKE_PYTHON = '#!/bin/sh\nif [ "$2" = pip ]; then shift 2; echo "$@" >>"${0%/*}/pip.log"; fi\n'


def test_ports_are_free_and_all_different():
    ports = choose_ports(50)
    assert len(set(ports)) == 50
    assert all(10000 <= port < 32768 for port in ports)
    for port in ports:
        with socket.create_server(("127.0.0.1", port)):
            pass


@pytest.fixture
def install(tmp_path):
    """Run `venv.sh` in a project of its own, and return which files pip has been told to install."""
    (tmp_path / "runtime" / "launch").mkdir(parents=True)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    script = shutil.copy(PROJECT / "runtime" / "launch" / "venv.sh", tmp_path / "runtime" / "launch")
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    (tmp_path / "requirements.txt").write_text("some-package>=1\n")
    (tmp_path / "requirements.lock").write_text("some-package==1.5 --hash=sha256:00\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON"}
    log = python.with_name("pip.log")

    def install(*arguments):
        log.write_text("")
        done = subprocess.run([script, *arguments], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout == f"{python}\n"
        lines = log.read_text().splitlines()
        assert all(("--require-hashes" in line) == line.endswith(".lock") for line in lines)
        return [line.split("/")[-1] for line in lines]

    install.project = tmp_path
    return install


def test_requirements_are_installed_once_and_again_when_they_change(install):
    assert install("requirements.txt") == ["requirements.txt"]
    assert install("requirements.txt") == []
    (install.project / "requirements.txt").write_text("some-package>=2\n")
    assert install("requirements.txt") == ["requirements.txt"]


def test_locked_and_unlocked_versions_replace_each_other(install):
    for _ in range(2):
        assert install("requirements.txt") == ["requirements.txt"]
        assert install("--locked", "requirements.txt") == ["requirements.lock"]
        assert install("--locked", "requirements.txt") == []
