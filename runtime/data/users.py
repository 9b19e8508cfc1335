"""Examples of a data set that a user builds: `build_dataset()` in `mnist_input.py`, of the files of `list_files()`."""

import contextlib
import itertools
import os
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow.compat.v1 as tf

from runtime.data.files import CPU
from runtime.data.pipeline import Open, PipelineSource, untouched
from runtime.data.reader import compute_checksum, signature_of
from runtime.model.users_files import call, check_columns, describe, place_of
from runtime.process.errors import UnusableError, reason

NUM_SAMPLED = 64  # examples that tell this data set from others, and how much memory one takes
# What a user's pipeline must leave to the program: what the op begins with, and the call that makes it.
REFUSED = {"Repeat": "repeat()", "Batch": "batch()", "ParallelBatch": "batch()", "PaddedBatch": "padded_batch()"}
REFUSED |= {"ShuffleAndRepeat": "shuffle_and_repeat()", "MapAndBatch": "map_and_batch()"}
REFUSED["Shuffle"] = "shuffle() (tf.data.Dataset.list_files() needs shuffle=False)"
REFUSED["Cache"] = "cache(FILE) (cache() without a file is accepted)"  # the file would have the examples of one part


def _caches_in_memory(op: tf.Operation) -> bool:
    return op.type.startswith("Cache") and tf.get_static_value(op.inputs[1]) == b""


