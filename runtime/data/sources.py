"""Which examples a data directory has: TFRecord files, or the files of the data set itself."""

import numpy as np

from runtime.data import download
from runtime.data.memory import MemorySource
from runtime.data.reader import Columns, Reader
from runtime.data.shards import ShardSource
from runtime.data.tfrecords import find_shards
from runtime.errors import UnusableError

# Examples, and how they become the inputs of a run: their numbers or, where they are read for it, themselves.
Source = MemorySource | ShardSource


def open_source(data_dir: str, split: str, reader: Reader) -> Source:
    """Return the examples of one split in `data_dir`; files of MNIST that are missing are fetched.

    Raises:
      DownloadError: there are neither TFRecord files nor MNIST's, and these cannot be fetched.
      UnusableError: a TFRecord file is missing, or is not what it should be, or `load()` returns no labelled examples.
    """
    if download.has_shards(data_dir):
        return ShardSource(find_shards(data_dir, split, reader.RECORD_BYTES), reader)
    download.fetch(data_dir)
    examples = reader.load(data_dir, split)
    _check_labels(examples, f"the examples {split!r} of --data_dir {data_dir}")
    return MemorySource(examples)


def load_test_examples(data_dir: str, reader: Reader) -> Columns:
    """Return the examples that the model is tested on, [n, size] as `INPUT` says, and their labels, [n].

    Raises:
      DownloadError, UnusableError: see `open_source()`; or they have another size.
    """
    examples = open_source(data_dir, "t10k", reader).load()
    where = f"the test examples 't10k' of --data_dir {data_dir}"
    _check_labels(examples, where)
    found, size = list(np.shape(examples[0])), reader.INPUT.shape.num_elements()
    if found[1:] != [size]:
        raise _unusable(where, f"[n, {size}], as INPUT says", f"the shape {found}")
    return examples


def _check_labels(examples: Columns, where: str) -> None:
    """Check that there is a label for each example, an integer from 0 on; the model says later how many classes it has.

    Raises:
      UnusableError: there is not.
    """
    if not (hasattr(examples, "_fields") and all(isinstance(part, np.ndarray) for part in examples)):
        raise _unusable(where, "a named tuple of arrays", type(examples).__name__)
    num_examples, labels = len(examples[0]), examples[-1]
    if not num_examples or labels.shape != (num_examples,):
        found = f"{num_examples} examples and labels of the shape {list(labels.shape)}"
        raise _unusable(where, "one example at least, and a label for each", found)
    if not np.issubdtype(labels.dtype, np.integer):
        raise _unusable(where, "integers as labels", str(labels.dtype))
    if labels.min() < 0:
        raise _unusable(where, "labels from 0 on", f"label {labels.argmin()} is {labels.min()}")


def _unusable(where: str, expected: str, found: str) -> UnusableError:
    remedy = "correct mnist_input.py, or what it reads"
    return UnusableError(f"{where} cannot be used: expected {expected}, found {found}; {remedy}")
