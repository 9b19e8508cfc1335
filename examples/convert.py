"""Convert the examples from load() of mnist_input.py into TFRecord files of `tf.train.Example`.

    python examples/convert.py --shards N [--user_dir DIR] [--data_dir DIR --output_dir NEW_DIR]

The new folder appears once all its files are complete.
"""

import argparse
import functools
import os
import pathlib
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))  # where runtime/ is

from runtime.process import environment  # noqa: F401  # first: it sets what TensorFlow reads when it is imported

# isort: split
import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

from runtime.data import download
from runtime.data.files import name_of
from runtime.data.reader import Columns
from runtime.model.users_files import call
from runtime.process.errors import UNUSABLE, UNUSABLE_STATUS, UnusableError, check_folder
from runtime.roles import program

Load = Callable[[str, str], Columns]  # reads a split of a folder into memory


def convert(load: Load, features: Mapping[str, Any], data_dir: str, output_dir: str, num_files: int) -> None:
    """Write the splits `train` and `t10k` of `data_dir` as TFRecord files into a new folder.

    A record has one feature for each column of its example, which holds bytes if `features` says string, and otherwise
    numbers. The training examples are shuffled here, because data sets are often sorted, and training shuffles only in
    windows. The same examples always give the same files.

    Raises:
      UnusableError: the folder exists or cannot be written, or there are fewer examples than files.
    """
    check_folder("output_dir", output_dir, is_pattern=False)
    output_dir = os.path.abspath(output_dir)
    unfinished = output_dir + ".unfinished"
    if os.path.exists(output_dir):
        raise UnusableError(f"{output_dir} already exists: remove it, or give another --output_dir")
    try:
        os.makedirs(unfinished)
        try:
            for split, count in (("train", num_files), ("t10k", 1)):  # who tests reads all of it into memory
                columns = load(data_dir, split)
                _write(columns, features, unfinished, split, count)
            os.rename(unfinished, output_dir)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except FileExistsError as error:
        raise UnusableError(f"{unfinished} exists: if no other conversion is running, remove it") from error
    except (OSError, tf.errors.OpError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.message
        raise UnusableError(f"{output_dir} cannot be written: {reason}") from error


def _write(columns: Columns, features: Mapping[str, Any], folder: str, split: str, num_files: int) -> None:
    if len(columns) != len(features):
        found = f"{len(features)} entries, but examples have {len(columns)} parts"
        raise UnusableError(f"mnist_input.py: FEATURES has {found}")
    if (count := len(columns[0])) < num_files:
        raise UnusableError(f"{count} examples of {split} cannot fill {num_files} files: give fewer --shards")
    order = np.random.default_rng(0).permutation(count) if split == "train" else np.arange(count)
    for index in range(num_files):
        path = os.path.join(folder, name_of(split, index, num_files))
        with tf.io.TFRecordWriter(path) as writer:
            for parts in zip(*(column[order[index::num_files]] for column in columns), strict=True):
                example = tf.train.Example()
                for (name, feature), part in zip(features.items(), parts, strict=True):
                    part = np.asarray(part)
                    try:
                        _add(example.features.feature[name], feature.dtype, part)
                    except (TypeError, ValueError) as error:
                        expected = f"FEATURES says {feature.dtype.name} of {name}"
                        raise UnusableError(f"mnist_input.py: {expected}, found {part.dtype} ({error})") from error
                writer.write(example.SerializeToString(deterministic=True))
        with open(path, "rb") as file:
            os.fsync(file)  # a power cut after the rename must not find half a file
    print(f"{split}: {count} examples in {num_files} files", file=sys.stderr, flush=True)


def _add(feature: Any, dtype: tf.DType, part: Any) -> None:
    """Put one column of an example into a feature."""
    if dtype == tf.string:
        are_texts = part.dtype.kind in "OSU"
        values = [tf.compat.as_bytes(text) for text in part.flat] if are_texts else [part.tobytes()]
        feature.bytes_list.value.extend(values)
    else:
        (feature.float_list if dtype.is_floating else feature.int64_list).value.extend(part.ravel().tolist())


def main() -> None:
    """Convert the examples that the command line names."""
    reader = program.import_files().reader
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--shards", type=int, metavar="N", required=True, help="number of training files")
    parser.add_argument("--user_dir", help="folder with model.py and mnist_input.py, as for distributed.py")
    parser.add_argument("--data_dir", help="folder with the data set's own files; default: MNIST")
    parser.add_argument("--output_dir", help="new folder for the TFRecord files; --data_dir requires it")
    arguments, others = parser.parse_known_args()
    try:
        if flags.FLAGS([sys.argv[0], *others])[1:]:  # those of the two files
            parser.error(f"unexpected argument {others[0]!r}")
    except flags.Error as error:
        parser.error(str(error))
    if not 0 < arguments.shards <= 99999:
        parser.error("--shards must be from 1 to 99999")
    if arguments.data_dir and not arguments.output_dir:
        parser.error("--data_dir needs --output_dir, because nothing is written into --data_dir")
    data_dir = arguments.data_dir or download.default_data_dir()
    output_dir = arguments.output_dir or os.path.join(data_dir, "tfrecord")
    try:
        for name, folder in (("data_dir", data_dir), ("output_dir", output_dir)):
            if folder.startswith("~"):
                raise UnusableError(f"--{name}={folder}: {download.TILDE}")
        if missing := [name for name in ("FEATURES", "load") if not hasattr(reader, name)]:
            raise UnusableError(f"a conversion needs {' and '.join(missing)} in mnist_input.py")
        if hasattr(reader, "fetch") and download.may_fetch(data_dir):
            call(reader, "fetch", data_dir)
        convert(functools.partial(call, reader, "load"), reader.FEATURES, data_dir, output_dir, arguments.shards)
    except tuple(UNUSABLE) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(UNUSABLE_STATUS)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    print(f"give --data_dir={output_dir} to distributed.py")


if __name__ == "__main__":
    main()
