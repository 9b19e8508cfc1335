"""Every dialect of TF_CONFIG that cluster managers speak."""

import json

import pytest

from runtime.cluster.discovery import discover
from runtime.cluster.task import Task
from runtime.process.errors import UnusableError

PS = ["p0:2222", "p1:2222"]
WORKERS = ["w0:2222", "w1:2222"]


def task_of(cluster, job, index, name="TF_CONFIG", **others):
    config = {"cluster": cluster, "task": {"type": job, "index": index}, **others}
    return discover({name: json.dumps(config)}).task


def worker(index, *hosts):
    return Task("worker", index, tuple(PS), hosts)


@pytest.mark.parametrize(
    ("cluster", "job", "index", "expected"),
    [
        ({"ps": PS, "worker": WORKERS}, "worker", 1, worker(1, *WORKERS)),
        ({"ps": PS, "worker": WORKERS}, "worker", "1", worker(1, *WORKERS)),
        ({"ps": PS, "worker": WORKERS}, "ps", 1, Task("ps", 1, tuple(PS), tuple(WORKERS))),
        ({"chief": ["c:2222"], "ps": PS, "worker": WORKERS}, "chief", 0, worker(0, "c:2222", *WORKERS)),
        ({"chief": ["c:2222"], "ps": PS, "worker": WORKERS}, "worker", 1, worker(2, "c:2222", *WORKERS)),
        ({"master": ["m:2222"], "ps": PS, "worker": WORKERS}, "worker", 0, worker(1, "m:2222", *WORKERS)),
        ({"master": ["m:2222"], "ps": PS}, "master", 0, worker(0, "m:2222")),
        ({"chief": ["c:2222"], "ps": PS, "evaluator": ["e:2222"]}, "chief", 0, worker(0, "c:2222")),
    ],
)
def test_the_jobs_become_ps_tasks_and_workers(cluster, job, index, expected):
    assert task_of(cluster, job, index) == expected


def test_vertex_numbers_its_worker_pools():
    cluster = {"workerpool0": ["c:2222"], "workerpool1": WORKERS, "workerpool2": PS, "workerpool3": ["e:2222"]}
    assert task_of(cluster, "workerpool1", 0, name="CLUSTER_SPEC") == worker(1, "c:2222", *WORKERS)
    assert task_of(cluster, "workerpool2", 1, name="CLUSTER_SPEC").job_name == "ps"


def test_tf_config_wins_over_cluster_spec():
    config = json.dumps({"cluster": {"ps": PS, "worker": WORKERS}, "task": {"type": "ps", "index": 0}})
    assert discover({"TF_CONFIG": config, "CLUSTER_SPEC": "not read"}).task.job_name == "ps"


def test_the_only_task_of_a_job_needs_no_index():
    config = {"cluster": {"chief": ["c:1"], "ps": PS}, "task": {"type": "chief"}}
    assert discover({"TF_CONFIG": json.dumps(config)}).task == worker(0, "c:1")


@pytest.mark.parametrize("environment", [{}, {"TF_CONFIG": ""}, {"TF_CONFIG": "{}"}, {"TF_CONFIG": '{"task": {}}'}])
def test_without_a_cluster_nothing_is_given(environment):
    assert discover(environment) is None


def test_the_model_dir_is_told_and_unknown_keys_are_ignored():
    config = {"cluster": {"ps": PS, "worker": WORKERS}, "task": {"type": "ps", "index": 0}}
    config |= {"model_dir": "/m", "environment": "cloud", "job": {}, "rpc_layer": "grpc", "service": 1, "z": 2}
    assert discover({"TF_CONFIG": json.dumps(config)}).model_dir == "/m"


@pytest.mark.parametrize(
    ("cluster", "others", "message"),
    [
        ({"chief": ["a:1"], "master": ["b:1"], "ps": PS}, {}, "has both a chief and a master"),
        ({"chief": ["a:1", "b:1"], "ps": PS}, {}, '"chief": ["a:1", "b:1"], expected one address'),
        ({"worker": {"1": "a:1"}, "ps": PS}, {}, '"worker": {"1": "a:1"}, expected a list of all its addresses'),
        ({"worker": WORKERS}, {}, "has the jobs worker, but no ps"),
        ({"worker": WORKERS, "ps": PS, "tpu": []}, {}, "has the job 'tpu', expected one of chief, evaluator, master"),
        ({"worker": WORKERS, "ps": PS}, {"session_master": "grpc://x"}, "\"session_master\": 'grpc://x'"),
        ({"worker": WORKERS, "ps": PS}, {"rpc_layer": "grpc+verbs"}, "\"rpc_layer\": 'grpc+verbs', expected"),
    ],
)
def test_what_cannot_work_is_refused_and_quoted(cluster, others, message):
    with pytest.raises(UnusableError) as error:
        task_of(cluster, "worker", 0, **others)
    assert str(error.value).startswith("TF_CONFIG has ")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json", "TF_CONFIG is not of the form"),
        ('{"cluster": {"ps": ["a:1"], "worker": ["b:2"]}}', "TF_CONFIG is not of the form"),
        (
            '{"cluster": {"ps": ["a:1"], "worker": ["b:2", "c:3"]}, "task": {"type": "worker", "index": 2}}',
            "TF_CONFIG has the task worker 2, but only 2 workers",
        ),
        (
            '{"cluster": {"ps": ["a:1"], "chief": ["b:2"]}, "task": {"type": "worker", "index": 0}}',
            "TF_CONFIG has the task worker 0, but only 0 workers",
        ),
        (
            '{"cluster": {"ps": ["a:1"], "chief": ["b:2"], "worker": ["c:3"]}, "task": {"type": "worker", "index":-1}}',
            "the index -1, expected 0 or more",
        ),
        (
            '{"cluster": {"ps": ["a:1"], "chief": ["b:2"], "worker": ["c:3"]}, "task": {"type": "chief", "index": 1}}',
            "the chief 1, expected 0",
        ),
        (
            '{"cluster": {"ps": ["a:1"], "worker": ["b:2"]}, "task": {"type": "chief", "index": 0}}',
            "the job is 'chief', expected ps, worker or evaluator",
        ),
    ],
)
def test_an_unusable_text_is_refused(text, message):
    with pytest.raises(UnusableError, match=message):
        discover({"TF_CONFIG": text})
