"""The SavedModel of a run."""

import json
import os
import subprocess
import sys
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import saved_model_pb2

import distributed
from benchmarks.testbed.processes import PROJECT
from runtime.cluster.task import Task
from runtime.model.files import Files
from runtime.model.function import Model
from runtime.process.errors import UnsavedError, UnusableError
from runtime.saving.export import check_export_dir, export
from runtime.saving.result import keep_trying
from tests import forked
from tests.full_disk import NEEDS_PRIVATE_MOUNTS, full_disk

CHIEF, WORKER_1 = (Task("worker", index, ("a:1",), ("b:2", "c:3")) for index in range(2))


SIGNATURE = [tf.TensorSpec([784], tf.uint8), tf.TensorSpec([], tf.uint8)]


@pytest.fixture
def model(set_flags):
    set_flags("--hidden_units=1")
    return Model(distributed.FILES, SIGNATURE, 0, 0, lambda own: True, is_stepwise=True)


@pytest.fixture
def values():
    """Values of a model whose logits are 10 times the mean of the image, for class 3, and 1, for class 0."""
    weights = np.zeros((1, 10), np.float32)
    weights[0, 3] = 10
    biases = np.zeros(10, np.float32)
    biases[0] = 1
    mean = np.full((784, 1), 1 / 784, np.float32)
    hidden = {"mlp/hidden/weights": mean, "mlp/hidden/biases": np.zeros(1, np.float32)}
    return {**hidden, "mlp/logits/weights": weights, "mlp/logits/biases": biases}


@pytest.mark.promises("signature")
def test_what_is_exported_classifies_images_and_knows_nothing_of_the_cluster(tmp_path, model, values):
    export(str(tmp_path), model, lambda: values)
    saved = saved_model_pb2.SavedModel.FromString((tmp_path / "1" / "saved_model.pb").read_bytes())
    (meta_graph,) = saved.meta_graphs
    assert {node.device for node in meta_graph.graph_def.node} == {""}
    with tf.Graph().as_default(), tf.Session() as session:
        tf.saved_model.load(session, ["serve"], str(tmp_path / "1"))
        signature = meta_graph.signature_def["serving_default"]
        assert signature.inputs["images"].dtype == tf.uint8.as_datatype_enum
        outputs = {name: info.name for name, info in signature.outputs.items()}
        images = np.stack([np.full((28, 28), pixel, np.uint8) for pixel in (0, 255)])
        found = session.run(outputs, {signature.inputs["images"].name: images})
    assert found["classes"].tolist() == [0, 3]
    others = np.e + np.exp(10) + 8
    assert found["probabilities"][1, [0, 3]] == pytest.approx([np.e / others, np.exp(10) / others], rel=1e-5)


def test_an_exported_model_names_the_class_of_each_example(tmp_path, model, values, monkeypatch):
    """In an output, with the first dimension of a batch, and beside it in an asset."""
    monkeypatch.delattr(model._files.model, "build_predictions")  # whose classes may have other numbers
    names = [f"class {number}" for number in range(9)] + [os.fsdecode(b"\xe9t\xe9")]
    model.class_names = names
    export(str(tmp_path), model, lambda: values)
    export(str(tmp_path), model, lambda: values)  # it is the newest already
    assert [os.fsdecode(line) for line in (tmp_path / "1/assets/class_names.txt").read_bytes().splitlines()] == names
    with tf.Graph().as_default(), tf.Session() as session:
        signature = tf.saved_model.load(session, ["serve"], str(tmp_path / "1")).signature_def["serving_default"]
        images = np.stack([np.full((28, 28), pixel, np.uint8) for pixel in (0, 255)])
        found = session.run(signature.outputs["names"].name, {signature.inputs["images"].name: images})
    assert found.tolist() == [b"class 0", b"class 3"]
    model.class_names = names[::-1]
    export(str(tmp_path), model, lambda: values)
    assert sorted(os.listdir(tmp_path)) == ["1", "2"], "other names are another model"


