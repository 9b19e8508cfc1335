"""The image of `deploy/Dockerfile` and what the files of `deploy/` start, in real containers: podman runs them.

What only the control plane of Kubernetes does, such as to make pods for a Job, is done here by the rules that
`deployed.py` writes down.
"""

import json
import os
import re
import shutil
import signal

import pytest
import yaml

from benchmarks.testbed.processes import PROJECT, Cluster, poll_for
from tests import deployed, podman

TRAINS = r"worker \d+: global step \d+/"


@pytest.fixture(scope="session", autouse=True)
def _image(testrun_uid):
    """The image is built, and containers run here."""
    try:
        podman.get_ready(testrun_uid)
    except podman.CannotRunError as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no containers here: {error}")
    with podman.reminding_name_server():
        yield


def wait_until_all_train(*workers):
    """Wait until each takes steps from now on."""
    for worker in workers:
        podman.wait_for_log(worker, TRAINS, after=len(podman.logs(worker)))


def kill(container):
    """Kill process 1 of a container, as the system does that is out of memory."""
    pid = int(podman.state(container, ".State.Pid"))
    assert pid, f"{container} has ended: {podman.logs(container)}"  # 0 would be the group of this process
    os.kill(pid, signal.SIGKILL)


def wait_for_restart(container):
    """Wait until a container that ended with an error is started again."""
    poll_for(lambda: podman.state(container, ".RestartCount") != "0", f"restart of {container}")


def step_saved(log):
    """Return the step that the chief said last that it has saved."""
    return int(re.findall(r"worker 0 stopped and saved global step (\d+)", log)[-1])


def execute(folder, *lines):
    """Run shell commands of docs/containers.md in a folder that has `deploy/`, with podman for docker."""
    if not (link := folder / "deploy").exists():
        link.symlink_to(deployed.DEPLOY)
    return podman.run("bash", "-euc", "\n".join([podman.DOCKER, *lines]), cwd=folder)


def list_files(folder):
    """Return the names of all files, without what tells a host, a process or a moment."""
    paths = (path.relative_to(folder) for path in folder.rglob("*"))
    return sorted(re.sub(r"tfevents\..*", "tfevents", str(path)) for path in paths)


def test_a_task_can_be_stopped_while_it_starts_and_status_2_comes_out():
    """The system hands no signal to a process 1 that has not asked for it."""
    with podman.network("starting") as network:
        ps, chief = f"{network}-ps", f"{network}-chief"
        for name, flags in ((ps, ["--job_name=ps"]), (chief, ["--job_name=worker", "--learning_rate=0"])):
            command = [
                "podman",
                "run",
                "--detach",
                f"--name={name}",
                f"--network={network}",
                "mnist:1",
                "--task_index=0",
            ]
            podman.run(*command, *flags)
        poll_for(lambda: re.search("python|ps-0", podman.run("podman", "top", ps, "comm")), "process in the container")
        podman.run("podman", "stop", "--time=60", ps)
        assert podman.wait(ps, chief) == [143, 2], podman.logs(chief)


def test_a_container_takes_as_many_threads_as_its_quota_has_processors():
    count = "from runtime.machine.session_config import count_cores; print(count_cores(), 'cores')"
    with podman.network("limited") as network:
        options = ["--rm", "--cpus=1", f"--network={network}", "--entrypoint=python"]
        assert "\n1 cores\n" in f"\n{podman.run('podman', 'run', *options, 'mnist:1', '-c', count)}"


class Composed:
    """What `deploy/compose.yaml` describes."""

    def __init__(self, folder, name):
        self._name, self._more = name, folder / "more.yaml"

    def run(self, *command):
        files = [f"--file={deployed.COMPOSE}", f"--file={self._more}"]
        return podman.run("docker-compose", *files, f"--project-name={self._name}", *command)

    def up(self, *flags):
        """Start the tasks with further flags, of which the last counts; return the containers."""
        (described,) = deployed.read(deployed.COMPOSE)
        commands = {name: task["command"] for name, task in described["services"].items()}
        services = {name: {"command": [*command, *flags]} for name, command in commands.items()}
        self._more.write_text(yaml.safe_dump({"services": services}))
        self.run("up", "--detach", "--no-build")
        return [self.run("ps", "--quiet", name).strip() for name in commands]


