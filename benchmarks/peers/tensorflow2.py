"""TensorFlow 2: one process, or a cluster with one of its strategies, as `TF_CONFIG` says.

One process has its data as tensors in memory, and one call takes many steps, since a call costs more than a step. The
workers of `MultiWorkerMirroredStrategy` average the gradients of each step, so that a global step is one batch of each.
Its documentation loops over batches inside one function, which is faster than a call for each. The workers of
`ParameterServerStrategy` do not wait for each other; a coordinator schedules their steps. As its guide advises for
speed, several steps are packed into one function, unrolled, that returns nothing; all of them are scheduled at once and
joined once.
"""

import sys
import time
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from absl import flags

from benchmarks.peers import measure, problem

FLAGS = flags.FLAGS
flags.DEFINE_enum("strategy", "none", ["none", "mirrored", "parameter_server"], "who takes part")
flags.DEFINE_integer("steps_per_call", 8, "steps of one call; --train_steps is rounded up to whole calls")
flags.DEFINE_boolean("jit_compile", False, "compile the only process's calls with XLA")


def main() -> None:
    """Train, or serve."""
    if FLAGS.strategy != "parameter_server":
        tf.config.threading.set_intra_op_parallelism_threads(FLAGS.num_threads)
    if FLAGS.strategy == "none":
        train_alone()
    elif FLAGS.strategy == "mirrored":
        tf.config.threading.set_inter_op_parallelism_threads(2)
        train_mirrored(tf.distribute.MultiWorkerMirroredStrategy())
    else:
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        if resolver.task_type == "chief":
            coordinate(tf.distribute.ParameterServerStrategy(resolver))
        # With fewer threads than tasks that wait for each other, a function can hang.
        config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=problem.NUM_WORKERS + 1)
        server = tf.distribute.Server(resolver.cluster_spec(), resolver.task_type, resolver.task_id, "grpc", config)
        server.join()


def train_alone() -> None:
    """Train without a cluster. Gathering batches in the compiled loop is faster than `tf.data`."""
    examples = problem.load_train()
    all_images, all_labels = tf.constant(examples.images), tf.constant(examples.labels)
    clock = measure.make_clock()
    variables = make_variables()
    num_steps = tf.Variable(0, dtype=tf.int64)
    optimizer = make_optimizer(num_steps)

    @tf.function(jit_compile=FLAGS.jit_compile)
    def train(indices: tf.Tensor) -> None:
        for step in tf.range(FLAGS.steps_per_call):
            images = tf.cast(tf.gather(all_images, indices[step]), tf.float32) * (1 / 255)
            labels = tf.cast(tf.gather(all_labels, indices[step]), tf.int32)
            optimizer.apply_gradients(zip(gradients(variables, images, labels), variables, strict=True))
            num_steps.assign_add(1, read_value=False)

    blocks = shuffled_indices(len(examples.labels))
    measure.train(clock, lambda: train(next(blocks)), lambda: read_parameters(variables), FLAGS.steps_per_call)


def train_mirrored(strategy: tf.distribute.MultiWorkerMirroredStrategy) -> None:
    """Train as one of the workers; worker 0 prints the result."""
    worker = strategy.cluster_resolver.task_id
    examples = problem.load_train(worker, problem.NUM_WORKERS)
    clock = measure.make_clock(problem.NUM_WORKERS * problem.BATCH_SIZE)
    with strategy.scope():
        variables = make_variables()
    step = tf.Variable(0, dtype=tf.int64)  # each worker counts for itself
    optimizer = make_optimizer(step)

    def replica_step(images: tf.Tensor, labels: tf.Tensor) -> None:
        # The strategy sums over the workers; we want the average.
        parts = [gradient / problem.NUM_WORKERS for gradient in gradients(variables, images, labels)]
        optimizer.apply_gradients(zip(parts, variables, strict=True))
        step.assign_add(1, read_value=False)

    @tf.function
    def call(batches: tf.data.Iterator) -> None:
        for _ in tf.range(FLAGS.steps_per_call):
            strategy.run(replica_step, args=next(batches))

    dataset = make_batches(tf.constant(examples.images), tf.constant(examples.labels), stream=worker)
    batches = iter(strategy.distribute_datasets_from_function(lambda _: dataset))
    measure.train(
        clock,
        lambda: call(batches),
        lambda: read_parameters(variables),
        FLAGS.steps_per_call,
        is_measuring=worker == 0,
    )


