"""How parameters and gradients travel between a worker and the ps tasks: packed, one message for each ps each way.

A step of a small model costs messages, not bytes. Only what travels is packed: each variable keeps its own name, its
place and its entry in the checkpoints.
"""

import itertools
from collections.abc import Mapping, Sequence

import tensorflow.compat.v1 as tf

BASE = 256  # of the digits of a count


class Packing:
    """The parameters on the ps tasks, and how they become vectors: one for each ps, of everything that it holds.

    A vector is made of parts. A part belongs to a variable or, where a parameter is split over the ps tasks, to one of
    its slices. Parts are in the order of the vectors: ps by ps.
    """

    def __init__(self, parameters: Mapping[str, tf.Variable]):
        """Pack `parameters`, float32, by their devices; a partitioned one is a list of slices."""
        self._slices = {
            name: [parameter] if isinstance(parameter, tf.compat.v2.Variable) else list(parameter)
            for name, parameter in parameters.items()
        }
        self.variables: dict[str, list[tf.Variable]] = {}  # by the device of their ps
        for slices in self._slices.values():
            for variable in slices:
                self.variables.setdefault(variable.device, []).append(variable)
        global_step = tf.train.get_global_step()
        if global_step is not None:  # its ps takes part even if it holds nothing else
            self.variables.setdefault(global_step.device, [])

    def read(self, after: Sequence[Sequence[tf.Tensor]] = ()) -> list[tf.Tensor]:
        """Build the parameters as they are now, or after what is given for each ps: float32 [size] for each, on it."""
        vectors = []
        for variables, device, previous in itertools.zip_longest(self.variables.values(), self.variables, after):
            with tf.device(device), tf.control_dependencies(previous), tf.name_scope("read"):
                vectors.append(_join([variable.read_value() for variable in variables]))
        return vectors

    def split(self, vectors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Build the parts of `vectors`, each in the shape of its variable."""
        return [
            part
            for vector, variables in zip(vectors, self.variables.values(), strict=True)
            for part in split_vector(vector, variables)
        ]

    def pack(self, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Build vectors, float32 [size] for each ps, of `parts`."""
        remaining = iter(parts)
        return [_join([next(remaining) for _ in variables]) for variables in self.variables.values()]

    def by_name(self, parts: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
        """Build whole parameters of `parts`, under the names of the parameters that were packed."""
        variables = [variable for of_ps in self.variables.values() for variable in of_ps]
        of_variable = {variable.ref(): part for variable, part in zip(variables, parts, strict=True)}
        return {
            name: tf.concat([of_variable[v.ref()] for v in slices], axis=0)
            if len(slices) > 1
            else of_variable[slices[0].ref()]
            for name, slices in self._slices.items()
        }


def split_vector(vector: tf.Tensor, variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    """Build the part of `vector`, float32 [size], that belongs to each of the variables, in its shape."""
    if not variables:
        return []
    with tf.name_scope("split"):
        parts = tf.split(vector, [variable.shape.num_elements() for variable in variables])
        return [tf.reshape(part, variable.shape) for part, variable in zip(parts, variables, strict=True)]


def send(vectors: Sequence[tf.Tensor], dtype: tf.DType) -> list[tf.Tensor]:
    """Build, where `vectors`, float32, are, the messages as which they travel: of that `dtype`."""
    messages = []
    for vector in vectors:
        with tf.device(vector.device):
            messages.append(tf.cast(vector, dtype))
    return messages


def _join(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """Build a vector, float32 [size], of `parts`."""
    with tf.name_scope("join"):
        return tf.concat([tf.reshape(part, [-1]) for part in parts], axis=0) if parts else tf.zeros([0])


def append_count(vector: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Build `vector`, float32 or bfloat16 [size], with `count`, int64 [] below 2**24, at its end: [size + 3].

    The count takes three digits of base 256, since bfloat16 too has a place for each of these.
    """
    digits = tf.stack([count // BASE**2, count // BASE % BASE, count % BASE])
    return tf.concat([vector, tf.cast(digits, vector.dtype)], axis=0)


def remove_count(vector: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Build the vector and the count that `append_count()` has joined."""
    high, middle, low = tf.unstack(tf.cast(vector[-3:], tf.int64))
    return vector[:-3], (high * BASE + middle) * BASE + low
