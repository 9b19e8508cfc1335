"""The files of `deploy/` are valid and careful; `clusters/test_containers.py` runs what they say."""

import copy
import os
import re
import socket
import subprocess
import sys

import pytest

from benchmarks.testbed.processes import PROJECT, can_run
from tests import deployed

OF_ANY_KEYS = {"data", "labels", "matchLabels", "requests", "selector", "tfReplicaSpecs"}


def name(path):
    return path.name


def objects_within(value, key=""):
    """Yield every mapping within a document whose keys are fields."""
    if isinstance(value, dict):
        if key not in OF_ANY_KEYS:
            yield value
        for inner_key, inner in value.items():
            yield from objects_within(inner, inner_key)
    elif isinstance(value, list):
        for inner in value:
            yield from objects_within(inner, key)


@pytest.mark.parametrize("path", deployed.MANIFESTS, ids=name)
def test_a_manifest_is_valid_and_an_error_anywhere_in_it_is_found(path):
    for document in deployed.read(path):
        assert deployed.invalid(document) is None
        for number, fields in enumerate(objects_within(document)):
            wrong = copy.deepcopy(document)
            list(objects_within(wrong))[number]["surplus"] = 1
            assert deployed.invalid(wrong), f"a surplus field beside {sorted(fields)}"
            for key in (key for key, value in fields.items() if type(value) is int):
                wrong = copy.deepcopy(document)
                list(objects_within(wrong))[number][key] = str(fields[key])
                assert deployed.invalid(wrong), f"text in {key}"


def templates(path):
    """Return the specifications of the pods in a manifest, each once."""
    found = [value for document in deployed.read(path) for value in objects_within(document) if "containers" in value]
    assert found
    return found


@pytest.mark.parametrize("path", [*deployed.JOBS, deployed.KUBERNETES / "results.yaml"], ids=name)
def test_a_pod_has_few_rights_and_a_task_has_time_to_stop(path):
    for pod in templates(path):
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["fsGroup"] == int(dict(deployed.image())["USER"].partition(":")[2])
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert not container["securityContext"]["allowPrivilegeEscalation"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert "command" in container or pod["terminationGracePeriodSeconds"] >= 20
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes


@pytest.mark.parametrize("path", deployed.JOBS, ids=name)
def test_only_the_pods_of_the_job_reach_one_another(path):
    (policy,) = [document["spec"] for document in deployed.read(path) if document["kind"] == "NetworkPolicy"]
    assert policy["policyTypes"] == ["Ingress"]
    assert policy["ingress"] == [{"from": [{"podSelector": policy["podSelector"]}]}]
    assert policy["podSelector"]["matchLabels"].keys() == {"distributed-mnist"}, "others may have a common label"
    templates = [
        value
        for document in deployed.read(path)
        for value in objects_within(document)
        if "containers" in value.get("spec", {})
    ]
    for template in templates:
        assert policy["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()


@pytest.mark.parametrize("path", deployed.JOBS[1:], ids=name)
def test_the_pods_of_other_kinds_of_jobs_run_like_those_that_podman_runs(path):
    def describe(pod):
        (container,), spec = pod["spec"]["containers"], pod["spec"]
        mounts = [mount for mount in container["volumeMounts"] if mount["name"] != "config"]
        volumes = [volume for volume in spec["volumes"] if volume["name"] != "config"]
        same = [container[field] for field in ("image", "resources", "securityContext")]
        return [spec["securityContext"], spec["terminationGracePeriodSeconds"], volumes, mounts, *same]

    jobs, others = deployed.pods(deployed.JOBS[0]), deployed.pods(path)
    assert [*map(describe, others)] == [*map(describe, jobs)]


@pytest.mark.parametrize("path", [p for p in deployed.JOBS if p.name != "tfjob.yaml"], ids=name)
def test_a_job_gives_up_at_status_2_or_when_one_task_has_failed_too_often(path):
    jobs = [value for document in deployed.read(path) for value in objects_within(document) if "completions" in value]
    assert len(jobs) == 2
    for job in jobs:
        assert "backoffLimit" not in job, "it is of all tasks together"
        assert (job["backoffLimitPerIndex"], job["maxFailedIndexes"]) == (20, 0)
        give_up, ignore = job["podFailurePolicy"]["rules"]
        assert give_up == {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2]}}
        assert ignore["action"] == "Ignore"
        assert job["template"]["spec"]["restartPolicy"] == "Never", "a failure policy needs it"


@pytest.mark.parametrize("path", deployed.MANIFESTS, ids=name)
def test_only_one_file_has_the_volume_so_that_deleting_another_keeps_the_results(path):
    kinds = {document["kind"] for document in deployed.read(path)}
    assert ("PersistentVolumeClaim" in kinds) == (path.name == "train-dir.yaml")


@pytest.mark.parametrize("path", deployed.JOBS, ids=name)
def test_a_task_waits_an_hour_for_a_pod_that_is_pending(path):
    """Otherwise the wait counts as a failure, and uses up the restarts."""
    arguments = [deployed.configuration(path).get("flags", "").split(), *map(deployed.arguments, deployed.pods(path))]
    for flag in ("--startup_timeout_secs=3600", "--recovery_timeout_secs=3600"):
        assert any(flag in some for some in arguments)