def coordinate(strategy: tf.distribute.ParameterServerStrategy) -> None:
    """Train as the coordinator, print the result, and end."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    examples = problem.load_train()
    clock = measure.make_clock()
    with strategy.scope():
        variables = make_variables()
        global_step = tf.Variable(0, dtype=tf.int64)
        optimizer = make_optimizer(global_step)

    def make_dataset() -> tf.data.Dataset:
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        images = tf.constant(examples.images)[worker :: problem.NUM_WORKERS]
        labels = tf.constant(examples.labels)[worker :: problem.NUM_WORKERS]
        return make_batches(images, labels, stream=worker)

    def replica_step(images: tf.Tensor, labels: tf.Tensor) -> None:
        optimizer.apply_gradients(zip(gradients(variables, images, labels), variables, strict=True))
        global_step.assign_add(1, read_value=False)

    @tf.function
    def call(batches: tf.data.Iterator) -> None:
        for _ in range(FLAGS.steps_per_call):
            strategy.run(replica_step, args=next(batches))

    batches = iter(coordinator.create_per_worker_dataset(make_dataset))

    def schedule(num_calls: int) -> None:
        for _ in range(num_calls):
            coordinator.schedule(call, args=(batches,))

    schedule(problem.NUM_WORKERS)  # one for each worker, which must receive the function first
    coordinator.join()
    step = int(global_step)
    clock.start(step)
    schedule(-(-(FLAGS.train_steps - step) // FLAGS.steps_per_call))
    while not coordinator.done():
        time.sleep(0.002)  # the workers train meanwhile
        if clock.is_due():
            clock.keep(int(global_step), read_parameters(variables))
    coordinator.join()  # raises the errors of the workers
    clock.stop(int(global_step))
    measure.print_result(clock, read_parameters(variables))
    sys.exit()


def make_variables() -> list[tf.Variable]:
    """Return the model's variables with their initial values, in the order of `problem.Parameters`."""
    return [tf.Variable(value) for value in problem.initial_parameters()]


def read_parameters(variables: Sequence[tf.Variable]) -> problem.Parameters:
    """Copy the parameters."""
    return problem.Parameters(*(variable.numpy().copy() for variable in variables))


def gradients(variables: Sequence[tf.Variable], images: tf.Tensor, labels: tf.Tensor) -> list[tf.Tensor]:
    """Return the gradients of the cross-entropy, averaged over the batch: float32 [b, 784], and int32 [b]."""
    with tf.GradientTape() as tape:
        hidden_weights, hidden_biases, logits_weights, logits_biases = variables
        hidden = tf.nn.relu(images @ hidden_weights + hidden_biases)
        logits = hidden @ logits_weights + logits_biases
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    return tape.gradient(loss, variables)


def make_optimizer(step: tf.Variable, scale: float = 1.0) -> tf.compat.v1.train.Optimizer:
    """Return the optimizer; its rate, times `scale`, is that of `step` in one cycle.

    `tf.distribute`'s guide asks for `tf.keras.optimizers.legacy`, which TensorFlow 2.21 no longer has. This is the
    optimizer left that updates each variable with one op.
    """

    def rate() -> tf.Tensor:
        with tf.device(step.device):  # with the variables that it updates
            return scale * tf.gather(problem.make_rates(), tf.minimum(step, FLAGS.train_steps))

    return tf.compat.v1.train.MomentumOptimizer(rate, problem.MOMENTUM, use_nesterov=True)


def make_batches(images: tf.Tensor, labels: tf.Tensor, stream: tf.Tensor) -> tf.data.Dataset:
    """Return images and labels of batches without end, in a new order each epoch, gathered in the background.

    The data set shuffles indices by the epoch and gathers pixels by the batch: an op for each example would cost more
    than the training step. Each worker has an order of its own, which `stream` says.
    """

    def shuffle(epoch: tf.Tensor) -> tf.Tensor:
        seed = tf.stack([FLAGS.seed, tf.cast(stream, tf.int32)])
        return tf.random.experimental.stateless_shuffle(
            tf.range(tf.size(labels)), tf.random.experimental.stateless_fold_in(seed, epoch)
        )

    def gather(indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        pixels = tf.cast(tf.gather(images, indices), tf.float32)
        return pixels * (1 / 255), tf.cast(tf.gather(labels, indices), tf.int32)

    epochs = tf.data.Dataset.range(sys.maxsize)
    return epochs.map(shuffle).rebatch(problem.BATCH_SIZE, drop_remainder=True).map(gather).prefetch(4)


def shuffled_indices(num_examples: int) -> Iterator[npt.NDArray[np.int32]]:
    """Yield the indices of the batches of each call, int32 [steps_per_call, b], in a new order each epoch."""
    generator = np.random.default_rng(FLAGS.seed)
    size = FLAGS.steps_per_call * problem.BATCH_SIZE
    order: npt.NDArray[np.int32] = np.empty(0, np.int32)
    while True:
        while len(order) < size:
            order = np.concatenate([order, generator.permutation(num_examples).astype(np.int32)])
        yield order[:size].reshape(FLAGS.steps_per_call, problem.BATCH_SIZE)
        order = order[size:]
