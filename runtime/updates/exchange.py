"""The exchange: a worker reads the parameters, computes, and sends the ps tasks something to apply."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from runtime.cluster.task import Task
from runtime.data.reader import Batches, Columns
from runtime.model.roles import SET, SUM
from runtime.model.variables import Parameters
from runtime.updates.packing import Packing, Selection

REPLICATIONS = ("between_graph", "in_graph")

# Builds the loss of a batch, float32 [], and by how much a step of rate 1 lowers each parameter, by name: its gradient.
# It is given the parameters, the examples of the batch, and the samples of its lookups.
GradientsFunction = Callable[[Parameters, Columns, Sequence[tf.Tensor]], tuple[tf.Tensor, Mapping[str, tf.Tensor]]]


class Tower(NamedTuple):
    """A replica of the model, which computes with a part of a batch."""

    share: float = 1.0  # of the examples
    is_last: bool = True


# Builds what a tower adds to a sum, float32 tensors, from what it is given and the inputs of its examples, [n, ...].
Compute = Callable[[Any, tf.Tensor, Tower], Sequence[tf.Tensor]]


class Work(NamedTuple):
    """What a worker computes, of what, and where."""

    packing: Packing  # of the parameters
    gradients: GradientsFunction
    batches: Batches
    dtype: tf.DType  # in which gradients travel
    devices: Sequence[str]  # where they are computed
    clip_norm: float | None = None  # of the gradients of each tower, together; state is not clipped

    def build_gradients(
        self, parameters: Parameters, inputs: tf.Tensor, tower: Tower, samples: Sequence[tf.Tensor] = ()
    ) -> list[tf.Tensor]:
        """Build a tower's part of the loss, float32 [], and of what lowers each of the parameters, in their order."""
        loss, lowers = self.gradients(parameters, self.batches.columns(inputs), samples)
        if self.clip_norm is not None:
            names = [name for name in lowers if name not in self.packing.state]
            clipped, _ = tf.clip_by_global_norm([lowers[name] for name in names], self.clip_norm)
            lowers = {**lowers, **dict(zip(names, clipped, strict=True))}
        parts = {name: _take_part(lower, self.packing.state.get(name), tower) for name, lower in lowers.items()}
        return [_take_part(loss, None, tower), *(parts[name] for name in self.packing.names)]


def _take_part(value: tf.Tensor, kind: str | None, tower: Tower) -> tf.Tensor:
    """Build what a tower adds; of state of a kind, it comes together as with several workers: see `Change`."""
    if tower.share == 1 or kind == SUM:
        return value
    if kind == SET:
        return value if tower.is_last else tf.zeros_like(value)
    return tower.share * value