@pytest.mark.slow
def test_compose_brings_a_cluster_up_stops_it_goes_on_and_takes_it_down(tmp_path):
    composed = Composed(tmp_path, "composed")
    with podman.service():
        try:
            containers = composed.up("--train_steps=1000000", "--log_every_secs=0.1")
            ps, chief, worker = containers
            wait_until_all_train(chief, worker)
            assert podman.run("podman", "exec", chief, "id", "-u") == "10001\n"
            podman.run("podman", "stop", "--time=60", ps)
            assert podman.wait(ps) == [143], podman.logs(ps)
            kill(chief)
            wait_for_restart(chief)
            podman.run("podman", "start", ps)  # with another address
            wait_until_all_train(chief, worker)
            composed.run("stop")
            assert podman.wait(*containers) == [143] * 3
            step = step_saved(podman.logs(chief))

            containers = composed.up(f"--train_steps={step + 2000}")  # others, which take the place of these
            _, chief, _ = containers
            assert podman.wait(*containers) == [0, 0, 0], podman.logs(chief)
            assert f"restored /mnt/train/model.ckpt-{step}, at global step " in podman.logs(chief)

            _, after = deployed.blocks("Docker Compose")
            assert "\ntest accuracy 0.9" in execute(tmp_path, "export COMPOSE_PROJECT_NAME=composed", after)
            result = json.loads((tmp_path / "results" / "result.json").read_text())
            assert result["test_accuracy"] >= 0.95
            assert "composed_train" in podman.run("podman", "volume", "ls", "--quiet")
        finally:
            composed.run("down", "--volumes")
        assert "composed" not in podman.run("podman", "volume", "ls", "--quiet")


class Pods:
    """The pods of a manifest, as podman takes them, and in them the image that was built."""

    def __init__(self, folder, path, network):
        self.network, self.file, self.results_file = network, folder / "pods.yaml", folder / "results.yaml"
        (claim,) = deployed.read(deployed.KUBERNETES / "train-dir.yaml")
        # podman has one space of names for claims, ConfigMaps and emptyDirs: all are volumes.
        claim["metadata"]["name"] = f"{network}-claim"
        (folder / "claim.yaml").write_text(yaml.safe_dump(claim))
        podman.run("podman", "play", "kube", str(folder / "claim.yaml"))
        data = deployed.configuration(path)
        flags_file = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{network}-config"}, "data": data}
        pods = deployed.pods(path)
        (results,) = deployed.read(deployed.KUBERNETES / "results.yaml")
        for pod in (*pods, results):
            (container,) = pod["spec"]["containers"]
            container["image"] = "localhost/mnist:1"
            for volume in [*pod["spec"]["volumes"], *container["volumeMounts"]]:
                volume["name"] = f"{network}-{pod['metadata']['name']}-{volume['name']}"
                if "configMap" in volume:
                    volume["configMap"]["name"] = f"{network}-config"
                if "persistentVolumeClaim" in volume:
                    volume["persistentVolumeClaim"]["claimName"] = f"{network}-claim"
        self.results_file.write_text(yaml.safe_dump(results))
        self._pods, self._flags_file = pods, flags_file
        self.names = [pod["metadata"]["name"] for pod in pods]
        self.containers = [f"{pod['metadata']['name']}-{pod['spec']['containers'][0]['name']}" for pod in pods]
        (self.grace_secs,) = {pod["spec"]["terminationGracePeriodSeconds"] for pod in pods}

    def start(self, *flags):
        """Start the pods with further flags, of which the last counts."""
        for pod in self._pods:
            deployed.arguments(pod).extend(flags)
        self.file.write_text(yaml.safe_dump_all([self._flags_file, *self._pods]))
        podman.run("podman", "play", "kube", f"--network={self.network}", str(self.file))

    def delete(self, folder):
        """Stop them as the kubelet does, whose pods keep their network until the containers have ended; remove them.

        Copy what they have saved into a folder, too.
        """
        podman.run("podman", "stop", f"--time={self.grace_secs}", *self.containers)
        statuses = podman.wait(*self.containers)
        logs = [podman.logs(container) for container in self.containers]
        podman.run("podman", "pod", "rm", *self.names)
        self.copy_results(folder)
        return statuses, logs

    def copy_results(self, folder):
        """Copy the claim out of a pod that mounts it."""
        podman.run("podman", "play", "kube", f"--network={self.network}", str(self.results_file))
        podman.run("podman", "cp", "mnist-results-results:/mnt/train", str(folder))
        podman.run("podman", "pod", "rm", "--force", "mnist-results")


