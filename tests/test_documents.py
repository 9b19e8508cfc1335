"""Sections of the documents that are written from the code say what the code says."""

import ast
import collections
import itertools
import os
import re
import shutil
import subprocess

import pytest

from benchmarks import report
from benchmarks.testbed.processes import PROJECT
from examples.digits import predict
from runtime.cluster import signals, status
from runtime.data import pipeline, records, users
from runtime.launch import supervisor
from runtime.process import end
from runtime.records import events
from runtime.session import attendance, stopping
from runtime.updates.lost_workers import LOOK_SECS
from runtime.updates.mode import EXCHANGES_PER_RUN
from tests import documents, forked


@pytest.mark.slow
@pytest.mark.parametrize(("document", "section"), documents.SECTIONS)
def test_what_is_written_from_the_code_is_up_to_date(tmp_path, document, section):
    renewed = shutil.copy(PROJECT / document, tmp_path)
    report.write_section(tmp_path / renewed, section, documents.SECTIONS[document, section]())
    stale = f"{document} is stale: run .venv/bin/python tests/documents.py"
    assert (tmp_path / renewed).read_text() == (PROJECT / document).read_text(), stale


def test_each_promise_has_a_name_of_its_own_and_a_test():
    promises = [*itertools.chain(*documents.find_promises().values())]
    tests = documents.find_tests_of_promises()
    assert [name for name, count in collections.Counter(promises).items() if count > 1] == []
    assert [name for name in promises if name not in tests] == [], "mark the test that fails if it is broken"
    assert tests.keys() - {*promises} == set(), "no page makes this promise"


@pytest.mark.parametrize("page", documents.find_promises())
def test_the_names_of_promises_are_no_part_of_what_is_shown(page):
    lines = [line for line in (PROJECT / page).read_text().splitlines() if "<!-- promise" in line]
    assert [line for line in lines if re.match(r"\s*(?:\* +)?<!--", line)] == [], "it would end the paragraph"
    assert [line for line in lines if line.startswith("|") and not line.endswith("|")] == [], "it stands in a cell"


IN_WORDS = {1: "a second", 2: "two", 7: "seven", 8: "eight", 60: "a minute"}


@pytest.mark.promises(
    "synchronous-wait",
    "last-wait",
    "stop-in-step",
    "stop-timeout",
    "second-signal",
    "folder-of-ps",
    "chief-has-ended",
    "dynamic-pieces",
    "windows",
    "compared-data",
    "perhaps",
)
@pytest.mark.parametrize(
    ("promise", "words"),
    [
        (
            "synchronous-wait",
            f"wait for it for {IN_WORDS[2 * LOOK_SECS + status.ANSWER_SECS + status.ALIVE_SECS]} seconds",
        ),
        ("synchronous-wait", f"seconds, not {IN_WORDS[2 * LOOK_SECS]}"),
        ("last-wait", f"the chief waits {attendance.GRACE_SECS:g} s for a worker that is unresponsive"),
        ("stop-in-step", f"no more than {IN_WORDS[stopping.STEP_SECS]}"),
        ("stop-timeout", f"{end.STOP_SECS:g} s by default"),
        ("second-signal", f"{IN_WORDS[signals.ECHO_SECS]} or more after the first"),
        ("folder-of-ps", f"waits {IN_WORDS[events.MAX_MEMORY_SECS]} (NFS can be slow)"),
        ("chief-has-ended", f"{supervisor.LEAVE_SECS:g} s after the chief has ended"),
        ("dynamic-pieces", f"{IN_WORDS[EXCHANGES_PER_RUN]} times"),
        ("dynamic-pieces", f"several if there are more than {pipeline.MAX_PIECES}"),
        ("windows", f"reads {records.NUM_OPEN} files in turn, {records.BLOCK_SIZE} records each time"),
        ("windows", f"{pipeline.MAX_WINDOW // 1000} {pipeline.MAX_WINDOW % 1000} examples, or fewer"),
        ("windows", f"more than {pipeline.WINDOW_BYTES >> 20} MB"),
        ("compared-data", f"first {users.NUM_SAMPLED} examples"),
        ("perhaps", f"less than {100 * predict.MIN_PROBABILITY:g} % sure"),
    ],
)
def test_the_numbers_of_a_promise_are_those_of_the_program(promise, words):
    comment = f"<!-- promise: {promise} -->"
    (text,) = (text for page in documents.find_promises() if comment in (text := (PROJECT / page).read_text()))
    assert words in " ".join(documents.PROMISE.sub("", text.partition(comment)[0]).split())[-800:]