@pytest.mark.skipif(not can_run(["docker-compose", "version"]), reason="needs docker-compose (Debian: docker-compose)")
def test_compose_reads_its_file(tmp_path):
    text = deployed.COMPOSE.read_text()
    for valid, content in ((True, text), (False, text.replace("cap_drop", "cap_dorp"))):
        (tmp_path / "compose.yaml").write_text(content)
        command = ["docker-compose", f"--file={tmp_path / 'compose.yaml'}", "config", "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode == 0) == valid, done.stderr


def test_one_service_of_compose_builds_the_image_that_all_use():
    (file,) = deployed.read(deployed.COMPOSE)
    assert {service["image"] for service in file["services"].values()} == {"mnist:1"}
    builds, *others = ["build" in service for service in file["services"].values()]
    assert builds, "docker-compose goes in their order"
    assert not any(others)
    assert {service["pull_policy"] for service in file["services"].values()} == {"never"}, "it pulls before it builds"


def test_the_image_is_pinned_and_not_of_root():
    (kind, base), *instructions = deployed.image()
    assert (kind, bool(re.fullmatch(r"BASE=python:3\.1[0-3]\.\d+-slim-\w+", base))) == ("ARG", True)
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", dict(instructions)["USER"])


def test_the_images_take_packages_from_a_mirror_that_the_builder_names():
    for instructions in (deployed.image(), deployed.image("own.Dockerfile")):
        kinds = [kind for kind, what in instructions if kind == "FROM" or "PIP_" in what or "pip install" in what]
        assert kinds == ["FROM", "ARG", "RUN"]


def test_the_context_of_the_image_has_what_it_copies():
    kept = {line[1:] for line in (PROJECT / ".dockerignore").read_text().splitlines() if line[0] == "!"}
    copied = [source for kind, arguments in deployed.image() if kind == "COPY" for source in arguments.split()[:-1]]
    assert {source.partition("/")[0] for source in copied} == kept


def test_under_slurm_a_task_that_always_fails_is_started_again_five_times(tmp_path):
    script = (deployed.DEPLOY / "slurm.sbatch").read_text()
    (function,) = re.findall(r"^run_task\(\) \{.*?^\}$", script, re.MULTILINE | re.DOTALL)
    stubs = 'python() { echo "started $*"; return 1; }; sleep() { :; }; scancel() { echo "told $*"; }'
    variables = "PYTHON=python NUM_PS=1 PORTS=2222 GAVE_UP=200 SLURM_PROCID=2 JOB=7 SLURM_STEP_ID=0 TRAIN_DIR=there"
    command = ["bash", "-c", f"{stubs}\n{variables}\n{function}\nrun_task --seed=1"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, input="--ps_hosts=a --worker_hosts=b\n"
    )
    assert re.fullmatch(r"\S+:2222\n", done.stdout)
    role = "--job_name=worker --task_index=1"
    started = f"started distributed.py {role} --train_dir=there --ps_hosts=a --worker_hosts=b --seed=1"
    again = [f"worker 1 ended with status 1: starting it again in {delay} s" for delay in (1, 2, 5, 15, 60)]
    expected = [line for pair in zip([started] * 5, again, strict=True) for line in pair]
    last = [started, "worker 1 ended with status 1: ending the job", "told --signal=TERM 7.0"]
    assert (done.stderr.splitlines(), done.returncode) == (expected + last, 200)


# Starts twelve tasks with labels as older versions of Slurm write them, of which 08 and 09 are no octal numbers.
SRUN = f"""#!{sys.executable}
import itertools, os, subprocess, sys
pipes = {{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}}
command = list(itertools.dropwhile(lambda argument: argument.startswith("--"), sys.argv[1:]))
tasks = [subprocess.Popen(command, env={{**os.environ, "SLURM_PROCID": str(i)}}, **pipes) for i in range(12)]
print("00: what the node says: 1")
for index in reversed(range(12)):
    print(f"{{index:02}}: {{tasks[index].stdout.readline()}}", end="", flush=True)
hosts = sys.stdin.readline()
for task in tasks:
    task.communicate(hosts)
"""


def test_under_slurm_each_of_twelve_tasks_is_told_where_all_of_them_are(tmp_path):
    project = tmp_path / "project"  # of tasks that say their ports and their flags, and end
    (project / ".venv" / "bin").mkdir(parents=True)
    (project / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (project / "runtime").symlink_to(PROJECT / "runtime")
    (project / "distributed.py").write_text("import os, sys; print('port', os.environ['PORTS'], *sys.argv[1:])")
    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "srun").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "1", "SLURM_NTASKS": "12"}
    command = ["bash", str(deployed.DEPLOY / "slurm.sbatch")]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "00: what the node says: 1" in done.stderr
    flags = r"--job_name=(\w+) --task_index=(\d+) .* --ps_hosts=(\S+) --worker_hosts=(\S+)"
    told = re.findall(rf"port (\d+) {flags}", done.stderr)
    assert len(told) == 12, done.stderr
    for port, job_name, index, *hosts in told:
        ps_hosts, worker_hosts = (some.split(",") for some in hosts)
        assert (len(ps_hosts), len(worker_hosts)) == (1, 11)
        assert (ps_hosts if job_name == "ps" else worker_hosts)[int(index)].endswith(f":{port}")


def test_under_slurm_a_task_keeps_others_from_its_port_until_it_ends():
    waits = ["sh", "-c", 'echo "$PORTS" && read -r _']
    command = [sys.executable, "runtime/launch/ports.py", "1", *waits]
    with subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as task:
        port = int(task.stdout.readline())
        with socket.socket(type=socket.SOCK_DGRAM) as claim, pytest.raises(OSError, match="in use"):
            claim.bind(("127.0.0.1", port))
        task.stdin.close()
    with socket.socket(type=socket.SOCK_DGRAM) as claim:
        claim.bind(("127.0.0.1", port))
