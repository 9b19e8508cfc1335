"""Converts a data set into TFRecord files. The result appears whole, by a rename, or not at all."""

import argparse
import contextlib
import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt
import tensorflow.compat.v1 as tf

from runtime.data import download, tfrecords
from runtime.errors import UNUSABLE_STATUS, UnusableError, refuse_url
from runtime.process import allow_many_files

NUM_TEST_SHARDS = 1  # who tests reads all test examples into memory

# Yields a split's records part by part, uint8 [n, record_bytes], each with the number of all of them.
PartReader = Callable[[str, str], Iterator[tuple[npt.NDArray[np.uint8], int]]]


def convert(read_parts: PartReader, data_dir: str, output_dir: str, num_shards: int) -> None:
    """Write the splits `train` and `t10k` of `data_dir` as TFRecord files into a new folder.

    Examples are dealt out to the files one by one, so neighbours in a file are no neighbours in the data set. The same
    examples always give the same bytes.

    Raises:
      UnusableError: the folder is there already, or cannot be written, or there are fewer examples than shards.
    """
    refuse_url("output_dir", output_dir)
    output_dir = os.path.abspath(output_dir)
    if os.path.exists(output_dir):
        raise UnusableError(f"{output_dir} is there already: remove it, or give another --output_dir")
    try:
        with _make_unfinished(output_dir) as folder:
            for split, count in (("train", num_shards), ("t10k", NUM_TEST_SHARDS)):
                _write(read_parts(data_dir, split), folder, split, count)
            os.rename(folder, output_dir)
    except (OSError, tf.errors.OpError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.message
        raise UnusableError(f"{output_dir} cannot be written: {reason}") from error


@contextlib.contextmanager
def _make_unfinished(output_dir: str) -> Iterator[str]:
    """Make an empty folder beside `output_dir`, for this process alone; it goes away if it is not renamed.

    A process that is killed leaves its folder behind, and the next one begins it anew.
    """
    folder = output_dir + tfrecords.UNFINISHED
    os.makedirs(folder, exist_ok=True)
    with contextlib.ExitStack() as stack:
        descriptor = os.open(folder, os.O_RDONLY)
        stack.callback(os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UnusableError(f"another process converts into {folder}: wait for it, or end it") from error
        except OSError as error:  # some network file systems know no locks
            print(f"{folder} cannot be locked ({error.strerror}): let no other process convert there", file=sys.stderr)
        names = os.listdir(folder)
        if foreign := [name for name in names if not tfrecords.NAME.fullmatch(name)]:
            raise UnusableError(
                f"{folder} has {foreign[0]}, which no conversion has left: move it, or remove the folder"
            )
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        for name in names:
            os.remove(os.path.join(folder, name))
        yield folder


def _write(parts: Iterable[tuple[npt.NDArray[np.uint8], int]], folder: str, split: str, num_shards: int) -> None:
    """Deal the records of `parts` out to files. A terminal shows how far this is; elsewhere there is one line."""
    paths = [os.path.join(folder, tfrecords.name_of(split, index, num_shards)) for index in range(num_shards)]
    num_written = 0
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(tf.io.TFRecordWriter(path)) for path in paths]
        for records, num_examples in parts:
            if num_examples < num_shards:
                raise UnusableError(f"{num_examples} examples of {split} cannot fill {num_shards} shards: give fewer")
            for number, record in enumerate(records, num_written):
                writers[number % num_shards].write(record.tobytes())
            num_written += len(records)
            is_last = num_written == num_examples
            if is_last or sys.stderr.isatty():
                line = f"\r{split}: {num_written} of {num_examples} examples"
                print(line, end="\n" if is_last else "", file=sys.stderr, flush=True)
    for path in paths:  # a power cut after the rename must not find half a file
        with open(path, "rb") as file:
            os.fsync(file)


def main(read_parts: PartReader, data_error: type[Exception]) -> None:
    """Convert as the command line says: `convert --shards N [--data_dir DIR] [--output_dir DIR]`.

    Args:
      read_parts: reads the data set.
      data_error: what it raises for a file that is not what it should be.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("convert", allow_abbrev=False, help="write a data set as TFRecord files")
    command.add_argument("--shards", type=int, metavar="N", required=True, help="number of files for training")
    command.add_argument("--data_dir", default=download.default_data_dir(), help="the data set's own files")
    command.add_argument("--output_dir", help="a new folder for the result; default: tfrecord in the --data_dir")
    arguments = parser.parse_args()
    if not 0 < arguments.shards <= 99999:
        parser.error("--shards must be from 1 to 99999")
    output_dir = arguments.output_dir or os.path.join(arguments.data_dir, "tfrecord")
    allow_many_files()  # each shard is one
    try:
        for name, folder in (("data_dir", arguments.data_dir), ("output_dir", output_dir)):
            if folder.startswith("~"):
                raise UnusableError(f"--{name}={folder}: ~ is only understood by a shell: write $HOME")
        if download.has_shards(arguments.data_dir):
            raise UnusableError(
                f"--data_dir {arguments.data_dir} has TFRecord files already: give that of the IDX files"
            )
        download.fetch(arguments.data_dir)
        convert(read_parts, arguments.data_dir, output_dir, arguments.shards)
    except (UnusableError, download.DownloadError, data_error) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(UNUSABLE_STATUS)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    print(f"give --data_dir={output_dir} to distributed.py")
