"""From examples, wherever they lie, to an endless stream of batches, a few for each run of the graph."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy.typing as npt
import tensorflow.compat.v1 as tf

SHARDINGS = ("static", "dynamic")

Columns = Sequence[Any]  # the parts of some examples, such as images [n, ...] and labels [n]: arrays, or tensors


class Reader(Protocol):
    """What reads a data set, such as the module `mnist_input`."""

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


class Source(Protocol):
    """Examples, and how they become the inputs of a run: their numbers or, where they are read for it, themselves."""

    num_examples: int
    stream: int | None  # the index of the worker whose share this is; None: all workers share one stream of all

    @property
    def description(self) -> str:
        """What tells these examples from others, in words."""

    def share(self, index: int, num_workers: int) -> "Source":
        """Return the share of one worker: shares are disjoint and complete."""

    def load(self) -> Columns:
        """Return all examples, in memory."""

    def build_access(self) -> Access:
        """Build what the inputs of a batch need to become examples."""

    def build_inputs(self, first: tf.Tensor, run_size: int, seed: int) -> tf.Tensor:
        """Build the inputs of the run whose examples begin at position `first`, int64 []: [run_size, ...]."""

    def build_dataset(self, first: tf.Tensor, run_size: int, seed: int) -> tf.data.Dataset:
        """Build the inputs of all runs from position `first` on: a data set of elements [run_size, ...]."""


class Batches(NamedTuple):
    """An endless stream of batches, a few for each run of the graph; run `initializer` first, with `feed_dict()`."""

    inputs: tf.Tensor  # [batches in a run, b, ...]: the numbers of examples in memory, or what was read of files
    initializer: tf.Operation
    batch: Callable[[tf.Tensor], Columns]  # builds the batch of some inputs, [b, ...]
    access: Access
    first_example: tf.Tensor  # int64 [], a placeholder: how many examples earlier sessions have used
    batch_size: int

    def feed_dict(self, first_batch: int) -> dict[tf.Tensor, Any]:
        """Return what `initializer` is fed, so that a worker's own stream begins with batch `first_batch`."""
        return {**self.access.feed_dict, self.first_example: first_batch * self.batch_size}


def build_batches(
    source: Source, num_batches: int, batch_size: int, seed: int, decode: Callable[..., Columns]
) -> Batches:
    """Build an endless stream of shuffled batches.

    Each epoch uses every example once, in a new order that the seed, the stream and the number of the epoch determine.
    A batch may span the end of an epoch, so none is ever short.

    Args:
      source: usually one worker's share.
      num_batches: how many batches a run of the graph may use.
      batch_size: b, at least 1; it may exceed the number of examples.
      seed: the run's seed, in [0, 2**31).
      decode: builds what the model takes of the columns of a batch.
    """
    run_size = num_batches * batch_size
    access = source.build_access()
    first_example = tf.placeholder(tf.int64, [], name="first_example")
    if source.stream is None:
        inputs, initializer = source.build_inputs(_build_first_position(run_size), run_size, seed), access.initializer
    else:
        # There is nothing to tune, and closing a session would wait for the autotuner's thread, which may sleep a
        # minute.
        options = tf.data.Options()
        options.autotune.enabled = False
        dataset = source.build_dataset(first_example, run_size, seed).with_options(options)
        iterator = tf.data.make_initializable_iterator(dataset)
        inputs, initializer = iterator.get_next(), tf.group(iterator.initializer, access.initializer)

    def build_batch(of_batch: tf.Tensor) -> Columns:
        with tf.name_scope("batch"):
            return decode(*access.build_columns(of_batch))

    inputs = tf.reshape(inputs, [num_batches, batch_size, *inputs.shape[1:]])
    return Batches(inputs, initializer, build_batch, access, first_example, batch_size)


def _build_first_position(run_size: int) -> tf.Tensor:
    """Build where the next piece of the stream that all workers share begins, int64 []; each run takes a new one.

    ps 0 counts the runs that have taken one, in a variable of the model: so a checkpoint has it, and whoever restores
    the parameters goes on where they were. Counting is one op on the ps, which no other worker can come between:
    `assign_add()` would read the sum with another op.
    """
    with tf.device("/job:ps/task:0"), tf.name_scope("sharding/"):
        num_runs = tf.Variable(tf.zeros([], tf.int64), trainable=False, name="runs_dealt_out")
        number = tf.raw_ops.ResourceCountUpTo(resource=num_runs.handle, limit=sys.maxsize, T=tf.int64)
    return number * run_size
