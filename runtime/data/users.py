"""Examples of a data set that a user builds: `build_dataset()` in `mnist_input.py`."""

import itertools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from runtime.data.pipeline import Open, PipelineSource, untouched
from runtime.data.reader import compute_checksum, signature_of
from runtime.model.users_files import check_columns
from runtime.process.errors import UnusableError

NUM_SAMPLED = 64  # examples that tell this data set from others, and how much memory one takes
# What a user's pipeline must leave to the program: what the op begins with, and the call that makes it.
REFUSED = {"Repeat": "repeat()", "Batch": "batch()", "ParallelBatch": "batch()", "PaddedBatch": "padded_batch()"}
REFUSED |= {"ShuffleAndRepeat": "shuffle_and_repeat()", "MapAndBatch": "map_and_batch()"}
REFUSED["Shuffle"] = "shuffle() (list_files(), too, must have shuffle=False)"


class UsersSource(PipelineSource):
    """Examples of the data set that a user's `build_dataset()` returns, one by one."""

    def __init__(self, build: Callable[[], Any], spec: Any, where: str):
        """Take `build`, which is called in each graph that needs it; `spec` is INPUT.

        Raises:
          UnusableError: it returns something else, or nothing can be read.
        """
        self._build, self._where = build, where
        sample, again = (self.load(NUM_SAMPLED) for _ in range(2))
        found, names = self.signature[0], sorted(spec) if isinstance(spec, Mapping) else []
        if (sorted(found) if isinstance(found, Mapping) else []) != names:
            raise UnusableError(
                f"mnist_input.py: build_dataset() must return pairs of inputs and labels, with {names or 'one tensor'}"
                f" as inputs, as INPUT says, found {[*found] if isinstance(found, Mapping) else 'one tensor'}"
            )
        in_order = {name: spec[name] for name in names} or spec  # as the columns of a dict are
        check_columns(tf.nest.flatten(found), in_order, where)
        num_bytes = [part.nbytes if part.dtype != object else sum(map(len, part.flat)) for part in sample]
        self._num_bytes, checksum = sum(num_bytes) // len(sample[0]), compute_checksum(sample)
        is_random = self._is_random or compute_checksum(again) != checksum  # as what a Python function draws
        first_ones = "random" if is_random else f"{checksum:08x}"
        self.description = f"(a data set of build_dataset(), CRC-32 of the first examples {first_ones})"

    def share(self, index: int, num_workers: int, hold: Any = None) -> "UsersSource":
        """Return every n-th example from `index` on.

        Raises:
          UnusableError: there is none, or pieces shall be dealt out.
        """
        if hold:
            raise UnusableError(
                "--sharding=dynamic deals out files, which cannot be seen in the data set that build_dataset() in"
                " mnist_input.py returns: give --sharding=static, or let FEATURES say what is in TFRecord files"
            )
        return self._share(index, num_workers, [index], num_workers)

    def _make(self) -> Any:
        """Build the data set, of tuples of dense tensors in any structure."""
        dataset = self._build()
        if not hasattr(dataset, "element_spec"):
            raise UnusableError(
                f"mnist_input.py: build_dataset() must return a tf.data.Dataset, found {type(dataset).__name__}"
            )
        op, calls, is_apart = tf.data.experimental.to_variant(dataset).op, set[str](), False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TensorFlow's, about options in a graph
            has_order = dataset.options().deterministic is not False
        while op.inputs and op.inputs[0].dtype == tf.variant:
            is_apart |= op.type == "UnbatchDataset"  # what made batches before that has done no harm
            found = {call for begin, call in REFUSED.items() if op.type.startswith(f"{begin}Dataset")}
            calls |= {call for call in found if not (is_apart and "batch" in call)}
            has_order &= op.node_def.attr["deterministic"].s != b"false"
            op = op.inputs[0].op
        if not has_order:
            calls.add("deterministic=False")
        if calls:
            raise UnusableError(
                "mnist_input.py: build_dataset() must return single examples, each once and always in the same order:"
                f" leave out {', '.join(sorted(calls))}. The program shares, shuffles, repeats, makes batches and"
                " prefetches"
            )

        def to_dense(part: Any) -> Any:
            part = part.to_sparse() if isinstance(part, tf.RaggedTensor) else part
            return tf.sparse.to_dense(part) if isinstance(part, tf.SparseTensor) else part

        return dataset.map(untouched(lambda *parts: tf.nest.map_structure(to_dense, parts)))

    def _make_open(self) -> Open:
        dataset = self._make()
        return lambda numbers: dataset.shard(self._num_parts, self._numbers[0])

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