class UsersSource(PipelineSource):
    """Examples of the data set that a user's `build_dataset()` returns, one by one.

    Where `list_files()` says which files it reads, each worker reads its own, and they are permuted in each epoch.
    """

    def __init__(self, reader: Any, data_dir: str, split: str, where: str):
        """Take the functions of `reader`; `build_dataset()` is called in each graph that needs it.

        Raises:
          UnusableError: one returns something else, or nothing can be read.
        """
        self._where, self._columns, is_single = where, list[Any](), True
        if hasattr(reader, "list_files"):
            files = call(reader, "list_files", data_dir, split)
            is_single = not isinstance(files, tuple)
            self._columns = _to_columns(files, place_of(reader, "list_files"), where)
        self._names = [os.fsdecode(name) for name in self._columns[0]] if self._columns else [""]
        self._numbers = np.arange(len(self._names))

        def build(*columns: tf.Tensor) -> Any:
            files = tf.data.Dataset.from_tensor_slices(columns[0] if is_single else columns) if columns else data_dir
            return call(reader, "build_dataset", files, split)

        self._build, self._place, spec = build, place_of(reader, "build_dataset"), reader.INPUT
        sample, again = (self.load(NUM_SAMPLED) for _ in range(2))
        found, names = self.signature[0], sorted(spec) if isinstance(spec, Mapping) else []
        if (sorted(found) if isinstance(found, Mapping) else []) != names:
            expected = f"pairs of inputs and labels, with {names or 'one tensor'} as inputs, as INPUT says"
            inputs = [*found] if isinstance(found, Mapping) else "one tensor"
            raise UnusableError(f"{self._place} must return {expected}, found {inputs}")
        in_order = {name: spec[name] for name in names} or spec  # as the columns of a dict are
        check_columns(tf.nest.flatten(found), in_order, where)
        num_bytes = [part.nbytes if part.dtype != object else sum(map(len, part.flat)) for part in sample]
        self._num_bytes, checksum = sum(num_bytes) // len(sample[0]), compute_checksum(sample)
        is_random = self._is_random or compute_checksum(again) != checksum  # as what a Python function draws
        first_ones = "random" if is_random else f"{checksum:08x}"
        self.description = f"(a data set of build_dataset(), CRC-32 of the first examples {first_ones})"
        if self._columns:
            paths = np.array([name.removeprefix(data_dir) for name in self._names])
            checksum = compute_checksum([paths, *self._columns[1:]])
            self.description += f" ({len(paths)} files, CRC-32 of what list_files() returns {checksum:08x})"

    def _make(self, *columns: tf.Tensor) -> Any:
        """Build the data set of some files, of tuples of dense tensors in any structure."""
        dataset = self._build(*columns)
        if not hasattr(dataset, "element_spec"):
            raise UnusableError(f"{self._place} must return a tf.data.Dataset, found {describe(dataset)}")
        op, calls, is_apart = tf.data.experimental.to_variant(dataset).op, set[str](), False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TensorFlow's, about options in a graph
            has_order = dataset.options().deterministic is not False
        while op.inputs and op.inputs[0].dtype == tf.variant:
            is_apart |= op.type == "UnbatchDataset"  # what made batches before that has done no harm
            found = {call for begin, call in REFUSED.items() if op.type.startswith(f"{begin}Dataset")}
            calls |= {call for call in found if not ((is_apart and "batch" in call) or _caches_in_memory(op))}
            has_order &= op.node_def.attr["deterministic"].s != b"false"
            op = op.inputs[0].op
        if not has_order:
            calls.add("deterministic=False")
        if calls:
            raise UnusableError(
                f"{self._place} must return single examples, each once, in a fixed order: remove"
                f" {', '.join(sorted(calls))}; the program shards, shuffles, repeats, batches and prefetches"
            )

        def to_dense(part: Any) -> Any:
            part = part.to_sparse() if isinstance(part, tf.RaggedTensor) else part
            return tf.sparse.to_dense(part) if isinstance(part, tf.SparseTensor) else part

        dense = dataset.map(untouched(lambda *parts: tf.nest.map_structure(to_dense, parts)))
        if any(shape.rank is None for shape in tf.nest.flatten(tf.data.get_output_shapes(dense))):
            remedy = "call set_shape() on what a Python function returns"
            raise UnusableError(f"{self._place} returns a tensor of unknown rank: {remedy}")
        return dense

    def _make_open(self) -> Open:
        if not self._columns:
            dataset = self._make()
            return lambda numbers: dataset.shard(self._num_parts, self._numbers[0])
        columns = [tf.constant(column) for column in self._columns]

        def open_files(numbers: tf.Tensor) -> tf.data.Dataset:
            return self._make(*(tf.gather(column, numbers) for column in columns))

        def open_part(number: tf.Tensor) -> tf.data.Dataset:
            file, part = [number // self._num_parts], number % self._num_parts
            return open_files(file).shard(self._num_parts, part)

        if self._num_parts == 1:
            return open_files
        return lambda numbers: tf.data.Dataset.from_tensor_slices(numbers).flat_map(untouched(open_part))

    def _to_batch(self, examples: tf.data.Dataset, size: int) -> tf.data.Dataset:
        batch = self._batch(examples.take(size), size)
        self.signature = signature_of(batch.element_spec)
        graph = tf.get_default_graph().as_graph_def()
        nodes = itertools.chain(graph.node, *(function.node_def for function in graph.library.function))
        self._is_random = any("seed2" in node.attr for node in nodes)  # some have few results, often the same one
        return batch

    def _to_windows(self, examples: tf.data.Dataset) -> tf.data.Dataset:
        return self._batch(examples, self._window_size)

    def _to_runs(self, windows: tf.data.Dataset, size: int) -> tf.data.Dataset:
        if all(part.shape.is_fully_defined() for part in tf.nest.flatten(self.signature)):
            return windows.rebatch(size, drop_remainder=True)
        return self._batch(windows.unbatch(), size, drop_remainder=True)

    def _batch(self, examples: tf.data.Dataset, size: int, drop_remainder: bool = False) -> tf.data.Dataset:
        """Put examples into batches, padded if they have several lengths."""
        shapes = tf.data.get_output_shapes(examples)
        if all(shape.is_fully_defined() for shape in tf.nest.flatten(shapes)):
            return examples.batch(size, drop_remainder)
        return examples.padded_batch(size, shapes, drop_remainder=drop_remainder)

    def _find_fault(self) -> str:
        """Read half of the files, again and again, if they are known."""
        if not self._columns:
            return ""
        numbers = sorted({number // self._num_parts for number in self._numbers})
        with tf.Graph().as_default(), tf.Session(config=CPU) as session:
            columns = [tf.placeholder(column.dtype, [None]) for column in self._columns]
            num_read = tf.Variable(tf.zeros([], tf.int64))
            read = self._make(*columns).reduce(num_read.initial_value, untouched(lambda *_: num_read.assign_add(1)))
            session.run(tf.tables_initializer())

            def try_to_read(numbers: list[int]) -> str:
                session.run(num_read.initializer)
                try:
                    session.run(read, {of: rows[numbers] for of, rows in zip(columns, self._columns, strict=True)})
                    return ""
                except tf.errors.OpError as error:
                    return reason(error)

            while len(numbers) > 1:
                half = numbers[: len(numbers) // 2]
                numbers = half if try_to_read(half) else numbers[len(half) :]
            why, name, count = try_to_read(numbers), self._names[numbers[0]], session.run(num_read)
        after = f" after {count} examples" * bool(count)
        return f"{name} cannot be read{after} ({why}); fix it, or exclude it" if why else ""


def _to_columns(files: Any, where: str, of: str) -> list[npt.NDArray[Any]]:
    """Return what `list_files()` has returned as arrays: paths, and what else there is of each file.

    Raises:
      UnusableError: they are none; `where` says of which function, and `of` for which examples.
    """
    columns = () if isinstance(files, str | bytes | Mapping) else files if isinstance(files, tuple) else [files]
    arrays, found = list[Any](), describe(files)
    with contextlib.suppress(TypeError, ValueError, RuntimeError):  # these are no lists of numbers or texts
        rows = [
            [os.fsencode(row) if isinstance(row, str | os.PathLike) else row for row in column] for column in columns
        ]
        arrays = [tf.make_ndarray(tf.make_tensor_proto(column)) for column in rows]  # integers are int32, as ever
        shapes = ", ".join(f"{tf.as_dtype(array.dtype).name} {list(array.shape)}" for array in arrays)
        found = (shapes if any(map(len, arrays)) else f"no path for {of}") if arrays else found
    if not arrays or arrays[0].dtype.kind != "O" or arrays[0].ndim != 1 or len({len(of) for of in arrays}) > 1:
        expected = "a list of paths, or a tuple of columns of equal length, with the paths first"
        raise UnusableError(f"{where} must return {expected}, found {found}")
    return arrays
