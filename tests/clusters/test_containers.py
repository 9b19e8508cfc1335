"""What the files of `deploy/` start trains, and the image can be built: without containers, but in the same places.

Each task has a host of its own, which has the names of the others, a read-only root file system, and the folders that
the image or a volume has. The files of the program are those that the image copies, and no others.
"""

import json
import os
import shutil
import signal
import subprocess
import sys

import psutil
import pytest

from benchmarks.testbed import network
from benchmarks.testbed.processes import PROJECT, Process, poll_for
from tests import deployed

# In a mount namespace of its own: give a command the places of a container, which are in the folder $1.
MOUNT = 'mount --bind "$1/cache" /var/cache && mount --bind "$1/mnt" /mnt'
READ_ONLY = 'mount --bind "$1/hosts" /etc/hosts && mount --bind /tmp /tmp && mount -o remount,bind,ro /'
RUN = 'shift && exec "$@"'


class Image:
    """The files of an image and of its volumes, in a folder."""

    def __init__(self, folder, data_dir, run_steps=False):
        self.folder = folder
        self.workdir = folder / "workdir"
        shutil.copytree(data_dir, folder / "cache" / "distributed-mnist")
        (folder / "mnt").mkdir()
        instructions = deployed.image()
        self.environment = dict(text.split("=", 1) for kind, text in instructions if kind == "ENV")
        self.environment["PATH"] = f"{os.path.dirname(sys.executable)}:{network.ENVIRONMENT['PATH']}"
        for kind, arguments in instructions:
            if kind == "COPY":
                *sources, target = arguments.split()
                for source in sources:
                    self._copy(PROJECT / source, self.workdir / target)
            elif kind == "RUN" and run_steps and not arguments.startswith("apt-get"):  # which would change this machine
                self._run(arguments)

    @staticmethod
    def _copy(source, target):
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)

    def _run(self, step):
        command = self.command(MOUNT, ["sh", "-c", step], {"PIP_DRY_RUN": "1"})  # this Python has the packages
        done = subprocess.run(command, cwd=self.workdir, capture_output=True, text=True)
        assert done.returncode == 0, done

    def command(self, setup, command, environment):
        """Return the command that runs another one in this image, with this environment and nothing else."""
        variables = [f"{name}={value}" for name, value in {**self.environment, **environment}.items()]
        shell = ["sh", "-c", f"{setup} && {RUN}", "sh", str(self.folder)]
        return ["unshare", "--mount", *shell, "env", "-i", *variables, *command]


@pytest.fixture
def _hosts():
    """Hosts that are like containers can be had here."""
    no_tini = "" if network.find_program("tini") else "there is no tini (Debian: apt-get install tini)"
    if reason := network.missing() or no_tini:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"nothing like containers here: {reason}")


@pytest.mark.usefixtures("_hosts")
@pytest.mark.parametrize("path", deployed.CONTAINER_FILES, ids=lambda path: path.name)
def test_what_a_file_starts_trains(tmp_path, black_and_white_dir, path):
    image = Image(tmp_path, black_and_white_dir)
    (tmp_path / "mnt" / "train").mkdir()
    for name, text in deployed.configuration(path).items():
        (tmp_path / "mnt" / "config").mkdir(exist_ok=True)
        (tmp_path / "mnt" / "config" / name).write_text(text)
    containers = deployed.containers(path)
    with network.Network(len(containers)) as hosts:
        lines = [f"{hosts.address(number)} {container.host}\n" for number, container in enumerate(containers)]
        (tmp_path / "hosts").write_text("".join(lines))
        tasks = []
        for number, container in enumerate(containers):
            # So few steps are enough here; the last flag counts.
            command = image.command(
                f"{MOUNT} && {READ_ONLY}", [*container.command, "--train_steps=300"], container.environment
            )
            output = tmp_path / f"{container.host}.log"
            tasks.append(Process([*hosts.command(number), *command], output, cwd=image.workdir))
        statuses = [task.wait() for task in tasks]
    assert statuses == [0] * len(tasks), "".join(task.output() for task in tasks)
    assert json.loads((tmp_path / "mnt" / "train" / "result.json").read_text())["test_accuracy"] == 1.0
    assert any("test accuracy 1.0000" in task.output() for task in tasks)


@pytest.mark.usefixtures("_hosts")
@pytest.mark.parametrize("path", deployed.CONTAINER_FILES, ids=lambda path: path.name)
def test_a_task_can_be_stopped_while_it_starts(tmp_path, path):
    """The system hands no signal to a process 1 that has not asked for it."""
    private = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    environment = {"PATH": f"{os.path.dirname(sys.executable)}:{network.ENVIRONMENT['PATH']}"}
    task = Process([*private, *deployed.containers(path)[0].command], tmp_path / "log", environment, cwd=PROJECT)
    try:
        in_container = psutil.Process(task.pid).children
        poll_for(lambda: any(process.name() == "python" for process in in_container(recursive=True)), "task")
        in_container()[0].terminate()
        assert task.wait() == 128 + signal.SIGTERM, task.output()
    finally:
        task.kill()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, as Docker does to build")
def test_the_steps_of_the_image_run(tmp_path, mnist_dir):
    Image(tmp_path, mnist_dir, run_steps=True)
    assert (tmp_path / "mnt" / "train").stat().st_uid == 10001