def test_the_pods_of_jobs_are_deleted_and_new_ones_go_on_as_processes_by_hand_do(tmp_path, mnist_dir):
    """With the same accuracy, statuses and files."""
    # Each worker then writes a summary, and the chief has no checkpoint of a step between.
    flags = ["--sync_replicas", "--log_every_secs=0.1", "--save_checkpoint_secs=600"]
    by_hand = tmp_path / "by-hand"
    with podman.network("jobs", "--internal") as network:
        pods = Pods(tmp_path, deployed.KUBERNETES / "jobs.yaml", network)
        pods.start("--train_steps=1000000", *flags)
        podman.wait_for_log(pods.containers[1], TRAINS)
        statuses, logs = pods.delete(by_hand)
        assert statuses == [143] * 3
        step = step_saved(logs[1])
        flags.append(f"--train_steps={step + 300}")
        pods.start(flags[-1])
        assert podman.wait(*pods.containers) == [0, 0, 0]
        assert f"restored /mnt/train/model.ckpt-{step}, at global step " in podman.logs(pods.containers[1])
        pods.copy_results(tmp_path / "results")
    with Cluster(tmp_path, 1, 2, *flags, f"--train_dir={by_hand}", f"--data_dir={mnist_dir}") as cluster:
        cluster.start()
        assert cluster.wait() == dict.fromkeys(cluster.names, 0)
    assert list_files(tmp_path / "results") == list_files(by_hand)
    result, expected = (json.loads((folder / "result.json").read_text()) for folder in (tmp_path / "results", by_hand))
    assert result.keys() == expected.keys()
    assert result["test_accuracy"] == pytest.approx(expected["test_accuracy"], abs=0.002)


@pytest.mark.skipif(
    not (os.environ.get("CI") or os.path.isdir("/usr/share/datasets/fashion-mnist")),
    reason="needs Fashion-MNIST (Debian: apt-get install dataset-fashion-mnist)",
)
def test_a_model_of_ones_own_trains_with_further_modules_packages_and_data(tmp_path):
    build, run = deployed.blocks("With your own model")
    own = shutil.copytree(PROJECT / "examples" / "fashion_mnist", tmp_path / "examples" / "fashion_mnist")
    (own / "requirements.txt").write_text("humanize==4.9.0\n")
    (own / "further.py").write_text("import humanize\n\nSAYS = humanize.intcomma(1234567)\n")
    with open(own / "model.py", "a") as file:
        file.write('\nimport further\n\nassert further.SAYS == "1,234,567"\n')
    for path in own.iterdir():
        path.chmod(0o700 if path.is_dir() else 0o600)  # as of a user whose umask is 077
    try:
        execute(tmp_path, build, run)
        result = json.loads((tmp_path / "own-results" / "result.json").read_text())
        assert result["test_accuracy"] > 0.7
        text = (PROJECT / "docs" / "containers.md").read_text()
        for words in ("stop worker-0", "volume rm own-train"):
            execute(tmp_path, re.search(rf"`(docker {words}.*?)`", text)[1])
        assert "own-train" not in podman.run("podman", "volume", "ls", "--quiet")
    finally:
        podman.run("podman", "network", "rm", "--force", "--time=0", "own")
        podman.run("podman", "volume", "rm", "--force", "own-train")
