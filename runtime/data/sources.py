"""Which examples a data directory has: TFRecord files, or the files of the data set itself."""

from typing import Any, Protocol

from runtime.data import download
from runtime.data.memory import MemorySource
from runtime.data.shards import Format, ShardSource
from runtime.data.streams import Columns, Source
from runtime.data.tfrecords import find_shards


class Reader(Protocol):
    """What reads a data set, such as the module `mnist_input`."""

    RECORD_BYTES: int  # of an example in a TFRecord file

    def load(self, data_dir: str, split: str) -> Any:
        """Read one split, `train` or `t10k`, of the data set's own files into memory: its columns, as a named tuple."""

    def split_records(self, records: Any) -> Columns:
        """Split records, uint8 [n, RECORD_BYTES], an array or a tensor, into their columns."""


def open_source(data_dir: str, split: str, reader: Reader) -> Source:
    """Return the examples of one split in `data_dir`; files of MNIST that are missing are fetched.

    Raises:
      DownloadError: there are neither TFRecord files nor MNIST's, and these cannot be fetched.
      UnusableError: a TFRecord file is missing, or is not what it should be.
    """
    if download.has_shards(data_dir):
        files = find_shards(data_dir, split, reader.RECORD_BYTES)
        return ShardSource(files, Format(reader.RECORD_BYTES, reader.split_records))
    download.fetch(data_dir)
    return MemorySource(reader.load(data_dir, split))