class Exchange(NamedTuple):
    """What a worker sends to the ps tasks."""

    gradients: list[tf.Tensor]  # packed, [size] for each ps, on the worker, of the type in which they travel
    num_steps: tf.Tensor | None  # int64 [], how many local steps the gradients stand for; None: always 1
    loss: tf.Tensor  # float32 [], of the last of these steps; 0 if there is none
    selection: Selection  # the rows of tables among the gradients

    def receive(self, ps: int, device: str, after: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Build, on a ps, its gradient, float32, and the number of steps, as they are once `after` is there."""
        message, num_words = self.gradients[ps], 0
        if self.num_steps is not None:  # it travels along, bit by bit
            words = tf.bitcast(self.num_steps, message.dtype)
            message, num_words = tf.concat([message, words], axis=0), words.shape[0]
        with tf.device(device):
            with tf.control_dependencies([after]):
                received = tf.identity(message)
            if not num_words:
                return tf.cast(received, tf.float32), tf.constant(1, tf.int64)
            return tf.cast(received[:-num_words], tf.float32), tf.bitcast(received[-num_words:], tf.int64)


# Builds an exchange: see `GradientExchangeBuilder.build_exchange()`.
ExchangeFunction = Callable[[Sequence[tf.Tensor], Selection, Sequence[Exchange], int], Exchange]


class GradientExchangeBuilder:
    """Builds exchanges of one batch each: that of an exchange has the exchange's number."""

    def __init__(self, work: Work):
        self._work = work
        # Unstack here, where nothing is waited for: inside an exchange it would run before the gradients are sent.
        self._batches = tf.unstack(work.batches.inputs)
        self._last_gradients: list[tf.Tensor] = []

    def build_exchange(
        self, vectors: Sequence[tf.Tensor], selection: Selection, pending: Sequence[Exchange], number: int
    ) -> Exchange:
        """Build what a worker computes between reading the parameters and sending something back.

        Args:
          vectors: the parameters, packed, on the ps tasks.
          selection: the rows of tables among them.
          pending: the exchanges of this worker that `vectors` do not have yet.
          number: of this exchange in the run, from 0.
        """
        assert not pending, "a classic step reads everything that this worker has done before"
        # Gather a batch when its turn comes: the batches of a whole run would not stay in the cache.
        with tf.control_dependencies(self._last_gradients):
            inputs = tf.identity(self._batches[number])
        messages = []
        for vector in vectors:
            with tf.device(vector.device):
                messages.append(tf.cast(vector, self._work.dtype))
        loss, *gradients = add_up(
            self._work.devices, self._compute, (messages, selection.ids, selection.samples), inputs
        )
        self._last_gradients = [tf.cast(gradient, self._work.dtype) for gradient in gradients]
        # Of the ops that are ready, TensorFlow runs the cheap ones first. A reshape takes no time, so the gradients
        # leave before the next batch is gathered, which becomes ready at the same moment.
        sent = [tf.reshape(gradient, [-1]) for gradient in self._last_gradients]
        return Exchange(sent, None, loss, selection)

    def _compute(self, given: Sequence[Sequence[tf.Tensor]], inputs: tf.Tensor, tower: Tower) -> list[tf.Tensor]:
        """Build a tower's part of the loss, and of the packed gradients, of messages, the ids of rows, and samples."""
        packing, (messages, ids, samples) = self._work.packing, given
        vectors = [tf.cast(message, tf.float32) for message in messages]
        loss, *gradients = self._work.build_gradients(packing.unpack(vectors, ids), inputs, tower, samples)
        with tf.control_dependencies([loss]):  # a ps without parameters, too, counts the step when it is computed
            return [loss, *packing.pack(gradients, ids)]


class Updates(NamedTuple):
    """What a worker runs to take its steps, and what its sessions need for that."""

    train_op: list[tf.Operation]  # one for each ps: a common one would need a message from each
    num_steps: tf.Tensor  # int64 [], local steps in one run of `train_op`
    loss: tf.Tensor  # float32 [], of one of these; 0 if there is none
    global_step: tf.Tensor  # int64 [], as it is after the run
    last_step: tf.Tensor  # int64 [], at which training ends; 0 once the model is good enough; also after the run
    last_step_now: tf.Variable
    unsaved_variables: list[tf.Variable]  # on the ps tasks: initialised once the model is, and never saved
    # bool [] each, fed while these are initialised: whether a model that was restored needs no training.
    are_finished: Sequence[tf.Tensor]
    exchange: Exchange  # the first one of the run, to look at
    pushes: Sequence[tf.Tensor]  # on each ps: the steps that it has added
    num_replicas: int = 1  # local steps, of any worker, in one global step
    hooks: Sequence[tf.train.SessionRunHook] = ()
    # float32 [], global steps of others between a read and its write; None: synchronous
    staleness: tf.Tensor | None = None
    end: tf.Operation | None = None  # ends training for all workers, where the model is; for the chief


def add_up(devices: Sequence[str], compute: Compute, given: Any, inputs: tf.Tensor) -> list[tf.Tensor]:
    """Build, on this client, the sum of what `compute` builds on each device for its part of the examples.

    Over the GPUs of a worker this is multi-GPU training; over the workers of a cluster it is in-graph replication,
    where the chief builds one graph for all of them. Each example counts the same, wherever it is computed, so the
    number of devices does not change the result.

    Args:
      devices: of the towers.
      compute: builds the part of a tower.
      given: tensors, in any structure, that each tower gets: sent to a task once, and from there to its devices.
      inputs: of the examples of the batch, [b, ...].
    """
    if len(devices) == 1:
        with tf.device(devices[0]):
            return list(compute(given, inputs, Tower()))
    num_examples = inputs.shape[0]
    num_towers = min(num_examples, len(devices))  # none without examples
    sizes = [(num_examples + tower) // num_towers for tower in range(num_towers)]
    arrived: dict[str, Any] = {}
    results = []
    for number, (device, own_inputs) in enumerate(zip(devices, tf.split(inputs, sizes), strict=False)):
        host = tf.DeviceSpec.from_string(device).replace(device_type="CPU", device_index=0).to_string()
        if host not in arrived:
            with tf.device(host):
                arrived[host] = tf.nest.map_structure(tf.identity, given)
        with tf.device(device), tf.name_scope("tower"):
            tower = Tower(sizes[number] / num_examples, is_last=number == num_towers - 1)
            results.append(compute(arrived[host], own_inputs, tower))
    with tf.device("/device:CPU:0"), tf.name_scope("add_up"):
        return [tf.add_n(parts) for parts in zip(*results, strict=True)]


def choose_devices(task: Task, config: tf.ConfigProto) -> list[str]:
    """Return where a client has towers: in-graph on each worker, else on each GPU in `config`, or one on all of it.

    Several CPUs in `config`, into which TensorFlow divides a processor, count like GPUs.
    """
    if task.batches_per_step > 1:
        return [f"/job:worker/task:{worker}" for worker in range(task.batches_per_step)]
    for kind in ("GPU", "CPU"):
        if (count := config.device_count.get(kind, 0)) > 1:
            return [f"{task.device}/device:{kind}:{number}" for number in range(count)]
    return [task.device]
