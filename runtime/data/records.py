"""Examples in TFRecord files of `tf.train.Example`: who reads which of them, and how a record becomes columns."""

import os
import zlib
from collections import namedtuple
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from runtime.data.files import Parse, find_fault, look_at
from runtime.data.pipeline import NUM_THREADS, Open, PipelineSource, untouched
from runtime.data.reader import signature_of
from runtime.model.users_files import call, check_columns, place_of
from runtime.process.errors import UnusableError
from runtime.process.phases import preparing

BLOCK_SIZE = 128  # neighbours in a file that are read at once
NUM_OPEN = 16  # files that are read in turns


class RecordSource(PipelineSource):
    """Examples in TFRecord files. They are read in blocks of neighbours, and parsed all at once for a run."""

    def __init__(self, paths: Sequence[str], parse: Parse, spec: Any, where: str):
        """Take files, and `parse`, which makes columns of records, string [b]; `spec` is INPUT.

        Raises:
          UnusableError: a file cannot be read, or its first record cannot be parsed.
        """
        self._where, self._parse, self._files = where, parse, [look_at(path) for path in paths]
        looks = [(os.path.basename(file.path), os.path.getsize(file.path), file.first) for file in self._files]
        checksum = zlib.crc32(repr(looks).encode(errors="surrogateescape"))
        self.description = f"({len(paths)} files, CRC-32 of names, sizes and first records {checksum:08x})"
        if fault := find_fault(self._files, parse, num_records=1):
            raise UnusableError(fault)
        with tf.Graph().as_default():
            columns = parse(tf.placeholder(tf.string, [None]))
        self.signature, self._to_columns = signature_of(columns), getattr(type(columns), "_make", list)
        check_columns(self.signature, spec, where, getattr(columns, "_fields", ()))
        self._num_bytes, self._names, self._numbers = len(self._files[0].first), paths, np.arange(len(paths))

    def _make_open(self) -> Open:
        paths = tf.constant([os.fsencode(file.path) for file in self._files])
        compressions = tf.constant([file.compression for file in self._files])

        @untouched
        def open_part(number: tf.Tensor) -> tf.data.Dataset:
            file = number // self._num_parts
            records = tf.data.TFRecordDataset(paths[file], compressions[file])
            if self._num_parts > 1:
                records = records.shard(self._num_parts, number % self._num_parts)
            return records.batch(BLOCK_SIZE)

        num_open = min(NUM_OPEN, len(self._numbers))
        return lambda numbers: tf.data.Dataset.from_tensor_slices(numbers).interleave(
            open_part, num_open, num_parallel_calls=min(NUM_THREADS, num_open), deterministic=True
        )

    def _to_batch(self, blocks: tf.data.Dataset, size: int) -> tf.data.Dataset:
        return blocks.rebatch(size).take(1).map(untouched(lambda records: tuple(self._parse(records))))

    def _to_windows(self, blocks: tf.data.Dataset) -> tf.data.Dataset:
        return blocks.rebatch(self._window_size)

    def _to_runs(self, windows: tf.data.Dataset, size: int) -> tf.data.Dataset:
        return windows.rebatch(size, drop_remainder=True).map(untouched(lambda records: tuple(self._parse(records))))

    def _find_fault(self) -> str:
        own = sorted({number // self._num_parts for number in self._numbers})
        return find_fault([self._files[number] for number in own], self._parse)


def make_parse(reader: Any) -> Any:
    """Return what makes columns of records, as `parse()` or `FEATURES` of a `reader` say; None if it has neither.

    What has several lengths is padded: where an integer is missing in a sparse or ragged feature stands -1.
    """

    def to_dense(column: Any) -> Any:
        column = column.to_sparse() if isinstance(column, tf.RaggedTensor) else column
        missing = -1 if column.dtype.is_integer else None
        return tf.sparse.to_dense(column, missing) if isinstance(column, tf.SparseTensor) else column

    def parse(serialized: Any) -> Any:
        if hasattr(reader, "parse"):
            # Or one that makes several rows of a record that is too long would shift all others.
            expected = "parse() must return a row for each record"
            columns = tf.nest.map_structure(to_dense, call(reader, "parse", serialized))
            with preparing(f"{place_of(reader, 'parse')}: {expected}"):
                num_rows, num_records = [tf.shape(of)[0] for of in tf.nest.flatten(columns)], tf.size(serialized)
            are_rows = tf.Assert(tf.reduce_all(tf.equal(num_rows, num_records)), [expected, num_rows, num_records])
            with tf.control_dependencies([are_rows]):
                return tf.nest.map_structure(tf.identity, columns)
        with preparing("mnist_input.py, FEATURES"):
            parsed = tf.io.parse_example(serialized, reader.FEATURES)
        make_type: Any = namedtuple  # mypy knows it with names in the source only
        columns = make_type("Columns", reader.FEATURES, rename=True)  # a name need be none of Python
        return columns(*(to_dense(parsed[name]) for name in reader.FEATURES))

    return parse if hasattr(reader, "parse") or hasattr(reader, "FEATURES") else None
