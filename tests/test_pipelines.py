"""A pipeline of the user's own: what is taken, what the program does itself, and who reads what of it."""

import pathlib
import re
import threading
import time
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmarks.testbed.processes import poll_for
from runtime.cluster.task import Task
from runtime.data import pipeline
from runtime.data.sources import open_source
from runtime.model.files import Files
from runtime.model.function import Model
from runtime.model.trace import trace
from runtime.monitoring import classes
from runtime.monitoring.classes import ClassesHook
from runtime.process import threads
from runtime.process.errors import AwayError, UnusableError
from runtime.saving.export import export
from runtime.session import steps
from tests.models import have_tables
from tests.test_records import example, write

FEATURES = {"x": tf.io.FixedLenFeature([2], tf.float32), "y": tf.io.FixedLenFeature([], tf.int64)}
NUM_FILES, NUM_OF_FILE = 4, 25


@pytest.fixture
def data_dir(tmp_path):
    """Files of 25 examples; example n has the inputs n and 2 n, and the label n."""
    for number in range(NUM_FILES):
        numbers = range(number * NUM_OF_FILE, (number + 1) * NUM_OF_FILE)
        write(tmp_path / f"train-{number}.tfrecord", [example(x=[float(n), 2.0 * n], y=n) for n in numbers])
    write(tmp_path / "t10k-0.tfrecord", [example(x=[1.0, 2.0], y=1)] * 7)
    return str(tmp_path)


def reader_of(build_dataset, spec=None, **names):
    spec = spec or tf.TensorSpec([2], tf.float32, "x")
    return types.SimpleNamespace(build_dataset=build_dataset, INPUT=spec, **names)


def parse(serialized):
    parsed = tf.io.parse_single_example(serialized, FEATURES)
    return parsed["x"], parsed["y"]


def build_dataset(data_dir, split):
    files = tf.data.Dataset.list_files(f"{data_dir}/{split}-*", shuffle=False)
    return tf.data.TFRecordDataset(files, num_parallel_reads=32).map(parse)


def draw(source, num_runs, batch_size=5, num_batches=2, first_batch=0):
    """Return the columns of a worker's runs, one after the other, and their structure."""
    with tf.Graph().as_default(), tf.Session() as session:
        batches = source.draw(num_batches, batch_size, 0)
        session.run(tf.tables_initializer())
        batches.start(session, first_batch)
        columns = batches.columns(tf.reshape(batches.inputs, [-1]))
        drawn = [session.run(columns) for _ in range(num_runs)]
        return [np.concatenate(parts) for parts in zip(*drawn, strict=True)], batches.signature


def test_a_pipeline_is_looked_at_without_a_warning(data_dir, recwarn):
    open_source(data_dir, "train", reader_of(build_dataset))
    assert not [warning for warning in recwarn if "preserve tf.data options" in str(warning.message)]


