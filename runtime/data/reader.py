"""Examples as a graph gets at them, wherever they come from."""

import contextlib
import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow.compat.v1 as tf

Columns = Sequence[Any]  # the parts of some examples, such as images [n, ...] and labels [n]: arrays, or tensors


class Batches(NamedTuple):
    """An endless stream of shuffled batches, a few for each run of the graph; each session needs `start()` first.

    Each epoch uses every example once, in a new order that the seed, the stream and the number of the epoch determine.
    A batch may span the end of an epoch, so none is ever short.
    """

    inputs: tf.Tensor  # [batches in a run, b]: the numbers of examples
    gather: Callable[[tf.Tensor], Columns]  # builds the examples of some inputs, [b]
    signature: Any  # the columns of one example, in a structure
    drawn: Sequence[tf.Tensor]  # all that a run draws; fed with it, another run has the same examples
    first_example: tf.Tensor  # int64 [], a placeholder: how many examples earlier sessions have used
    initializer: tf.Operation
    feed_dict: Mapping[tf.Tensor, npt.NDArray[Any]]  # what `initializer` is fed beside that
    # Is entered when a session starts to draw, with the coordinator of its threads.
    starting: Callable[[tf.train.Coordinator | None], Any] = contextlib.nullcontext
    num_drawn: tf.Variable | None = None  # int64 []: of how many runs the examples have come, where a run may wait
    integers: Mapping[int, tf.Variable] = {}  # the columns of integers [n], as the last run has them
    describe_not_finite: Callable[[], str] = str  # says which columns have numbers that are not finite, as far as known

    def columns(self, of_batch: tf.Tensor) -> Columns:
        """Build the examples of some inputs."""
        with tf.name_scope("batch"):
            return self.gather(of_batch)

    def start(self, session: tf.Session, first_batch: int, coord: tf.train.Coordinator | None = None) -> None:
        """Let a session draw, until `coord` stops; a worker's own stream begins with batch `first_batch`."""
        first_example = first_batch * self.inputs.shape[1]
        with self.starting(coord):
            session.run(self.initializer, {**self.feed_dict, self.first_example: first_example})


def signature_of(examples: Any) -> Any:
    """Return the columns of one example, in the structure that `examples` have."""
    return tf.nest.map_structure(lambda part: tf.TensorSpec(part.shape[1:], tf.as_dtype(part.dtype)), tuple(examples))


def make_iterator(dataset: tf.data.Dataset, num_threads: int = 0, shared_name: str | None = None) -> Any:
    """Make an iterator, which may have threads of its own. With a name, it stays when a session ends.

    There is nothing to tune, and closing a session would wait for the autotuner's thread, which may sleep a minute.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    if num_threads:
        options.threading.private_threadpool_size = num_threads
    return tf.data.make_initializable_iterator(dataset.with_options(options), shared_name)


def make_counter(name: str) -> tf.Variable:
    """Make what counts on ps 0 what is dealt out, int64 [].

    It is a variable of the model: so a checkpoint has it, and whoever restores the parameters goes on where they were.
    """
    with tf.device("/job:ps/task:0"), tf.name_scope("sharding/"):
        return tf.Variable(tf.zeros([], tf.int64), trainable=False, name=name)


def build_next_number(name: str) -> tf.Tensor:
    """Build the next of the numbers that ps 0 deals out, int64 []; each evaluation takes a new one.

    Counting is one op on the ps, which no other worker can come between: `assign_add()` would read the sum with another
    op.
    """
    counter = make_counter(name)
    with tf.device(counter.device):
        return tf.raw_ops.ResourceCountUpTo(resource=counter.handle, limit=tf.int64.max, T=tf.int64)


def describe_not_finite(columns: Columns) -> str:
    """Return which columns of some examples have NaN or infinity, and in how many; "" if none has."""
    names = getattr(columns, "_fields", range(len(columns)))
    counts = {
        name: np.count_nonzero(~np.isfinite(column.reshape(len(column), -1)).all(axis=1))
        for name, column in zip(names, columns, strict=True)
        if column.dtype.kind == "f"
    }
    return ", ".join(f"{name} in {count} of {len(columns[0])} examples" for name, count in counts.items() if count)


def compute_checksum(columns: Columns) -> int:
    """Return the CRC-32 of examples in their order, which tells them from others, in any process."""

    def add(checksum: int, column: npt.NDArray[Any]) -> int:
        if column.dtype.hasobject:  # such as strings: what lies in the array are their addresses
            return zlib.crc32(repr(column.tolist()).encode(errors="surrogatepass"), checksum)
        return zlib.crc32(np.ascontiguousarray(column).data, checksum)

    return functools.reduce(add, columns, 0)