def make_model_of_words(build_logits):
    files = Files(
        types.SimpleNamespace(build_logits=build_logits, build_loss=lambda logits, labels: tf.reduce_mean(logits)),
        types.SimpleNamespace(
            INPUT=tf.TensorSpec([], tf.string, "words"),
            decode=lambda words: (words, None),
            to_inputs=lambda words: words,
        ),
    )
    return Model(files, [tf.TensorSpec([], tf.string)], 0, 0, lambda own: True, is_stepwise=True)


def run_on_words(folder, words):
    """Return what an exported model makes of words, as the loaders of both versions of TensorFlow have it."""
    script = "import sys, tensorflow as tf; serve = tf.saved_model.load(sys.argv[1]).signatures['serving_default']"
    script += "; print(serve(words=tf.constant(sys.argv[2:]))['outputs'].numpy().tolist())"
    newer = forked.run("-c", script, str(folder), *words)
    with tf.Graph().as_default(), tf.Session() as session:
        signature = tf.saved_model.load(session, ["serve"], str(folder)).signature_def["serving_default"]
        found = session.run(signature.outputs["outputs"].name, {signature.inputs["words"].name: words}).tolist()
    assert json.loads(newer.stdout or "null") == found, newer.stderr
    return found


@pytest.mark.slow
def test_an_exported_model_has_filled_its_lookup_tables(tmp_path):
    def build_logits(words, is_training):
        numbers = tf.lookup.KeyValueTensorInitializer(tf.constant(["a", "b"]), tf.constant([1.0, 2.0]))
        return tf.lookup.StaticHashTable(numbers, 0.0).lookup(words) * tf.get_variable("scale", [])

    export(str(tmp_path), make_model_of_words(build_logits), lambda: {"scale": np.float32(10)})
    assert run_on_words(tmp_path / "1", ["b", "c", "a"]) == [20.0, 0.0, 10.0]


def test_an_exported_model_has_the_files_of_its_lookup_tables(tmp_path):
    (tmp_path / "export").mkdir()
    vocabulary = tmp_path / "words.txt"

    def build_logits(words, is_training):
        table = tf.lookup.StaticVocabularyTable(
            tf.lookup.TextFileInitializer(
                str(vocabulary),
                tf.string,
                tf.lookup.TextFileIndex.WHOLE_LINE,
                tf.int64,
                tf.lookup.TextFileIndex.LINE_NUMBER,
            ),
            num_oov_buckets=1,
        )
        return tf.cast(table.lookup(words), tf.float32) * tf.get_variable("scale", [])

    for words in ("a\nb\n", "b\na\n", "b\na\n"):
        vocabulary.write_text(words)
        export(str(tmp_path / "export"), make_model_of_words(build_logits), lambda: {"scale": np.float32(10)})
    vocabulary.unlink()  # as on the machine that serves the model
    assert run_on_words(tmp_path / "export" / "1", ["b", "c", "a"]) == [10.0, 20.0, 0.0]
    assert run_on_words(tmp_path / "export" / "2", ["b", "c", "a"]) == [0.0, 20.0, 10.0], "another model"
    assert sorted(os.listdir(tmp_path / "export")) == ["1", "2"]


def test_an_exported_model_has_filled_the_lookup_tables_of_its_feature_columns(tmp_path):
    def build_logits(words, is_training):
        column = tf.feature_column.categorical_column_with_vocabulary_list("words", ["a", "b"], num_oov_buckets=1)
        features = tf.feature_column.input_layer({"words": words}, [tf.feature_column.indicator_column(column)])
        return tf.reduce_sum(features * [1.0, 2.0, 3.0], axis=1) * tf.get_variable("scale", [])

    export(str(tmp_path), make_model_of_words(build_logits), lambda: {"scale": np.float32(10)})
    assert run_on_words(tmp_path / "1", ["b", "c", "a"]) == [20.0, 30.0, 10.0]