@pytest.mark.promises("pipeline-refused")
def test_a_tutorial_pipeline_is_read_without_what_the_program_does_itself(data_dir):
    def build_whole(data_dir, split):  # list_files, TFRecordDataset, shuffle, repeat, map, batch: word for word
        files = tf.data.Dataset.list_files(f"{data_dir}/{split}-*")
        dataset = tf.data.TFRecordDataset(files, num_parallel_reads=32)
        dataset = dataset.shuffle(10000).repeat(10)
        dataset = dataset.map(lambda x: tf.io.parse_single_example(x, FEATURES))
        return dataset.batch(5)

    with pytest.raises(UnusableError) as error:
        open_source(data_dir, "train", reader_of(build_whole))
    refused = "batch(), repeat(), shuffle() (tf.data.Dataset.list_files() needs shuffle=False)"
    assert f"single examples, each once, in a fixed order: remove {refused}; " in str(error.value)
    assert str(error.value).endswith("; the program shards, shuffles, repeats, batches and prefetches")
    apart = reader_of(lambda *_: build_dataset(data_dir, "train").shuffle(9).repeat().batch(8).unbatch())
    with pytest.raises(UnusableError, match=r"remove repeat\(\), shuffle\(\) "):
        open_source(data_dir, "train", apart)
    options = tf.data.Options()
    options.deterministic = False
    for in_any_order in (
        lambda *_: build_dataset(data_dir, "train").map(lambda *parts: parts, 2, deterministic=False),
        lambda *_: build_dataset(data_dir, "train").with_options(options),
    ):
        with pytest.raises(UnusableError, match=r"in a fixed order: remove deterministic=False; "):
            open_source(data_dir, "train", reader_of(in_any_order))
    in_memory = reader_of(lambda *_: build_dataset(data_dir, "train").cache())
    (_, labels), _ = draw(open_source(data_dir, "train", in_memory).share(0, 1), 10)
    assert sorted(labels) == list(range(100))
    in_a_file = reader_of(lambda *_: build_dataset(data_dir, "train").cache(f"{data_dir}/cache"))
    with pytest.raises(UnusableError, match=r"remove cache\(FILE\) \(cache\(\) without a file is accepted\); "):
        open_source(data_dir, "train", in_a_file)
    fused = tf.data.experimental.shuffle_and_repeat(9)
    with pytest.raises(UnusableError, match=r"remove shuffle_and_repeat\(\); "):
        open_source(data_dir, "train", reader_of(lambda *_: build_dataset(data_dir, "train").apply(fused)))


