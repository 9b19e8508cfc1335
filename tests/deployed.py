"""What the files of `deploy/` describe: the pods that they start, by the rules of who reads them; validity."""

import json
import re
import types

import kubeflow.training
import kubeflow_trainer_api.models
import kubernetes
import yaml

from benchmarks.testbed.processes import PROJECT

DEPLOY = PROJECT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
MANIFESTS = sorted(KUBERNETES.glob("*.yaml"))
JOBS = [KUBERNETES / f"{name}.yaml" for name in ("jobs", "jobset", "tfjob")]
COMPOSE = DEPLOY / "compose.yaml"


def read(path):
    """Return the documents of a file of YAML."""
    return list(yaml.safe_load_all(path.read_text()))


def image(name="Dockerfile"):
    """Return the instructions of a Dockerfile, each with its arguments."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / name).read_text(), flags=re.MULTILINE).replace("\\\n", "")
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line]


def blocks(heading):
    """Return the blocks of shell code below a heading of docs/containers.md."""
    text = re.split(r"^#+ ", (PROJECT / "docs" / "containers.md").read_text(), flags=re.MULTILINE)
    (section,) = [section for section in text if section.startswith(f"{heading}\n")]
    return re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def pods(path):
    """Return the pods of all tasks, as the controllers make them; a pod's name is the one that leads to it."""
    return [pod for document in read(path) for pod in KINDS.get(document["kind"], _none)(document)]


def configuration(path):
    """Return the files that a ConfigMap gives to the containers, by name."""
    return {
        name: text
        for document in read(path)
        if document.get("kind") == "ConfigMap"
        for name, text in document["data"].items()
    }


def arguments(pod):
    """Return the arguments of a pod's container."""
    (container,) = pod["spec"]["containers"]
    return container["args"]


def _none(_):
    return []


def _of_job(job, labels=None):
    """Return the pods of an Indexed Job, as the Job controller and the kubelet make them."""
    template, count = job["spec"]["template"], job["spec"]["completions"]
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["parallelism"] == count, "all tasks have to run at once"
    for index in range(count):
        host = f"{job['metadata']['name']}-{index}.{template['spec']['subdomain']}"
        yield _of_template(template, host, labels or {}, {"JOB_COMPLETION_INDEX": str(index)})


def _of_jobset(jobset):
    """Return the pods of a JobSet, as its controller makes them: Jobs within a subdomain."""
    name = jobset["metadata"]["name"]
    for replicated_job in jobset["spec"]["replicatedJobs"]:
        job = json.loads(json.dumps(replicated_job["template"]))
        job["metadata"] = {"name": f"{name}-{replicated_job['name']}-0"}
        job["spec"]["template"]["spec"]["subdomain"] = name
        yield from _of_job(job, {"jobset.sigs.k8s.io/replicatedjob-name": replicated_job["name"]})


def _of_tfjob(tfjob):
    """Return the pods of a TFJob, as the operator makes them."""
    name, specs = tfjob["metadata"]["name"], tfjob["spec"]["tfReplicaSpecs"]
    hosts = {job: [f"{name}-{job.lower()}-{i}.default.svc" for i in range(specs[job]["replicas"])] for job in specs}
    cluster = {job.lower(): [f"{host}:2222" for host in hosts[job]] for job in specs}
    for job, spec in specs.items():
        assert spec["template"]["spec"]["containers"][0]["name"] == "tensorflow", "no other gets TF_CONFIG"
        for index, host in enumerate(hosts[job]):
            config = {"cluster": cluster, "task": {"type": job.lower(), "index": index}, "environment": "cloud"}
            pod = _of_template(spec["template"], host, {}, {"TF_CONFIG": json.dumps(config)})
            pod["spec"]["restartPolicy"] = spec["restartPolicy"]
            yield pod


KINDS = {"Job": _of_job, "JobSet": _of_jobset, "TFJob": _of_tfjob}


def _of_template(template, host, labels, environment):
    """Return a pod, with these further labels and variables, which are filled into its arguments."""
    pod = json.loads(json.dumps(template))
    pod |= {"apiVersion": "v1", "kind": "Pod"}
    pod["metadata"] |= {"name": host, "labels": {**template["metadata"]["labels"], **labels}}
    (container,) = pod["spec"]["containers"]
    values = dict(environment)
    for variable in container.get("env", []):
        label = re.fullmatch(r"metadata\.labels\['(.*)'\]", variable["valueFrom"]["fieldRef"]["fieldPath"])[1]
        values[variable["name"]] = pod["metadata"]["labels"][label]
    container["env"] = [{"name": name, "value": value} for name, value in values.items()]
    container["args"] = [re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], text) for text in container["args"]]
    return pod


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
