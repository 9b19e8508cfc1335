"""What reads a data set, and how a graph gets at its examples."""

import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow.compat.v1 as tf

Columns = Sequence[Any]  # the parts of some examples, such as images [n, ...] and labels [n]: arrays, or tensors


class Reader(Protocol):
    """What reads a data set, such as the module `mnist_input`."""

    INPUT: Any  # a `tf.TensorSpec`: what an exported model takes of an example
    RECORD_BYTES: int  # of an example in a TFRecord file

    def load(self, data_dir: str, split: str) -> Any:
        """Read one split, `train` or `t10k`, of the data set's own files into memory: its columns, as a named tuple."""

    def split_records(self, records: Any) -> Columns:
        """Split records, uint8 [n, RECORD_BYTES], an array or a tensor, into their columns."""


class Access(NamedTuple):
    """How a graph gets at the examples of a source."""

    build_columns: Callable[[tf.Tensor], Columns]  # of a batch, from its inputs, [b, ...]
    initializer: tf.Operation
    feed_dict: Mapping[tf.Tensor, npt.NDArray[Any]]  # what `initializer` is fed


def signature_of(examples: Columns) -> list[tf.TensorSpec]:
    """Return the columns of one example."""
    return [tf.TensorSpec(column.shape[1:], tf.as_dtype(column.dtype)) for column in examples]


def compute_checksum(columns: Columns) -> int:
    """Return the CRC-32 of examples in their order, which tells them from others, in any process."""

    def add(checksum: int, column: npt.NDArray[Any]) -> int:
        if column.dtype.hasobject:  # such as strings: what lies in the array are their addresses
            return zlib.crc32(repr(column.tolist()).encode(errors="surrogatepass"), checksum)
        return zlib.crc32(np.ascontiguousarray(column).data, checksum)

    return functools.reduce(add, columns, 0)
