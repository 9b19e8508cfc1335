"""Examples that come through `tf.data` as they are needed, such as those of TFRecord files."""

import contextlib
import copy
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import tensorflow.compat.v1 as tf
from absl import logging

from runtime.data.files import CPU
from runtime.data.order import build_numbers, build_seed, shuffle
from runtime.data.reader import Batches, Columns, make_counter, make_iterator
from runtime.process.errors import DataLostError, UnusableError, reason
from runtime.process.phases import PYTHON
from runtime.process.threads import PASSING, reminding

WINDOW_BYTES, MIN_WINDOW, MAX_WINDOW = 1 << 25, 16, 1 << 14  # of the examples that are shuffled together
ALL = tf.int64.max
NUM_THREADS = 4  # that read
MAX_LOADED = 1 << 24  # examples to test with
MAX_PIECES = 1 << 8  # that are dealt out in an epoch: of more files, a piece is several
untouched = tf.autograph.experimental.do_not_convert  # no control flow is to convert, and looking for it takes time

# From numbers, int64 [n], of files or of parts of files, to a `tf.data.Dataset` of what is in them.
Open = Callable[[Any], Any]


class PipelineSource:
    """Examples that are read as they are needed, with the methods of `MemorySource`.

    They come in windows, as many as fit into some memory, and are shuffled in these.
    """

    signature: Any  # the columns of one example, in a structure
    description: str  # tells these examples from others, by what can be compared without reading all
    _where: str  # names them in messages
    _place = "mnist_input.py"  # where the function begins that makes them
    _num_bytes: int  # of an example
    _names: Sequence[str]  # of the files; "": they are not known, and all counts as one
    _numbers: npt.NDArray[np.int64]  # of the parts of files that this share has
    _num_parts = 1  # in which each file is cut: a part is every n-th example
    _hold: Any = None  # deals them out
    _to_columns: Callable[[list[Any]], Columns] = list  # makes what a user's function returns
    _stream: int | None = None  # the index of the worker whose share this is; None: it is dealt out
    _has_read = False

    def share(self, index: int, num_workers: int, hold: Any = None) -> Any:
        """Return what one of several workers reads: files of its own, or of few files every n-th example.

        With `hold`, it reads the pieces that `hold.take()` returns: files, or parts of few, two for each worker.

        Raises:
          UnusableError: there is no example for this worker, or nothing that can be dealt out.
        """
        if hold and not self._names[0]:
            raise UnusableError(
                "--sharding=dynamic hands out files, but build_dataset() in mnist_input.py does not say which it reads:"
                " name them in list_files(), or give --sharding=static"
            )
        share, num_files = copy.copy(self), len(self._names)
        if num_files < num_workers * (2 if hold else 1):
            share._num_parts = -(2 * num_workers // -num_files) if hold else num_workers
            if self._names[0]:
                what = f"each {'shard is' if hold else 'worker reads'} one in {share._num_parts} examples of a file"
                logging.info("%d files for %d workers: %s", num_files, num_workers, what)
        elif not hold and not index:
            self._warn_of_unequal_shares(num_workers)
        numbers = np.arange(num_files * share._num_parts)
        share._hold, share._stream = hold, None if hold else index
        share._numbers = numbers if hold else numbers[index::num_workers]
        if not share._read(lambda: share._make_open()(tf.constant(share._numbers)).take(1)):
            few = f"{self._where} cannot be shared by {num_workers} workers"
            raise UnusableError(f"{few}: there are too few; use fewer workers")
        return share

    def _warn_of_unequal_shares(self, num_workers: int) -> None:
        with contextlib.suppress(OSError):  # a file may be no local one
            sizes = [os.path.getsize(name) for name in self._names]
            in_all = [sum(sizes[worker::num_workers]) for worker in range(num_workers)]
            least, most = np.argmin(in_all), np.argmax(in_all)
            if 2 * in_all[least] < in_all[most]:
                found = f"{in_all[least]} bytes for worker {least}, {in_all[most]} for worker {most}"
                told = "the files make unequal shares, %s: give --sharding=dynamic, or files of one size"
                logging.warning(told, found)

    def _read(self, build: Callable[[], tf.data.Dataset]) -> list[Any]:
        """Return the first element of a dataset, or nothing if it has none."""
        with tf.Graph().as_default(), tf.Session(config=CPU) as session:
            iterator = make_iterator(build())
            parts = tf.nest.flatten(iterator.get_next())
            try:
                session.run([tf.tables_initializer(), iterator.initializer])
                return list(session.run(parts))
            except tf.errors.OutOfRangeError:
                return []
            except tf.errors.OpError as error:
                raise UnusableError(self._tell_fault(error)) from error

    def load(self, num_examples: int = MAX_LOADED + 1) -> Columns:
        """Return all examples, or the first ones, in memory.

        Raises:
          UnusableError: one cannot be read, or there is none.
        """
        with reminding(f"still reading {self._where}", "what mnist_input.py reads"):
            columns = self._read(lambda: self._to_batch(self._make_open()(tf.constant(self._numbers)), num_examples))
        if columns and len(columns[0]) <= MAX_LOADED:
            return self._to_columns(columns)
        found = f"there are more than {MAX_LOADED}, too many to test with" if columns else "there are none"
        raise UnusableError(f"{self._where} cannot be used: {found}; correct mnist_input.py, or what it reads")

    def draw(self, num_batches: int, batch_size: int, seed: int) -> Batches:
        """Build what reads the examples of all runs, ahead while the worker computes."""
        first, run_size = tf.placeholder(tf.int64, [], "first_example"), num_batches * batch_size
        self._window_size = min(max(WINDOW_BYTES // max(self._num_bytes, 1), MIN_WINDOW), MAX_WINDOW)
        graph, device = first.graph, first.device

        def place(op: tf.Operation) -> str:
            """Place Python functions inside of datasets, which TensorFlow ties to a server that is not there."""
            if op.graph is graph:
                return op.device or device
            return "" if op.type in PYTHON else op.device

        with tf.device(None), tf.device(place):
            runs = self._to_runs(self._build_windows(self._make_open(), first, seed), run_size).prefetch(1)
            # It may wait for a disk, and no thread that computes shall. A session that took it along would wait for
            # what it reads ahead, in Python functions too; and those of a closing session wait for TensorFlow's lock.
            iterator = make_iterator(runs, NUM_THREADS, shared_name=uuid.uuid4().hex)
        parts = tf.nest.flatten(iterator.get_next())
        num_drawn = _make_variable([], tf.int64)
        integers = {n: part for n, part in enumerate(parts) if part.dtype.is_integer and part.shape.rank == 1}
        seen = {number: _make_variable([run_size], part.dtype) for number, part in integers.items()}
        notes = [of.assign(tf.ensure_shape(integers[n], of.shape), read_value=False) for n, of in seen.items()]
        with tf.control_dependencies([*parts, *notes]):
            count = num_drawn.assign_add(1, read_value=False)
        with tf.control_dependencies([count]):
            parts = [tf.ensure_shape(part, [run_size, *part.shape[1:]]) for part in parts]

        def gather(numbers: tf.Tensor) -> list[tf.Tensor]:
            with parts[0].graph.colocate_with(parts[0].op):  # only the batch goes elsewhere
                return [tf.gather(part, numbers) for part in parts]

        inputs = tf.reshape(tf.range(run_size), [num_batches, batch_size])
        initializer = tf.group(iterator.initializer, num_drawn.initializer, [of.initializer for of in seen.values()])
        return Batches(inputs, gather, self.signature, parts, first, initializer, {}, self._starting, num_drawn, seen)

    def _build_windows(self, open_parts: Open, first: tf.Tensor, seed: int) -> tf.data.Dataset:
        """Build windows without end, but for `first` examples, int64 [], which are left out.

        If there are any, as many examples are counted, or all of an epoch: then whole epochs need not be read.
        """
        if self._hold:
            return self._build_windows_dealt_out(open_parts, seed)
        numbers, zero = tf.constant(self._numbers), tf.zeros([], tf.int64)
        add = untouched(lambda count, *of: count + tf.shape(tf.nest.flatten(of)[0], out_type=tf.int64)[0])
        enough = self._to_windows(open_parts(numbers)).take(first // self._window_size + 1)
        size = tf.cond(first > 0, lambda: tf.maximum(enough.reduce(zero, add), 1), lambda: zero + 1)
        first_epoch, num_left_out = first // size, first % size

        @untouched
        def build_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
            is_some = open_parts(numbers).take(1).reduce(False, lambda *_: True)  # or this would search for ever
            with tf.control_dependencies([tf.debugging.Assert(is_some, ["no example is left"])]):
                of_epoch = build_seed(seed, self._stream, epoch)
            windows = self._to_windows(open_parts(shuffle(numbers, of_epoch)))
            return self._mix(windows, of_epoch, tf.where(epoch > first_epoch, zero, num_left_out))

        return tf.data.Dataset.range(first_epoch, ALL).flat_map(build_epoch)

    def _build_windows_dealt_out(self, open_parts: Open, seed: int) -> tf.data.Dataset:
        """Build windows of the pieces that ps 0 deals out, without end."""
        counter, num_parts = make_counter("pieces_dealt_out"), len(self._numbers)
        size = -(num_parts // -MAX_PIECES)

        def take() -> Any:
            is_over = self._coord.should_stop if self._coord else bool
            return np.int64(self._hold.take(counter.op.name, is_over))

        def note(piece: Any) -> None:
            more = f" and {len(piece) - 1} more" if len(piece) > 1 else ""
            self._hold.note(self._names[piece[0] // self._num_parts] + more)

        @untouched
        def build_piece(_: tf.Tensor) -> tf.data.Dataset:
            number = tf.ensure_shape(tf.numpy_function(take, [], tf.int64), [])
            piece = build_numbers(number * size, size, num_parts, seed, None)
            with tf.control_dependencies([tf.numpy_function(note, [piece], [])]):
                piece = tf.identity(piece)
            return self._mix(self._to_windows(open_parts(piece)), build_seed(seed, None, number))

        return tf.data.Dataset.range(ALL).flat_map(build_piece)

    def _mix(self, windows: tf.data.Dataset, seed: tf.Tensor, num_left_out: Any = 0) -> tf.data.Dataset:
        """Shuffle each window, and leave out the first examples."""

        @untouched
        def mix(number: tf.Tensor, window: Any) -> Any:
            of_window = tf.random.experimental.stateless_fold_in(seed, number)
            start = tf.maximum(num_left_out - number * self._window_size, 0)
            return tf.nest.map_structure(lambda part: shuffle(part, of_window)[start:], window)

        return windows.enumerate().map(mix)

    def _make_open(self) -> Open:
        """Build the data set, and return what builds parts of it."""
        raise NotImplementedError

    def _to_batch(self, examples: tf.data.Dataset, size: int) -> tf.data.Dataset:
        """Build the columns of the first `size` examples, as one element."""
        raise NotImplementedError

    def _to_windows(self, examples: tf.data.Dataset) -> tf.data.Dataset:
        raise NotImplementedError

    def _to_runs(self, windows: tf.data.Dataset, size: int) -> tf.data.Dataset:
        """Build the columns of runs of `size` examples each."""
        raise NotImplementedError

    @contextlib.contextmanager
    def _starting(self, coord: tf.train.Coordinator | None) -> Iterator[None]:
        """Note until when a session draws. When a run goes on, examples of this share are counted before the first."""
        with reminding("still stopping the read-ahead, or counting the examples of this share", self._where):
            try:
                yield
            except tf.errors.OpError as error:
                self._raise_fault(error)
        self._coord = coord  # now that what has read ahead for an earlier one has ended

    @contextlib.contextmanager
    def telling_faults(self) -> Iterator[None]:
        """Tell which file, and which record in it, is at fault where a step fails since its examples cannot be read.

        Raises:
          UnusableError: before the first step.
          DataLostError: after it.
        """
        try:
            yield
            self._has_read = True
        except tf.errors.OpError as error:
            if "IteratorGetNext" not in error.message:
                raise
            self._raise_fault(error)

    def _raise_fault(self, error: tf.errors.OpError) -> NoReturn:
        if isinstance(error, PASSING):
            raise error
        raise (DataLostError if self._has_read else UnusableError)(self._tell_fault(error)) from error

    def _tell_fault(self, error: tf.errors.OpError) -> str:
        with reminding("still searching for the unreadable example", self._where):
            what = f"{self._where} cannot be read ({reason(error)}); correct {self._place}, or what it reads"
            return self._find_fault() or what

    def _find_fault(self) -> str:
        """Return which file, and which record in it, is at fault; "" if nobody can tell."""
        return ""


def _make_variable(shape: Sequence[int], dtype: tf.DType) -> tf.Variable:
    return tf.Variable(tf.zeros(shape, dtype), trainable=False, collections=[])
