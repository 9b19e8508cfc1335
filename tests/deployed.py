"""What the files of `deploy/` describe: the containers that they start, by the rules of who reads them; validity."""

import json
import re
import sys
import types
from typing import NamedTuple

import kubeflow.training
import kubeflow_trainer_api.models
import kubernetes
import yaml

from benchmarks.testbed.processes import PROJECT

DEPLOY = PROJECT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
MANIFESTS = sorted(KUBERNETES.glob("*.yaml"))
JOBS = [KUBERNETES / f"{name}.yaml" for name in ("jobs", "jobset", "tfjob")]
CONTAINER_FILES = [*JOBS, DEPLOY / "compose.yaml"]


class Container(NamedTuple):
    """A container of a task."""

    host: str  # the name that leads to it
    command: list[str]
    environment: dict[str, str]


def read(path):
    """Return the documents of a file of YAML."""
    return list(yaml.safe_load_all(path.read_text()))


def image():
    """Return the instructions of the Dockerfile, each with its arguments."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line]


def containers(path):
    """Return the containers of all tasks."""
    documents = read(path)
    if path.name == "compose.yaml":
        services = documents[0]["services"]
        return [_of_service(name, service) for name, service in services.items()]
    return [container for document in documents for container in KINDS.get(document["kind"], _none)(document)]


def configuration(path):
    """Return the files that a ConfigMap gives to the containers, by name."""
    return {
        name: text
        for document in read(path)
        if document.get("kind") == "ConfigMap"
        for name, text in document["data"].items()
    }


def _of_service(name, service):
    """Return the container of a service, as Docker starts it."""
    init = ["tini", "--"] if service.get("init") else []  # it comes with Docker
    return Container(name, [*init, *service["entrypoint"], *service["command"]], {})


def _none(_):
    return []


def _of_job(job, labels=None):
    """Return the containers of an Indexed Job, as the Job controller and the kubelet make them."""
    template, count = job["spec"]["template"], job["spec"]["completions"]
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["parallelism"] == count, "all tasks have to run at once"
    for index in range(count):
        host = f"{job['metadata']['name']}-{index}.{template['spec']['subdomain']}"
        labels = {**template["metadata"]["labels"], **(labels or {})}
        yield _of_pod(template, host, labels, {"JOB_COMPLETION_INDEX": str(index)})


def _of_jobset(jobset):
    """Return the containers of a JobSet, as its controller makes them: Jobs within a subdomain."""
    name = jobset["metadata"]["name"]
    for replicated_job in jobset["spec"]["replicatedJobs"]:
        job = json.loads(json.dumps(replicated_job["template"]))
        job["metadata"] = {"name": f"{name}-{replicated_job['name']}-0"}
        job["spec"]["template"]["spec"]["subdomain"] = name
        yield from _of_job(job, {"jobset.sigs.k8s.io/replicatedjob-name": replicated_job["name"]})


def _of_tfjob(tfjob):
    """Return the containers of a TFJob, as the operator makes them."""
    name, specs = tfjob["metadata"]["name"], tfjob["spec"]["tfReplicaSpecs"]
    hosts = {job: [f"{name}-{job.lower()}-{i}.default.svc" for i in range(specs[job]["replicas"])] for job in specs}
    cluster = {job.lower(): [f"{host}:2222" for host in hosts[job]] for job in specs}
    for job, spec in specs.items():
        assert spec["template"]["spec"]["containers"][0]["name"] == "tensorflow", "no other gets TF_CONFIG"
        for index, host in enumerate(hosts[job]):
            config = {"cluster": cluster, "task": {"type": job.lower(), "index": index}, "environment": "cloud"}
            yield _of_pod(spec["template"], host, {}, {"TF_CONFIG": json.dumps(config)})


KINDS = {"Job": _of_job, "JobSet": _of_jobset, "TFJob": _of_tfjob}


def _of_pod(template, host, labels, environment):
    """Return the container of a pod, as the kubelet starts it: the image's entrypoint, with the variables filled in."""
    (container,) = template["spec"]["containers"]
    environment = dict(environment)
    for variable in container.get("env", []):
        label = re.fullmatch(r"metadata\.labels\['(.*)'\]", variable["valueFrom"]["fieldRef"]["fieldPath"])[1]
        environment[variable["name"]] = labels[label]
    arguments = [re.sub(r"\$\((\w+)\)", lambda match: environment[match[1]], text) for text in container["args"]]
    return Container(host, [*json.loads(dict(image())["ENTRYPOINT"]), *arguments], environment)


def invalid(document):
    """Return why a Kubernetes object is not valid, in one line, or None.

    The models of the clients ignore fields that they do not know, and convert types. So an object is valid if nothing
    of it is missing or different when a model has read it and has written it again.
    """
    try:
        written = _through_the_model(document)
    except (ValueError, TypeError) as error:
        return repr(error)
    return None if written == document else f"{document['kind']} has unknown fields, or values of a wrong type"


def _through_the_model(document):
    if document["kind"] == "JobSet":
        assert document["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
        return kubeflow_trainer_api.models.JobsetV1alpha2JobSet.from_dict(document).to_dict()
    if document["kind"] == "TFJob":
        assert document["apiVersion"] == "kubeflow.org/v1"
        client, model = kubeflow.training.ApiClient(), "KubeflowOrgV1TFJob"
    else:
        client, model = kubernetes.client.ApiClient(), f"V1{document['kind']}"
    return client.sanitize_for_serialization(
        client.deserialize(types.SimpleNamespace(data=json.dumps(document)), model)
    )


def make_project_of_tasks_that_say_what_they_are_told(folder):
    """Return a project to submit `slurm.sbatch` from: each task says its port and its flags, and ends."""
    project = folder / "project"
    (project / ".venv" / "bin").mkdir(parents=True)
    (project / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (project / "runtime").symlink_to(PROJECT / "runtime")
    (project / "distributed.py").write_text("import os, sys; print('port', os.environ['PORTS'], *sys.argv[1:])")
    return project


def assert_all_know_of_each_other(log, num_workers):
    """Check that each task was told, in the lists of all, the port that it has."""
    flags = r"--job_name=(\w+) --task_index=(\d+) .* --ps_hosts=(\S+) --worker_hosts=(\S+)"
    told = re.findall(rf"port (\d+) {flags}", log)
    assert len(told) == 1 + num_workers, log
    for port, job_name, index, *hosts in told:
        ps_hosts, worker_hosts = (some.split(",") for some in hosts)
        assert (len(ps_hosts), len(worker_hosts)) == (1, num_workers)
        assert (ps_hosts if job_name == "ps" else worker_hosts)[int(index)].endswith(f":{port}")
