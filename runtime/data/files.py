"""TFRecord files of `tf.train.Example`: their names, a first look at each, and which record of one is at fault."""

import contextlib
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf
from google.protobuf.message import DecodeError

from runtime.process.errors import UnusableError, reason

IS_RECORDS = re.compile(r"\.(tf)?records?\b|(?<!\.data)-\d{5}-of-\d{5}$")  # no part of a checkpoint
# The first of these words in a name tells its split; of several sets to test with, that of the first word counts.
WORDS = {"train": ["train", "training"], "t10k": ["t10k", "test", "testing", "validation", "valid", "val", "eval"]}
COMPRESSIONS = {"": "NONE", "GZIP": "GZIP", "ZLIB": "ZLIB"}  # as datasets name them, and as readers do
NUM_TRIED = 1000  # records that are parsed at once, to find the one that is at fault
NUM_BYTES = 1 << 16  # that are read at once, to find the last record
CPU = tf.ConfigProto(device_count={"GPU": 0})  # the GPUs are for training

Parse = Callable[[Any], Any]  # from records, string [b], to columns


class File(NamedTuple):
    """A file of records."""

    path: str
    compression: str
    first: bytes  # its first record

    @property
    def records(self) -> Iterator[bytes]:
        """Its records, in their order."""
        kind = getattr(tf.io.TFRecordCompressionType, COMPRESSIONS[self.compression])
        return tf.io.tf_record_iterator(self.path, tf.io.TFRecordOptions(kind))


def name_of(split: str, index: int, num_files: int) -> str:
    """Return the name of a file."""
    return f"{split}-{index:05d}-of-{num_files:05d}.tfrecord"


def find_records(data_dir: str, split: str) -> list[str]:
    """Return the paths of the files of one split, `train` or `t10k`, in `data_dir`; none if it has no such files.

    Raises:
      UnusableError: there are some, but none of this split, or not all of a set.
    """
    by_word: dict[str, list[str]] = {}
    try:
        names = [name for name in sorted(os.listdir(data_dir)) if IS_RECORDS.search(name) and not name.startswith(".")]
    except FileNotFoundError:  # load() may need none
        return []
    except OSError as error:
        raise UnusableError(f"--data_dir {data_dir} cannot be read: {error.strerror}; give another one") from error
    for name in names:
        words = [word for word in re.findall("t10k|[a-z]+", name.lower()) if word in WORDS["train"] + WORDS["t10k"]]
        by_word.setdefault((words or [""])[0], []).append(name)
    found = next((by_word[word] for word in WORDS[split] if word in by_word), [])
    if names and not found:
        raise UnusableError(
            f"--data_dir {data_dir} has TFRecord files, such as {names[0]}, but none for {split}: name them"
            f" {name_of(split, 0, 4)} and so on, or with {' or '.join(WORDS[split][:3])} in the name"
        )
    numbers = sorted((int(n), int(count)) for name in found for n, count in re.findall(r"-(\d{5})-of-(\d{5})", name))
    if numbers and numbers != [(n, len(found)) for n in range(len(found))]:
        raise UnusableError(
            f"--data_dir {data_dir} has an incomplete or mixed set of {split} files: add what is missing, and remove"
            f" other sets ({', '.join(found)})"
        )
    return [os.path.join(data_dir, name) for name in found]


def look_at(path: str) -> File:
    """Read the first record of a file.

    Raises:
      UnusableError: it cannot be read, or has none, or one that is not compressed does not end with a record.
    """
    try:
        with open(path, "rb") as file:
            is_empty, is_whole = not file.read(1), _ends_with_record(file)
    except OSError as error:
        remedy = "restore it, or fix its permissions"
        if isinstance(error, IsADirectoryError):  # as Spark writes them
            remedy = "move its files out of it, with the split in their names"
        raise UnusableError(f"{path} cannot be read: {error.strerror}; {remedy}") from error
    for compression in COMPRESSIONS:
        try:
            found = File(path, compression, next(File(path, compression, b"").records))
        except (StopIteration, tf.errors.DataLossError):
            continue
        if compression or is_whole:
            return found
        raise UnusableError(f"{path} ends in the middle of a record: copy it again, or create the set without it")
    what = "is empty" if is_empty else "is not a TFRecord file, has no record, or has a corrupt first record"
    raise UnusableError(f"{path} {what}: copy it again, or create the set without it")


def _ends_with_record(file: BinaryIO) -> bool:
    """Return whether a file that is not compressed ends with a whole record: there is a length that says so.

    TensorFlow takes one that is cut within the length of a record, or its checksum, for whole. A record is its length
    in 8 bytes, their checksum in 4, its content, and a checksum of that.
    """
    size = file.seek(0, os.SEEK_END)
    for end in range(size - 15, 0, -NUM_BYTES):  # of the places where the length may begin
        start = file.seek(max(end - NUM_BYTES, 0))
        content = file.read(end - start + 11)
        lengths = np.ndarray(end - start, "<i8", content, strides=(1,))
        for n in np.flatnonzero(lengths == size - 16 - np.arange(start, end)):  # what lies in a record may look like it
            if _compute_checksum(content[n : n + 8]) == int.from_bytes(content[n + 8 : n + 12], "little"):
                return True
    return False


def _compute_checksum(content: bytes) -> int:
    """Return the CRC-32C of a few bytes, masked, as files of records have it."""
    checksum = 0xFFFFFFFF
    for byte in content:
        checksum ^= byte
        for _ in range(8):
            checksum = checksum >> 1 ^ (checksum & 1) * 0x82F63B78
    checksum ^= 0xFFFFFFFF
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _list_features(record: bytes) -> str:
    """Return which features a record has, for a message, or "" if it is no `tf.train.Example`."""
    with contextlib.suppress(DecodeError):
        kinds = {
            name: of.WhichOneof("kind") for name, of in tf.train.Example.FromString(record).features.feature.items()
        }
        return f"it has {', '.join(f'{name} ({kind})' for name, kind in sorted(kinds.items())) or 'no features'}; "
    return ""


def find_fault(files: Sequence[File], parse: Parse, num_records: int | None = None) -> str:
    """Return which of some files, and which of its first records, cannot be read, and what to do; "" if all can."""
    with tf.Graph().as_default(), tf.Session(config=CPU) as session:
        serialized = tf.placeholder(tf.string, [None])
        parsed = tf.nest.flatten(parse(serialized))

        def try_to_parse(records: list[bytes], path: str, first: int) -> str:
            try:
                return str(session.run(parsed, {serialized: records}) and "") if records else ""
            except tf.errors.OpError as error:
                if len(records) > 1:
                    tries = (try_to_parse([one], path, first + number) for number, one in enumerate(records))
                    return next(filter(None, tries), "")
                remedy = "correct the file, or FEATURES or parse() in mnist_input.py"
                return f"{path}: record {first} cannot be parsed ({reason(error)}); {_list_features(*records)}{remedy}"

        for file in files:
            number, records, fault = 0, list[bytes](), ""
            try:
                look_at(file.path)
                for record in itertools.islice(file.records, num_records):
                    records.append(record)
                    if len(records) == NUM_TRIED:
                        if fault := try_to_parse(records, file.path, number):
                            return fault
                        number, records = number + NUM_TRIED, []
            except UnusableError as error:
                fault = str(error)
            except tf.errors.OpError as error:
                fault = f"{file.path}: record {number + len(records)} is corrupt ({reason(error)}); copy the file again"
            if fault := try_to_parse(records, file.path, number) or fault:
                return fault
    return ""