@pytest.mark.parametrize("script", ["model.py", "mnist_input.py"])
def test_the_model_and_its_input_import_nothing_of_ours(script):
    body = ast.parse((PROJECT / script).read_text()).body
    names = [ast.unparse(node) for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [name for name in names if "runtime" in name] == []


def test_the_script_is_as_short_as_contributing_says():
    script = (PROJECT / "distributed.py").read_text()
    assert len(script.splitlines()) <= 150
    assert len(re.findall(r"^from runtime\b", script, re.MULTILINE)) <= 10
    functions = [node for node in ast.walk(ast.parse(script)) if isinstance(node, ast.FunctionDef)]
    assert max(node.end_lineno - node.lineno + 1 for node in functions) <= 40


def test_the_script_has_the_calls_of_the_tutorials_in_the_order_in_which_they_happen():
    calls = ["ClusterSpec(", "Server(", "server.join()", "replica_device_setter(", "MonitoredTrainingSession("]
    script = (PROJECT / "distributed.py").read_text()
    assert re.findall("|".join(map(re.escape, [*calls, "session.run("])), script) == [*calls, "session.run("]


@pytest.mark.parametrize("page", ["docs/tutorial.md", "docs/tutorial.zh-CN.md"])
def test_the_tutorial_shows_lines_of_the_classic_script_in_their_order(page):
    script = (PROJECT / "examples" / "classic" / "mnist_replica.py").read_text().splitlines()
    (listing,) = re.findall(r"```python\n(.*?)```", (PROJECT / page).read_text(), re.DOTALL)
    lines = [re.sub(r" +# \d$", "", line) for line in listing.splitlines()]
    found = [next(number for number, text in enumerate(script) if text.startswith(f"    {line}")) for line in lines]
    assert (len(lines), found) == (12, sorted(found))


V1 = "import tensorflow.compat.v1 as tf; "
GRAPH = f"{V1}tf.disable_v2_behavior(); "
KERAS_3 = "import os; os.environ['TF_USE_LEGACY_KERAS'] = '0'; "
ERRORS = {  # of old scripts, that docs/porting.md quotes: what raises them
    "SyntaxError: Missing parentheses in call to 'print'": "print 1",
    "NameError: name 'xrange' is not defined": "xrange(3)",
    "'dict' object has no attribute 'iteritems'": "{}.iteritems()",
    "Dimension value must be integer or None or have an __index__ method, got value '5.0'": (
        f"{GRAPH}tf.get_variable('w', [10 / 2, 3])"
    ),
    "module 'tensorflow' has no attribute 'placeholder'": "import tensorflow as tf; tf.placeholder(tf.float32)",
    "module 'tensorflow._api.v2.train' has no attribute 'AdamOptimizer'": (
        "import tensorflow as tf; tf.train.AdamOptimizer()"
    ),
    "tf.placeholder() is not compatible with eager execution": f"{V1}tf.placeholder(tf.float32)",
    "The Session graph is empty": f"{V1}tf.Session().run(tf.constant(1))",
    "No module named 'tensorflow.examples'": "from tensorflow.examples.tutorials.mnist import input_data",
    "No module named 'tensorflow.contrib'": "import tensorflow.contrib.slim",
    "module 'tensorflow.compat.v1' has no attribute 'contrib'": f"{GRAPH}tf.contrib.layers",
    "module 'tensorflow.compat.v1' has no attribute 'estimator'": f"{GRAPH}tf.estimator.Estimator",
    "module 'tensorflow.compat.v1' has no attribute 'mul'": f"{GRAPH}tf.mul(1, 2)",
    "is not available with Keras 3": f"{KERAS_3}{GRAPH}tf.layers.dense(tf.zeros([1, 2]), 3)",
    "module 'numpy' has no attribute 'float'": "import numpy; numpy.float(1)",
}


@pytest.mark.parametrize("error", ERRORS)
def test_an_old_script_ends_with_the_error_that_the_page_explains(error):
    page = (PROJECT / "docs" / "porting.md").read_text()
    table = page.partition("## Errors, and what cures them")[2].partition("\n## ")[0]
    assert error in table
    assert error in forked.run("-c", ERRORS[error]).stderr


def test_a_clone_has_what_the_readme_runs(tmp_path):
    subprocess.run(["git", "clone", "--quiet", PROJECT, tmp_path / "distributed-mnist"], check=True)
    assert os.access(tmp_path / "distributed-mnist" / "run_local_cluster.sh", os.X_OK)


def test_the_command_that_counts_lines_works():
    (command,) = re.findall(r"^git ls-files .*", (PROJECT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    done = subprocess.run(["bash", "-c", command], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 5000
