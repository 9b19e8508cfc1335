"""How parameters and gradients travel between a worker and the ps tasks: packed, one message for each ps each way.

A step of a small model costs messages, not bytes. Only what travels is packed: each variable keeps its own name, its
place and its entry in the checkpoints.
"""

from collections.abc import Mapping, Sequence

import tensorflow.compat.v1 as tf


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
        self._variables: dict[str, list[tf.Variable]] = {}
        for slices in self._slices.values():
            for variable in slices:
                self._variables.setdefault(variable.device, []).append(variable)

    def read(self) -> list[tf.Tensor]:
        """Build the parameters as they are now: float32 [size] for each ps, on it."""
        vectors = []
        for device, variables in self._variables.items():
            with tf.device(device):
                vectors.append(tf.concat([tf.reshape(v.read_value(), [-1]) for v in variables], axis=0))
        return vectors

    def split(self, vectors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Build the parts of `vectors`, each in the shape of its variable."""
        return [
            part
            for vector, variables in zip(vectors, self._variables.values(), strict=True)
            for part in _split(vector, variables)
        ]

    def pack(self, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Build vectors, float32 [size] for each ps, of `parts`."""
        vectors, remaining = [], iter(parts)
        for variables in self._variables.values():
            vectors.append(tf.concat([tf.reshape(next(remaining), [-1]) for _ in variables], axis=0))
        return vectors

    def unpack(self, vectors: Sequence[tf.Tensor]) -> list[tuple[tf.Tensor, tf.Variable]]:
        """Build the parts of `vectors`, such as gradients, each with its variable and on its ps."""
        pairs: list[tuple[tf.Tensor, tf.Variable]] = []
        for vector, (device, variables) in zip(vectors, self._variables.items(), strict=True):
            with tf.device(device):
                pairs += zip(_split(vector, variables), variables, strict=True)
        return pairs

    def by_name(self, parts: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
        """Build whole parameters of `parts`, under the names of the parameters that were packed."""
        variables = [variable for of_ps in self._variables.values() for variable in of_ps]
        of_variable = {variable.ref(): part for variable, part in zip(variables, parts, strict=True)}
        return {
            name: tf.concat([of_variable[v.ref()] for v in slices], axis=0)
            if len(slices) > 1
            else of_variable[slices[0].ref()]
            for name, slices in self._slices.items()
        }


def _split(vector: tf.Tensor, variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    """Build the part of `vector`, float32 [size], that belongs to each of the variables, in its shape."""
    parts = tf.split(vector, [variable.shape.num_elements() for variable in variables])
    return [tf.reshape(part, variable.shape) for part, variable in zip(parts, variables, strict=True)]
