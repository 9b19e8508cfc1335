"""Converts a data set into TFRecord files. The result appears whole, by a rename, or not at all."""

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Callable

import tensorflow.compat.v1 as tf

from runtime.data import download
from runtime.data.reader import Columns
from runtime.data.tfrecords import UNFINISHED, has_shards, name_of
from runtime.process.errors import UNUSABLE_STATUS, UnusableError, check_folder

NUM_TEST_SHARDS = 1  # who tests reads all test examples into memory

Load = Callable[[str, str], Columns]  # reads a split of a folder into memory: see `reader.Reader`


def convert(load: Load, data_dir: str, output_dir: str, num_shards: int) -> None:
    """Write the splits `train` and `t10k` of `data_dir` as TFRecord files into a new folder.

    A record has the bytes of each column of its example. Examples are dealt out to the files one by one, so neighbours
    in a file are no neighbours in the data set. The same examples always give the same bytes.

    Raises:
      UnusableError: the folder is there already, or cannot be written, or there are fewer examples than shards.
    """
    check_folder("output_dir", output_dir, is_pattern=False)
    output_dir = os.path.abspath(output_dir)
    unfinished = output_dir + UNFINISHED
    if os.path.exists(output_dir):
        raise UnusableError(f"{output_dir} is there already: remove it, or give another --output_dir")
    try:
        os.makedirs(unfinished)
        try:
            for split, count in (("train", num_shards), ("t10k", NUM_TEST_SHARDS)):
                _write(load(data_dir, split), unfinished, split, count)
            os.rename(unfinished, output_dir)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except FileExistsError as error:
        raise UnusableError(f"{unfinished} is there: another process converts, or was killed: remove it") from error
    except (OSError, tf.errors.OpError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.message
        raise UnusableError(f"{output_dir} cannot be written: {reason}") from error


def _write(columns: Columns, folder: str, split: str, num_shards: int) -> None:
    """Deal the examples out to files. A terminal shows how far this is; elsewhere there is one line."""
    num_examples, num_written = len(columns[0]), 0
    if num_examples < num_shards:
        raise UnusableError(f"{num_examples} examples of {split} cannot fill {num_shards} shards: give fewer")
    for index in range(num_shards):
        path = os.path.join(folder, name_of(split, index, num_shards))
        with tf.io.TFRecordWriter(path) as writer:
            for example in zip(*(column[index::num_shards] for column in columns), strict=True):
                writer.write(b"".join(part.tobytes() for part in example))
                num_written += 1
        with open(path, "rb") as file:
            os.fsync(file)  # a power cut after the rename must not find half a file
        is_last = num_written == num_examples
        if is_last or sys.stderr.isatty():
            line = f"\r{split}: {num_written} of {num_examples} examples"
            print(line, end="\n" if is_last else "", file=sys.stderr, flush=True)


def main(load: Load, data_error: type[Exception]) -> None:
    """Convert as the command line says; `load` raises a `data_error` for a file that is not what it should be."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("command", choices=["convert"], help="write a data set as TFRecord files")
    parser.add_argument("--shards", type=int, metavar="N", required=True, help="number of files for training")
    parser.add_argument("--data_dir", default=download.default_data_dir(), help="the data set's own files")
    parser.add_argument("--output_dir", help="a new folder for the result; default: tfrecord in the --data_dir")
    arguments = parser.parse_args()
    if not 0 < arguments.shards <= 99999:
        parser.error("--shards must be from 1 to 99999")
    data_dir = arguments.data_dir
    output_dir = arguments.output_dir or os.path.join(data_dir, "tfrecord")
    try:
        for name, folder in (("data_dir", data_dir), ("output_dir", output_dir)):
            if folder.startswith("~"):
                raise UnusableError(f"--{name}={folder}: ~ is only understood by a shell: write $HOME")
        if has_shards(data_dir):
            raise UnusableError(f"--data_dir {data_dir} has TFRecord files already: give that of the IDX files")
        download.fetch(data_dir)
        convert(load, data_dir, output_dir, arguments.shards)
    except (UnusableError, download.DownloadError, data_error) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(UNUSABLE_STATUS)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    print(f"give --data_dir={output_dir} to distributed.py")
