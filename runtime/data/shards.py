"""Examples in TFRecord files: each run carries what it has read of them, so memory does not grow with the data.

A record is one example as bytes, and all records have one length. So the place of each is known, and neighbours are
read at once: `tf.data.TFRecordDataset`, which takes record by record, needs several times as long.
"""

import functools
import os
import sys
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow.compat.v1 as tf

from runtime.data.order import build_numbers
from runtime.data.reader import Access, Columns, Reader
from runtime.data.tfrecords import FOOTER_BYTES, HEADER_BYTES, REMEDY, Shard, make_header
from runtime.model.users_files import check_examples
from runtime.process.errors import UnusableError

BLOCK_SIZE = 128  # examples that are read at once, from one place
PLACES = 16  # from so many places at least come the examples of a run, where this allows fewer at once


class ShardSource:
    """Examples in TFRecord files, with the methods of `MemorySource`."""

    def __init__(self, shards: Sequence[Shard], reader: Reader, stream: int | None = None):
        """Take files that `find_shards()` has found, what splits their records, and a `stream` as of `MemorySource`."""
        self._shards, self._reader, self.stream = shards, reader, stream
        ends = np.cumsum([shard.num_examples for shard in shards])
        self._firsts, self.num_examples = np.concatenate([[0], ends[:-1]]), int(ends[-1])
        self._header = np.frombuffer(make_header(reader.RECORD_BYTES), np.uint8)

    @property
    def description(self) -> str:
        """What tells these examples from others: how many there are, and the CRC-32 of a sample."""
        checksum = zlib.crc32(repr([shard.checksum for shard in self._shards]).encode())
        return f"({self.num_examples} examples in {len(self._shards)} shards, CRC-32 of a sample {checksum:08x})"

    def share(self, index: int, num_workers: int) -> "ShardSource":
        """Return the examples in every `num_workers`-th file from `index` on.

        Raises:
          UnusableError: there are fewer files than workers, so a share is empty.
        """
        if len(self._shards) < num_workers:
            raise UnusableError(
                f"{len(self._shards)} shards cannot be shared by {num_workers} workers: convert into more of them, or"
                " give --sharding=dynamic"
            )
        return ShardSource(self._shards[index::num_workers], self._reader, index)

    def load(self) -> Columns:
        """Return all examples, in memory.

        Raises:
          UnusableError: a file cannot be read, or what `split_records()` returns is not what it should be.
        """
        examples = self._reader.split_records(self.read(np.arange(self.num_examples)))
        check_examples(examples, self._reader.INPUT, f"the examples in {self._shards[0].path} and so on")
        return examples

    def read(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Read the examples of some numbers, in any order: uint8 [n, record_bytes].

        Raises:
          UnusableError: a file cannot be read, or is damaged there.
        """
        order = np.argsort(numbers)
        places = numbers[order]
        files = np.searchsorted(self._firsts, places, side="right") - 1
        framed = np.empty([len(places), HEADER_BYTES + self._reader.RECORD_BYTES + FOOTER_BYTES], np.uint8)
        (starts,) = np.nonzero((np.diff(places, prepend=-2) != 1) | (np.diff(files, prepend=-1) != 0))
        for start, end in zip(starts, [*starts[1:], len(places)], strict=True):
            file = files[start]
            self._read_neighbours(file, int(places[start] - self._firsts[file]), framed[start:end])
        records = np.empty([len(places), self._reader.RECORD_BYTES], np.uint8)
        records[order] = framed[:, HEADER_BYTES:-FOOTER_BYTES]
        return records

    def _read_neighbours(self, file: int, first: int, framed: npt.NDArray[np.uint8]) -> None:
        """Fill `framed` with the records of a file from number `first` on."""
        path, content, num_bytes = self._shards[file].path, framed.data.cast("B"), 0
        try:
            # One call reads 2 GiB at most.
            while more := os.preadv(self._open_file(file), [content[num_bytes:]], first * framed.shape[1] + num_bytes):
                num_bytes += more
        except OSError as error:
            raise UnusableError(f"{path} cannot be read: {error.strerror}") from error
        if num_bytes != framed.nbytes or (framed[:, :HEADER_BYTES] != self._header).any():
            raise UnusableError(f"{path} is damaged at record {first} or soon after it: {REMEDY}")

    @functools.cache  # noqa: B019  # a source lives as long as its process; so do its files
    def _open_file(self, file: int) -> int:
        return os.open(self._shards[file].path, os.O_RDONLY)

    def build_access(self) -> Access:
        """Build nothing: a run has read its examples."""
        return Access(self._reader.split_records, tf.no_op(), {})

    def build_inputs(self, first: tf.Tensor, run_size: int, seed: int) -> tf.Tensor:
        """Build the records of a run, uint8 [run_size, record_bytes]: blocks from several places, and then shuffled."""
        block_size = max(1, min(BLOCK_SIZE, run_size // PLACES))
        numbers = build_numbers(first, run_size, self.num_examples, block_size, seed, self.stream)
        numbers = tf.random.experimental.stateless_shuffle(numbers, tf.stack([tf.constant(seed, tf.int64), first]))
        records = tf.numpy_function(self.read, [numbers], tf.uint8, name="read")
        return tf.ensure_shape(records, [run_size, self._reader.RECORD_BYTES])

    def build_dataset(self, first: tf.Tensor, run_size: int, seed: int) -> tf.data.Dataset:
        """Build the records of all runs, read ahead while the worker computes."""
        read = tf.autograph.experimental.do_not_convert(lambda position: self.build_inputs(position, run_size, seed))
        options = tf.data.Options()
        options.threading.private_threadpool_size = 1  # it may wait for a disk, and no thread that computes shall
        return tf.data.Dataset.range(first, sys.maxsize, run_size).map(read).prefetch(1).with_options(options)