def test_an_exported_model_has_filled_the_lookup_tables_that_lead_to_rows(tmp_path):
    def build_logits(words, is_training):
        numbers = tf.lookup.KeyValueTensorInitializer(tf.constant(["a", "b"]), tf.constant([1, 2]))
        ids = tf.lookup.StaticHashTable(numbers, 0).lookup(words)
        return tf.squeeze(tf.nn.embedding_lookup(tf.get_variable("embeddings", [3, 1]), ids), 1)

    model = make_model_of_words(build_logits)
    assert model.tables == ["embeddings"]
    export(str(tmp_path), model, lambda: {"embeddings": np.float32([[30], [10], [20]])})
    assert run_on_words(tmp_path / "1", ["b", "c", "a"]) == [20.0, 30.0, 10.0]


def test_an_exported_model_computes_with_the_global_step_that_was_tested(tmp_path):
    def build_logits(words, is_training):
        step = tf.cast(tf.train.get_global_step(), tf.float32)
        return tf.cast(tf.strings.length(words), tf.float32) * step * tf.get_variable("scale", [])

    export(str(tmp_path), make_model_of_words(build_logits), lambda: {"scale": np.float32(10), "global_step": 3})
    assert run_on_words(tmp_path / "1", ["b", "to"]) == [30.0, 60.0]


def test_a_model_that_calls_python_is_not_exported(tmp_path):
    def build_logits(words, is_training):
        lengths = tf.ensure_shape(tf.numpy_function(lambda found: np.float32(found.size), [words], tf.float32), [])
        return tf.zeros(tf.shape(words)) + lengths * tf.get_variable("scale", [])

    with pytest.raises(UnusableError, match=r"a Python function is called here, but an exported model cannot run it"):
        export(str(tmp_path), make_model_of_words(build_logits), lambda: {"scale": np.float32(10)})
    assert not [*tmp_path.iterdir()]


@pytest.mark.promises("next-export")
def test_each_export_is_the_next_version_and_replaces_none(tmp_path, model, values):
    (tmp_path / "7").mkdir()
    (tmp_path / "notes").write_text("not a version")
    for last_bias in (0.0, 1.0):
        values["mlp/logits/biases"][-1] = last_bias
        export(str(tmp_path), model, lambda: values)
    assert sorted(os.listdir(tmp_path)) == ["7", "8", "9", "notes"]


def test_a_model_that_is_the_newest_is_not_exported_again(tmp_path, model, values, caplog):
    caplog.set_level("INFO")
    others = {**values, "mlp/hidden/biases": np.ones(1, np.float32)}
    for exported in (others, values, values):
        ordered = {name: exported[name] for name in sorted(values)}
        export(str(tmp_path), model, ordered.copy)
        values = dict(reversed(values.items()))  # the order of the names says nothing
    assert sorted(os.listdir(tmp_path)) == ["1", "2"]
    assert f"{tmp_path}/2 already has this model" in caplog.text
    export(str(tmp_path), model, lambda: others)  # who goes back to it wants it to be served
    assert sorted(os.listdir(tmp_path)) == ["1", "2", "3"]


def test_the_same_values_with_another_graph_are_another_model(tmp_path, model, values, monkeypatch):
    export(str(tmp_path), model, lambda: values)
    logits = model.test.logits
    with model.test.graph.as_default():
        corrected = {**model.test.predictions, "twice": 2 * logits}
    monkeypatch.setattr(model, "test", model.test._replace(predictions=corrected))
    export(str(tmp_path), model, lambda: values)
    assert sorted(os.listdir(tmp_path)) == ["1", "2"]


def test_a_number_that_another_job_takes_meanwhile_is_left_to_it(tmp_path, model, values, monkeypatch):
    rename = os.rename

    def rename_too_late(source, target):
        monkeypatch.setattr(os, "rename", rename)
        os.makedirs(os.path.join(target, "variables"))
        rename(source, target)

    monkeypatch.setattr(os, "rename", rename_too_late)
    with pytest.raises(UnsavedError, match="Directory not empty"):
        export(str(tmp_path), model, lambda: values)
    export(str(tmp_path), model, lambda: values)  # as the chief tries again
    assert sorted(os.listdir(tmp_path)) == ["1", "2"]
    assert os.listdir(tmp_path / "1") == ["variables"]