@pytest.mark.slow
@pytest.mark.promises("undisturbed")
def test_each_worker_reads_each_example_of_its_own_once_in_each_epoch(data_dir):
    source = open_source(data_dir, "train", reader_of(build_dataset))
    for num_workers in (1, 2, 5):
        read, size = [], 100 // num_workers
        for index in range(num_workers):
            (inputs, labels), _ = draw(source.share(index, num_workers), 10)
            assert (inputs[:, 1] == 2 * labels).all()
            epochs = labels[: len(labels) // size * size].reshape(-1, size)
            assert {tuple(sorted(epoch)) for epoch in epochs} == {tuple(sorted(epochs[0]))}
            assert len({tuple(epoch) for epoch in epochs}) == len(epochs), "another order each time"
            read += sorted(epochs[0])
        assert sorted(read) == list(range(100))


@pytest.mark.promises("skipped")
def test_it_goes_on_where_it_was(data_dir):
    share = open_source(data_dir, "train", reader_of(build_dataset)).share(1, 3)
    (_, whole), _ = draw(share, 12)
    (_, rest), _ = draw(share, 3, first_batch=9)
    assert rest.tolist() == whole[45:75].tolist()


@pytest.mark.slow
def test_no_more_is_counted_than_is_left_out(tmp_path):
    def build_endless(data_dir, split):
        return tf.data.Dataset.range(2**62).map(lambda n: (tf.cast([n, n], tf.float32), n))

    source = open_source(str(tmp_path), "train", reader_of(build_endless))
    (_, whole), _ = draw(source.share(0, 1), 4)
    (_, rest), _ = draw(source.share(0, 1), 2, first_batch=4)
    assert rest.tolist() == whole[20:].tolist()


def test_what_one_of_two_functions_does_to_inputs_is_done_in_training_and_in_tests():
    model, parts = types.SimpleNamespace(), [np.array([3.0]), np.array([1])]
    files = Files(model, reader_of(build_dataset, to_inputs=lambda x: -x))
    assert (files.decode(parts), files.to_inputs(parts)) == ((-3.0, 1), -3.0)
    with pytest.raises(UnusableError, match=r"mnist_input\.py has decode\(\) but no to_inputs\(\): add it for tests"):
        Files(model, reader_of(build_dataset, decode=lambda x, y: (-x, y)))


@pytest.mark.promises("dynamic-refused")
def test_what_cannot_be_shared_is_refused(data_dir):
    source = open_source(data_dir, "t10k", reader_of(build_dataset))
    with pytest.raises(UnusableError, match="cannot be shared by 8 workers: there are too few; use fewer workers"):
        source.share(7, 8)
    with pytest.raises(
        UnusableError, match=r"--sharding=dynamic hands out files, .*: name them in list_files\(\), or give"
    ):
        source.share(0, 1, object())


def test_what_reads_no_files_is_shared_by_example(tmp_path):
    source = open_source(
        str(tmp_path),
        "train",
        reader_of(lambda *_: tf.data.Dataset.from_tensor_slices((np.ones([30, 2], np.float32), np.arange(30)))),
    )
    read = [draw(source.share(index, 3), 1)[0][1] for index in range(3)]
    assert sorted(np.concatenate(read)) == list(range(30))


@pytest.mark.promises("any-structure")
def test_inputs_and_labels_may_have_any_structure(data_dir):
    def build_structured(data_dir, split):
        def to_structure(x, y):
            return {"b": x[1], "a": x[:1]}, {"twice": 2 * y, "pair": (y, tf.as_string(y))}

        return build_dataset(data_dir, split).map(to_structure)

    spec = {"b": tf.TensorSpec([], tf.float32), "a": tf.TensorSpec([1], tf.float32)}
    reader = reader_of(build_structured, spec)
    source = open_source(data_dir, "train", reader)
    (a, b, number, text, twice), signature = draw(source.share(0, 1), 10)
    assert (b == 2 * a[:, 0]).all()
    assert (twice == 2 * number).all()
    assert [int(t) for t in text] == number.tolist()

    def build_logits(inputs, is_training):
        weight = tf.get_variable("weight", [], initializer=tf.ones_initializer())
        return weight * (inputs["b"] - inputs["a"][:, 0])

    def build_loss(logits, labels):
        return tf.reduce_mean(logits * tf.cast(labels["twice"] - labels["pair"][0], tf.float32))

    files = Files(types.SimpleNamespace(build_logits=build_logits, build_loss=build_loss), reader)
    model = Model(files, signature, 0, "0", have_tables, is_stepwise=True)
    with tf.Graph().as_default(), tf.Session() as session:
        columns = [tf.constant(column) for column in (a, b, number, text, twice)]
        loss, _ = model.build_gradients({"weight": tf.constant(1.0)}, columns)
        assert session.run(loss) == pytest.approx((np.arange(100.0) ** 2).mean())
    with tf.Graph().as_default():
        serving = model.build_serving({"weight": tf.constant(1.0)}).inputs
        assert {name: tensor.shape.as_list() for name, tensor in serving.items()} == {"a": [None, 1], "b": [None]}

    test = open_source(data_dir, "t10k", reader).load()
    assert [column.tolist() for column in test] == [[[1.0]] * 7, [2.0] * 7, [1] * 7, [b"1"] * 7, [2] * 7]
    wrong = reader_of(build_structured, {"c": tf.TensorSpec([], tf.float32), "a": tf.TensorSpec([1], tf.float32)})
    with pytest.raises(UnusableError, match=r"with \['a', 'c'\] as inputs, as INPUT says, found \['b', 'a'\]"):
        open_source(data_dir, "t10k", wrong).load()


@pytest.mark.promises("pipeline-padded")
def test_what_has_several_lengths_is_padded(tmp_path):
    def build_ragged(data_dir, split):
        numbers = tf.data.Dataset.range(1, 5)
        return numbers.map(lambda n: (tf.range(n), tf.sparse.from_dense(tf.range(n)), n))

    source = open_source(str(tmp_path), "train", reader_of(build_ragged, tf.TensorSpec([4], tf.int64, "x")))
    (padded, sparse, lengths), _ = draw(source.share(0, 1), 1, 4, 1)
    for row, ids, length in zip(padded.tolist(), sparse.tolist(), lengths, strict=True):
        assert row == [*range(length), *[0] * (4 - length)]
        assert len(ids) == 4
        assert ids[1:length] == list(range(1, length))


@pytest.mark.promises("pipeline-padded")
def test_a_run_may_have_examples_of_windows_that_are_padded_to_other_lengths(tmp_path, monkeypatch):
    def build_ragged(data_dir, split):
        return tf.data.Dataset.range(1, 61).map(lambda n: (tf.range(n), n))

    monkeypatch.setattr(pipeline, "MIN_WINDOW", 5)
    monkeypatch.setattr(pipeline, "WINDOW_BYTES", 1)
    source = open_source(str(tmp_path), "train", reader_of(build_ragged, tf.TensorSpec([60], tf.int64, "x")))
    (padded, lengths), _ = draw(source.share(0, 1), 1, 7, 4)
    for row, length in zip(padded.tolist(), lengths, strict=True):
        assert row == [*range(length), *[0] * (len(row) - length)]


@pytest.mark.promises("export-of-any-length")
def test_what_is_exported_takes_padded_inputs_of_any_length(tmp_path):
    def build_ids(data_dir, split):
        return tf.data.Dataset.range(1, 5).map(lambda n: (tf.range(n), n))

    def build_logits(ids, is_training):
        return tf.reduce_sum(tf.nn.embedding_lookup(tf.get_variable("weights", [8]), ids), axis=1)

    def build_loss(logits, labels):
        return tf.reduce_mean(tf.square(logits - tf.cast(labels, tf.float32)))

    reader = reader_of(build_ids, tf.TensorSpec([4], tf.int64, "ids"))
    files = Files(types.SimpleNamespace(build_logits=build_logits, build_loss=build_loss), reader)
    signature = open_source(str(tmp_path), "train", reader).signature
    model = Model(files, signature, 0, "0", have_tables, is_stepwise=True)
    export(str(tmp_path), model, lambda: {"weights": np.arange(8.0)})
    with tf.Graph().as_default(), tf.Session() as session:
        loaded = tf.saved_model.load(session, ["serve"], str(tmp_path / "1"))
        (given,), (logits,) = (
            [info.name for info in of.values()]
            for of in (loaded.signature_def["serving_default"].inputs, loaded.signature_def["serving_default"].outputs)
        )
        for ids, expected in ([[1, 2], [3, 4]], [3, 7]), ([[1, 2, 3, 4, 5]], [15]):
            assert session.run(logits, {given: ids}).tolist() == expected


@pytest.mark.promises("pipeline-allowed")
def test_python_functions_and_random_numbers_may_be_in_it(data_dir):
    def build_random(data_dir, split):
        def shift(x, y):
            (shifted,) = tf.numpy_function(lambda x: [x + np.float32(1)], [x + tf.random.uniform([2])], [tf.float32])
            return tf.ensure_shape(shifted, [2]), y

        return build_dataset(data_dir, split).map(shift)

    reader = reader_of(build_random)
    source = open_source(data_dir, "train", reader)
    (inputs, labels), _ = draw(source.share(0, 1), 10)
    assert ((inputs[:, 0] - labels >= 1) & (inputs[:, 0] - labels <= 2)).all()
    assert open_source(data_dir, "train", reader).description == source.description


def test_a_session_closes_while_a_python_function_does_not_return(data_dir, local_servers, monkeypatch, caplog):
    monkeypatch.setattr(threads, "REMINDER_SECS", 0.05)
    monkeypatch.setattr(pipeline, "MIN_WINDOW", 1)
    monkeypatch.setattr(pipeline, "WINDOW_BYTES", 1)
    num_returned, is_stuck, go_on = iter(range(7)), threading.Event(), threading.Event()
    go_on.set()

    def wait(x):
        if not go_on.is_set() and next(num_returned, None) is None:
            is_stuck.set()
            go_on.wait()
        return x

    def build_waiting(data_dir, split):
        return build_dataset(data_dir, split).map(
            lambda x, y: (tf.ensure_shape(tf.numpy_function(wait, [x], tf.float32), [2]), y)
        )

    source = open_source(data_dir, "train", reader_of(build_waiting)).share(0, 1)
    go_on.clear()
    servers = local_servers(1, 1)
    with tf.Graph().as_default() as graph:
        with tf.device(servers.task("worker", 0).device):
            batches = source.draw(1, 5, 0)
        session, later = (servers.worker_session(0, graph) for _ in range(2))
        batches.start(session, 0)
        session.run(batches.drawn)
        assert is_stuck.wait(60)
        closing, starting = (
            threading.Thread(target=act, args=arguments, daemon=True)
            for act, arguments in ((session.close, []), (batches.start, [later, 0]))
        )
        closing.start()
        closing.join(60)
        assert not closing.is_alive()
        starting.start()
        poll_for(lambda: "still stopping the read-ahead" in caplog.text, "what a later session waits for")
        go_on.set()
        starting.join(60)
        assert later.run(batches.drawn[1]).size == 5


@pytest.mark.promises("no-examples")
def test_a_step_that_waits_for_its_examples_is_reported_as_long_as_it_waits(data_dir, monkeypatch, caplog):
    monkeypatch.setattr(steps, "REMINDER_SECS", 0.05)
    monkeypatch.setattr(steps, "LOOK_SECS", 0.05)
    line, is_slow = "worker 1: waiting for its next examples: check that what", threading.Event()

    def wait(x):
        if is_slow.is_set():
            poll_for(lambda: caplog.text.count(line) >= 2, "lines of a worker that waits for its data")
        return x

    def build_waiting(data_dir, split):
        return build_dataset(data_dir, split).map(
            lambda x, y: (tf.ensure_shape(tf.numpy_function(wait, [x], tf.float32), [2]), y)
        )

    source = open_source(data_dir, "train", reader_of(build_waiting)).share(0, 1)
    with tf.Graph().as_default():
        batches = source.draw(2, 5, 0)
        worker = Task("worker", 1, ("a:1",), ("b:2", "c:3"))
        probe = types.SimpleNamespace(describe_unreached=lambda: "ps 0 to reach worker 1")
        hook, idle = (steps.LongStepHook(worker, probe, batches.num_drawn, 8, 600.0) for _ in range(2))
        scaffold = tf.train.Scaffold(ready_op=tf.constant([], tf.string), init_fn=lambda _, of: batches.start(of, 0))
        with tf.train.MonitoredSession(tf.train.ChiefSessionCreator(scaffold), [hook]) as session:
            session.run(batches.drawn)
            assert session._tf_sess().run(hook._num_drawn) == hook._num_steps == 1
            is_slow.set()
            while caplog.text.count(line) < 2:
                session.run(batches.drawn)
            # One without a thread: what the thread of the other raised would end this process.
            idle.after_create_session(None, tf.train.Coordinator())
            idle._began_at = time.monotonic() - 601
            idle._num_steps = session._tf_sess().run(idle._num_drawn)
            with pytest.raises(AwayError, match=r"^worker 1 waited 60\d s for its next examples: check that "):
                idle._look(session._tf_sess(), tf.train.Coordinator())
    hook = steps.LongStepHook(worker, probe, None, 8, 600.0)  # of examples in memory
    hook.after_create_session(None, tf.train.Coordinator())
    hook._began_at = time.monotonic() - 601
    hook._look(None, None)
    hook._look(None, None)
    told = "worker 1: a call of 8 exchanges has taken 601 s so far: it computes, or waits for ps 0 to reach worker 1;"
    assert caplog.text.count(told) == 1
    hook._said_at, hook._looked_at = 0.0, time.monotonic() - 70
    hook._look(None, None)
    assert caplog.text.count("601 s so far") == 1
    assert "worker 1: this process was paused for 70 s" in caplog.text


@pytest.mark.promises("sorted-by-class")
@pytest.mark.parametrize(("size_of_class", "num_classes"), [(1, 8), (1000, 8), (1, 2), (4000, 2)])
def test_a_worker_whose_examples_are_sorted_by_class_says_so(tmp_path, caplog, size_of_class, num_classes):
    """Those of one window, which are shuffled, have few classes; mixed ones, and few of many classes, do not.

    Two classes may have one output, and labels that are no integers for the loss.
    """
    num_outputs = 1 if num_classes == 2 else num_classes
    large = np.ones([4096], np.float32)  # so that a window has some 2 000 examples

    def build_sorted(data_dir, split):
        labels = tf.data.Dataset.range(8 * 1000).map(lambda n: tf.cast(n // size_of_class % num_classes, tf.int32))
        return labels.map(lambda label: (tf.constant(large), label))

    def build_loss(logits, labels):
        if num_classes == 2:
            return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(labels, tf.float32), logits[:, 0]))
        return tf.losses.sparse_softmax_cross_entropy(labels, logits)

    reader = types.SimpleNamespace(INPUT=tf.TensorSpec([4096], tf.float32, "x"), build_dataset=build_sorted)
    files = Files(
        types.SimpleNamespace(
            build_logits=lambda x, is_training: x @ tf.get_variable("w", [4096, num_outputs]),
            build_loss=build_loss,
            build_metrics=lambda logits, labels: {"accuracy": tf.reduce_mean(logits)},
        ),
        reader,
    )
    source = open_source(str(tmp_path), "train", reader).share(0, 1)
    made = trace(files, source.signature, is_training=False, seed=0)
    assert made.is_of_classes == (num_classes > 2)
    with tf.Graph().as_default(), tf.Session() as session:
        batches = source.draw(4, 25, 0)
        hook = ClassesHook(Task("worker", 1, ("a:1",), ("b:2", "c:3")), batches, made)
        batches.start(session, 0)
        assert not hook._look(session, tf.train.Coordinator())
        labels = session.run(batches.drawn[1])
        assert hook._look(session, tf.train.Coordinator())
    told = re.findall(rf"worker 1: 100 examples in a row have (\d) of {num_classes} classes: if what", caplog.text)
    assert told == ([] if size_of_class == 1 else [str(len(set(labels)))])


def test_few_classes_are_fewer_than_half_of_those_of_mixed_examples():
    labels = np.random.default_rng(0).integers(0, 1000, 200)
    assert not classes.describe_few(labels, 1000)
    assert classes.describe_few(labels // 400, 1000)
    assert classes.describe_few(np.zeros(100, np.int64), 2)
    assert not classes.describe_few(np.arange(100) // 99, 2)


@pytest.mark.promises("compared-data")
def test_the_description_tells_files_of_the_same_names_and_sizes(data_dir, tmp_path):
    def describe():
        return open_source(data_dir, "train", reader_of(build_dataset)).description

    description = describe()
    assert describe() == description
    assert "list_files()" not in description
    write(tmp_path / "train-0.tfrecord", [example(x=[float(n), 3.0 * n], y=n) for n in range(1, NUM_OF_FILE + 1)])
    assert describe() != description


@pytest.mark.promises("compared-data")
@pytest.mark.parametrize(
    "draws",
    [
        lambda: 0 * tf.random.uniform([]),
        lambda: tf.numpy_function(lambda: np.float32(np.random.uniform()), [], tf.float32),
    ],
)
def test_random_examples_are_not_compared_whether_an_op_or_python_draws_them(data_dir, draws):
    def build_random(data_dir, split):
        return build_dataset(data_dir, split).map(lambda x, y: (x + tf.ensure_shape(draws(), []), y))

    assert "first examples random" in open_source(data_dir, "train", reader_of(build_random)).description


def test_more_examples_than_can_be_tested_with_are_refused(data_dir, monkeypatch):
    monkeypatch.setattr(pipeline, "MAX_LOADED", 7)
    with pytest.raises(UnusableError, match="there are more than 7, too many to test with"):
        open_source(data_dir, "train", reader_of(build_dataset)).load()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda *_: [1, 2], r"build_dataset\(\) must return a tf\.data\.Dataset, found a list of 2: 1, 2$"),
        (lambda files: files, r"line \d+: build_dataset\(\) takes \(files\), expected a function of 2 arguments"),
        (
            lambda *_: tf.data.Dataset.range(5).map(lambda n: (tf.numpy_function(float, [n], tf.float64), n)),
            r"build_dataset\(\) returns a tensor of unknown rank: call set_shape\(\)",
        ),
        (
            lambda *_: tf.data.Dataset.list_files("/nowhere/*", shuffle=False),
            "cannot be read .*No files matched pattern",
        ),
        (
            lambda *_: tf.data.Dataset.range(5).filter(lambda n: n > 7),
            "there are none; correct mnist_input.py, or what it reads",
        ),
        (
            lambda *_: tf.data.Dataset.range(5).map(lambda n: 1 // (n - n)),
            r"cannot be read .InvalidArgumentError: .*correct tests/\S+, line \d+: build_dataset\(\), or what it reads",
        ),
        (
            lambda *_: tf.data.Dataset.range(5),
            r"expected float32 \(2,\), as INPUT says for x, found int64",
        ),
    ],
)
def test_what_is_no_dataset_of_examples_is_refused(tmp_path, build, message):
    with pytest.raises(UnusableError, match=message):
        open_source(str(tmp_path), "t10k", reader_of(build)).load()


def test_a_csv_has_strings_and_weights(tmp_path):
    rows = [f"{n},word{n},{n % 2},{n / 2}" for n in range(20)]
    (tmp_path / "train.csv").write_text("\n".join(["number,word,label,weight", *rows]))

    def build_table(data_dir, split):
        types = [tf.int64, tf.string, tf.int64, tf.float32]
        table = tf.data.experimental.CsvDataset(f"{data_dir}/{split}.csv", types, header=True)
        return table.map(lambda number, word, label, weight: ({"n": number, "word": word}, label, weight))

    spec = {"word": tf.TensorSpec([], tf.string), "n": tf.TensorSpec([], tf.int64)}
    share = open_source(str(tmp_path), "train", reader_of(build_table, spec)).share(1, 2)
    (numbers, words, labels, weights), _ = draw(share, 1)
    assert sorted(numbers) == list(range(1, 20, 2))
    assert [word.decode() for word in words] == [f"word{number}" for number in numbers]
    assert labels.tolist() == [1] * 10
    assert weights.tolist() == (numbers / 2).tolist()


@pytest.mark.promises("pipeline-allowed")
def test_batches_that_are_taken_apart_again_may_be_in_it(data_dir):
    def build_vectorised(data_dir, split):
        return build_dataset(data_dir, split).batch(7).map(lambda x, y: (x + 1, y)).unbatch().prefetch(1)

    (inputs, labels), _ = draw(open_source(data_dir, "train", reader_of(build_vectorised)).share(0, 1), 10)
    assert sorted(labels) == list(range(100))
    assert (inputs[:, 0] == labels + 1).all()


NUM_WORDS = 40


class Words:
    """A file for each word, whose label is in a list; a file may be missing when it is read."""

    INPUT = tf.TensorSpec([], tf.string, "word")

    @staticmethod
    def list_files(data_dir, split):
        paths = sorted(pathlib.Path(data_dir).glob("*.txt"))
        return paths, [int(path.stem) for path in paths]

    @staticmethod
    def build_dataset(files, split):
        keys = tf.lookup.KeyValueTensorInitializer(tf.range(NUM_WORDS), tf.range(NUM_WORDS) + 100)
        labels = tf.lookup.StaticHashTable(keys, -1)
        return files.map(lambda path, number: (tf.io.read_file(path), labels.lookup(number)))


@pytest.fixture
def words_dir(tmp_path):
    for number in range(NUM_WORDS):
        (tmp_path / f"{number:02}.txt").write_text(f"word {number}")
    return tmp_path


@pytest.mark.promises("list-files")
def test_the_files_that_a_user_lists_are_permuted_in_each_epoch(words_dir, monkeypatch):
    monkeypatch.setattr(pipeline, "MAX_WINDOW", 1)
    source = open_source(str(words_dir), "train", Words)
    seen = []
    for index in range(2):
        (words, labels), _ = draw(source.share(index, 2), 6)
        assert [word.decode() for word in words] == [f"word {label - 100}" for label in labels]
        first, second = labels[:20], labels[20:40]
        assert sorted(first) == sorted(second)
        assert first.tolist() != second.tolist()
        assert first.tolist() != sorted(first)
        seen += first.tolist()
    assert sorted(seen) == list(range(100, 100 + NUM_WORDS))


@pytest.mark.promises("fault-while-training")
def test_the_file_that_cannot_be_read_is_named(words_dir):
    source = open_source(str(words_dir), "train", Words).share(1, 2)
    (words_dir / "07.txt").unlink()
    with pytest.raises(UnusableError, match=r"/07\.txt cannot be read \(NotFoundError: .*\); fix it, or exclude it$"):
        source.load()


@pytest.mark.promises("fault-while-training")
def test_with_few_files_the_place_of_the_fault_is_named(tmp_path):
    """As of a CSV file, whose lines are parsed many at once."""
    for number in range(5):
        (tmp_path / f"{number}.csv").write_text("".join(f"{n}\n" for n in range(30)))

    def build_dataset(files, split):
        lines = files.flat_map(tf.data.TextLineDataset).batch(8)
        return lines.map(lambda of: tf.io.decode_csv(of, [0])[0]).unbatch()

    list_files = lambda data_dir, split: sorted(tmp_path.glob("*.csv"))  # noqa: E731
    reader = reader_of(build_dataset, tf.TensorSpec([], tf.int32, "n"), list_files=list_files)
    source = open_source(str(tmp_path), "train", reader).share(1, 2)
    (tmp_path / "3.csv").write_text(30 * "1\n" + "1,5\n")
    expected = r"/3\.csv cannot be read after 24 examples \(InvalidArgumentError: .* record 6\); fix it"
    with pytest.raises(UnusableError, match=expected):
        source.load()


def test_lists_of_other_files_are_told_apart(words_dir, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    for path in words_dir.glob("*.txt"):
        (other / path.name).write_bytes(path.read_bytes())
    descriptions = [open_source(str(folder), "train", Words).description for folder in (words_dir, other)]
    assert descriptions[0] == descriptions[1]
    assert f" ({len([*words_dir.glob('*.txt')])} files, CRC-32 of what list_files() returns " in descriptions[0]
    (other / "39.txt").rename(other / "40.txt")
    assert open_source(str(other), "train", Words).description != descriptions[0]


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ([], r"no path for the examples 'train' of --data_dir \S+"),
        (([1], [2]), r"int32 \[1\], int32 \[1\]"),
        ((["a", "b"], [1]), r"string \[2\], int32 \[1\]"),
        (None, "None"),
        ("data.csv", r"'data\.csv'"),
        (["a", None], "a list of 2: 'a', None"),
        ([("a", 1), ("b", 2)], "a list of 2: a tuple of 2: 'a', 1, a tuple of 2: 'b', 2"),
        ([["a"], ["b"]], r"string \[2, 1\]"),
    ],
)
def test_what_is_no_list_of_files_is_refused(tmp_path, files, found):
    reader = reader_of(lambda *_: None, list_files=lambda *_: files)
    expected = (
        r"list_files\(\) must return a list of paths, or a tuple of columns of equal length, with the paths first"
    )
    with pytest.raises(UnusableError, match=rf"^tests/\S+, line \d+: {expected}, found {found}$"):
        open_source(str(tmp_path), "train", reader)
