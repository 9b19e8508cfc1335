"""Whatever the input is: a right reading, or one error that says what is wrong. Four thousand inputs, always those."""

import contextlib
import gzip
import json
import struct

import numpy as np
import pytest
from absl import flags
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import distributed
import mnist_input
import model
from runtime.cluster.discovery import discover
from runtime.cluster.task import Task, host_of, port_of
from runtime.process.errors import UnusableError

many = settings(
    max_examples=1000,
    deadline=None,
    derandomize=True,  # a test that fails sometimes helps nobody
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

# Headers of IDX files that are right in most parts, and contents of about the size that they promise.
numbers = st.one_of(st.integers(0, 4), st.sampled_from([28, 2**31, 2**32 - 1]))
magics = st.one_of(st.sampled_from([mnist_input.IMAGES_MAGIC, mnist_input.LABELS_MAGIC]), st.integers(0, 2**32 - 1))
headers = st.one_of(
    st.tuples(magics, numbers),
    st.tuples(magics, numbers, st.just(28), st.just(28)),
    st.lists(numbers, max_size=5).map(tuple),
)
contents = st.tuples(headers, st.integers(0, 3), st.sampled_from([0, -1, 1]), st.integers(0, 12)).map(
    lambda parts: (
        struct.pack(f">{len(parts[0])}I", *parts[0])
        + bytes([parts[3]]) * max(0, parts[1] * (784 if len(parts[0]) == 4 else 1) + parts[2])
    )
)
files = st.one_of(contents.map(gzip.compress), st.binary(max_size=60), contents)


@pytest.mark.slow
@many
@given(images=files, labels=files)
def test_any_file_is_read_right_or_refused(tmp_path, images, labels):
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(images)
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(labels)
    try:
        examples = mnist_input.load(str(tmp_path), "train")
    except mnist_input.DataError:
        return
    content = gzip.decompress(images)
    np.testing.assert_array_equal(examples.images.reshape(-1), np.frombuffer(content[16:], np.uint8))
    assert examples.labels.tolist() == list(gzip.decompress(labels)[8:])
    assert len(examples.images) == len(examples.labels) > 0
    assert max(examples.labels) < 10


ports = st.one_of(st.integers(-1, 70000).map(str), st.text(max_size=3))
addresses = st.one_of(
    st.tuples(st.sampled_from(["a", "10.0.0.1", "[::1]", "", "a..b", "ü", "x" * 70]), ports).map(":".join),
    st.text(max_size=8),
)


@pytest.mark.slow
@many
@given(
    job_name=st.sampled_from(["ps", "worker", "chief"]), index=st.integers(-1, 3), hosts=st.lists(addresses, max_size=4)
)
def test_any_host_list_makes_a_task_or_is_refused(job_name, index, hosts):
    try:
        task = Task(job_name, index, tuple(hosts[:1]), tuple(hosts[1:]))
    except UnusableError:
        return
    assert task.address in hosts
    assert 0 < port_of(task.address) < 65536
    assert host_of(task.address)


anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), addresses),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)
jobs = st.one_of(st.lists(addresses, max_size=2), anything)
configs = st.one_of(
    anything,
    st.fixed_dictionaries(
        {"cluster": st.one_of(st.fixed_dictionaries({"ps": jobs, "worker": jobs}), anything)},
        optional={"task": st.one_of(st.fixed_dictionaries({"type": anything, "index": anything}), anything)},
    ),
)


@pytest.mark.slow
@many
@given(text=st.one_of(configs.map(json.dumps), st.text(max_size=30)))
def test_any_tf_config_makes_a_task_or_is_refused(text):
    try:
        discovery = discover({"TF_CONFIG": text})
    except UnusableError:
        return
    if discovery:
        task = discovery.task
        assert task.address in json.loads(text)["cluster"][task.job_name]


MODULES = (distributed.__name__, model.__name__)
names = st.sampled_from(
    sorted(flag.name for module in MODULES for flag in distributed.FLAGS.flags_by_module_dict()[module])
)
values = st.one_of(
    st.text(max_size=6), st.integers().map(str), st.floats().map(str), st.sampled_from(["", "true", "1:2"])
)


@many
@given(arguments=st.lists(st.tuples(names, values).map("--{0[0]}={0[1]}".format), max_size=3))
def test_any_flags_are_parsed_or_refused(set_flags, arguments):
    with contextlib.suppress(flags.Error):
        set_flags(*arguments)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"cluster": {"ps": [1]', "\ud800", "[]", "7"])
def test_a_text_that_breaks_parsers_is_refused(text):
    with pytest.raises(UnusableError):
        discover({"TF_CONFIG": text})
