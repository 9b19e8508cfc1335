"""How parameters and gradients travel between a worker and the ps tasks: packed, one message for each ps each way.

A step of a small model costs messages, not bytes. The variables stay as they are, each with its own name, place and
entry in the checkpoints; only what travels is packed.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow.compat.v1 as tf


class Packing:
    """The parameters on the ps tasks, and how they become vectors: for each ps one, of all that it holds."""

    def __init__(self, variables: Sequence[tf.Variable]):
        """Pack `variables`, float32, by their devices."""
        self._variables: dict[str, list[tf.Variable]] = {}
        for variable in variables:
            self._variables.setdefault(variable.device, []).append(variable)

    def read(self) -> list[tf.Tensor]:
        """Build what the parameters are now: float32 [size] for each ps, on it."""
        vectors = []
        for device, variables in self._variables.items():
            with tf.device(device):
                vectors.append(tf.concat([tf.reshape(v.read_value(), [-1]) for v in variables], axis=0))
        return vectors

    def split(self, vectors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Build the part of `vectors` that belongs to each variable, in its shape: ps by ps, as they are packed."""
        return [
            part
            for vector, variables in zip(vectors, self._variables.values(), strict=True)
            for part in _split(vector, variables)
        ]

    def pack(self, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Build vectors, float32 [size] for each ps, of parts such as `split()` returns."""
        vectors, left = [], iter(parts)
        for variables in self._variables.values():
            vectors.append(tf.concat([tf.reshape(next(left), [-1]) for _ in variables], axis=0))
        return vectors

    def unpack(self, vectors: Sequence[tf.Tensor]) -> list[tuple[tf.Tensor, tf.Variable]]:
        """Build each variable's part of `vectors`, such as gradients, with the variable and on its ps."""
        pairs: list[tuple[tf.Tensor, tf.Variable]] = []
        for vector, (device, variables) in zip(vectors, self._variables.items(), strict=True):
            with tf.device(device):
                pairs += zip(_split(vector, variables), variables, strict=True)
        return pairs

    @contextlib.contextmanager
    def replaced_by(self, parts: Sequence[tf.Tensor]) -> Iterator[None]:
        """Let `tf.get_variable` return `parts`, such as `split()` returns, instead of the variables."""
        names = [variable.op.name for variables in self._variables.values() for variable in variables]
        replacements = dict(zip(names, parts, strict=True))

        def get_part(getter: Callable[..., Any], *args: Any, **kwargs: Any) -> tf.Tensor:
            variable = getter(*args, **kwargs)
            if isinstance(variable, tf.compat.v2.Variable):
                return replacements[variable.op.name]
            return tf.concat([replacements[slice_.op.name] for slice_ in variable], axis=0)  # it is partitioned

        with tf.variable_scope(tf.get_variable_scope(), reuse=True, custom_getter=get_part):
            yield


def _split(vector: tf.Tensor, variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    """Build the part of `vector`, float32 [size], that belongs to each of the variables, in its shape."""
    parts = tf.split(vector, [variable.shape.num_elements() for variable in variables])
    return [tf.reshape(part, variable.shape) for part, variable in zip(parts, variables, strict=True)]