@pytest.mark.slow
@NEEDS_PRIVATE_MOUNTS
@pytest.mark.parametrize("room", ["1m", "9m,nr_inodes=4", "9m,nr_inodes=6"])
def test_an_export_that_fails_says_so_and_leaves_nothing(tmp_path, room):
    folder = tmp_path / "export"
    folder.mkdir()
    script = (
        "import os, sys, numpy as np, distributed\n"
        "from runtime.model.function import Model\n"
        "from runtime.saving import export\n"
        "from tests.test_export import SIGNATURE\n"
        "distributed.FLAGS(['', '--hidden_units=1000'])\n"
        "shapes = {'mlp/hidden/weights': (784, 1000), 'mlp/hidden/biases': 1000}\n"
        "shapes |= {'mlp/logits/weights': (1000, 10), 'mlp/logits/biases': 10}\n"
        "distributed.tf.disable_eager_execution()\n"
        "values = {name: np.ones(shapes[name]) for name in shapes}\n"
        "model = Model(distributed.FILES, SIGNATURE, 0, 0, bool, True)\n"
        "for attempt in range(2):\n"
        "    try:\n"
        "        export.export(sys.argv[1], model, lambda: values)\n"
        "    except export.UnsavedError as error:\n"
        "        print(error, os.listdir(sys.argv[1]))\n"
    )
    command = [*full_disk(folder, room), sys.executable, "-c", script, str(folder)]
    process = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=300)
    first, second = process.stdout.splitlines()
    assert first.startswith(f"the model could not be exported to {folder}: "), process.stderr
    assert first.endswith("No space left on device []")
    assert second == first  # a wait for room repeats what is new, and this is not


@pytest.mark.promises("export-folder")
def test_only_the_chief_needs_the_folder(tmp_path):
    folder = tmp_path / "new" / "export"
    check_export_dir(WORKER_1, str(folder))
    assert not folder.exists()
    check_export_dir(CHIEF, str(folder))
    assert os.listdir(folder) == []
    for unusable in (tmp_path / "file" / "export", "gs://bucket/export"):
        (tmp_path / "file").write_text("")
        with pytest.raises(UnusableError, match="--export_dir"):
            check_export_dir(CHIEF, str(unusable))


@pytest.mark.slow
@NEEDS_PRIVATE_MOUNTS
def test_a_full_disk_at_the_start_is_said_and_ends_nothing(tmp_path):
    script = (
        "import sys\n"
        "from runtime.cluster.task import Task\n"
        "from runtime.saving import export\n"
        "export.check_export_dir(Task('worker', 0, ('a:1',), ('b:2',)), sys.argv[1])\n"
    )
    command = [*full_disk(tmp_path, "64k,nr_inodes=1"), sys.executable, "-c", script, str(tmp_path)]
    process = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    line = f"worker 0: --export_dir {tmp_path} cannot be written: No space left on device; free disk space before"
    assert line in process.stderr


def test_an_export_whose_graph_fails_is_not_tried_again_and_the_result_is_written_all_the_same(tmp_path, model, values):
    attempts, taken = [], []

    def build_serving(parameters):
        attempts.append(1)
        tf.get_variable("never_initialised", [])
        return model.build_serving(parameters)

    broken = types.SimpleNamespace(test=model.test, build_serving=build_serving)
    steps = [lambda: export(str(tmp_path), broken, lambda: values), lambda: taken.append("result")]
    with pytest.raises(UnusableError, match=r"^the model could not be exported to .*never_initialised.*correct model"):
        keep_trying(CHIEF, steps, timeout_secs=300)
    assert (attempts, taken, os.listdir(tmp_path)) == ([1], ["result"], [])


def test_a_folder_that_has_gone_by_the_end_is_said(tmp_path, model, values):
    with pytest.raises(UnsavedError, match=r"could not be exported to .*: No such file or directory"):
        export(str(tmp_path / "gone"), model, lambda: values)
