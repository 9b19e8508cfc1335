"""The image of `deploy/Dockerfile` and what the files of `deploy/` start, in real containers: podman runs them.

What only the control plane of Kubernetes does, such as to make pods for a Job, is done here by the rules that
`deployed.py` writes down.
"""

import json
import os
import re
import signal

import pytest

from benchmarks.testbed.processes import PROJECT, Cluster, poll_for
from tests import podman

TRAINS = r"worker {}: global step \d+/"


@pytest.fixture(scope="session", autouse=True)
def _image(testrun_uid):
    """The image is built, and containers run here."""
    try:
        podman.get_ready(testrun_uid)
    except podman.CannotRunError as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no containers here: {error}")


class Containers:
    """One ps and two workers on a network, each with a read-only root, as the image's user, with a shared volume."""

    def __init__(self, network, *flags):
        self.network, self.flags = network, flags
        self.names = [f"{network}-{host}" for host in ("ps-0", "worker-0", "worker-1")]

    def start(self):
        hosts = ["--ps_hosts=ps-0:2222", "--worker_hosts=worker-0:2222,worker-1:2222", "--train_dir=/mnt/train"]
        for name in self.names:
            _, job_name, index = name.rsplit("-", 2)
            where = [f"--network={self.network}", f"--network-alias={job_name}-{index}"]
            what = [
                "--read-only",
                "--tmpfs=/tmp",
                "--restart=on-failure:5",
                f"--volume={self.network}-train:/mnt/train",
                "mnist:1",
            ]
            role = [f"--job_name={job_name}", f"--task_index={index}"]
            podman.run("podman", "run", "--detach", f"--name={name}", *where, *what, *hosts, *role, *self.flags)

    def wait_until_all_train(self):
        """Wait until each worker takes steps from now on."""
        for index, name in enumerate(self.names[1:]):
            podman.wait_for_log(name, TRAINS.format(index), after=len(podman.logs(name)))


def kill(container):
    """Kill process 1 of a container, as the system does that is out of memory."""
    os.kill(int(podman.state(container, ".State.Pid")), signal.SIGKILL)


def copy_results(container, folder):
    """Copy the volume out of a container, which may have ended, and return the result."""
    (folder / "results").mkdir()
    podman.run("podman", "cp", f"{container}:/mnt/train/.", str(folder / "results"))
    return json.loads((folder / "results" / "result.json").read_text())


@pytest.mark.long
def test_a_cluster_of_containers_is_stopped_and_killed_and_a_second_one_goes_on(tmp_path):
    with podman.network("stopped", "--internal") as network:
        first = Containers(network, "--train_steps=1000000", "--log_every_secs=0.1")
        first.start()
        ps, chief, worker = first.names
        first.wait_until_all_train()
        assert podman.run("podman", "exec", chief, "id", "-u") == "10001\n"

        for name in (chief, ps):
            podman.run("podman", "stop", "--time=30", name)
            assert podman.wait(name) == [143], podman.logs(name)
            podman.run("podman", "start", name)  # with another address
            first.wait_until_all_train()
        for names in ((chief,), (ps, worker)):
            for name in names:
                kill(name)
            for name in names:  # it is started again
                poll_for(lambda name=name: podman.state(name, ".RestartCount") == "1", f"restart of {name}")
            first.wait_until_all_train()

        podman.run("podman", "stop", "--time=30", *first.names)
        assert podman.wait(*first.names) == [143] * 3
        step = int(re.search(r"worker 0 stopped and saved global step (\d+)", podman.logs(chief)[-200:])[1])
        podman.run("podman", "rm", *first.names)
        second = Containers(network, f"--train_steps={step + 2000}")
        second.start()
        assert podman.wait(*second.names) == [0, 0, 0], podman.logs(chief)
        assert f"at global step {step}\n" in podman.logs(chief)
        assert copy_results(chief, tmp_path)["test_accuracy"] >= 0.95
