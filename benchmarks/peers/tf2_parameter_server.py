"""TensorFlow 2's `ParameterServerStrategy`: a coordinator, which schedules steps on two workers, and one ps.

A global step is one worker's batch: the workers do not wait for each other. As the guide "Parameter server training"
advises for speed, several steps are packed into one function, unrolled, that returns nothing; all of them are
scheduled at once and joined once; the optimizer has one op for each variable's update. One cycle of the
rate takes a variable that counts the steps, on the ps.
"""

import time

import tensorflow as tf
from absl import flags

from benchmarks.peers import measure, problem, tf2_mnist

FLAGS = flags.FLAGS
flags.DEFINE_integer("steps_per_call", 8, "steps of one scheduled call; --train_steps is rounded up to whole calls")


def main() -> None:
    """Serve, or coordinate, as `TF_CONFIG` says."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type == "chief":
        train(resolver)
        return
    # With fewer threads than tasks that wait for each other, a function can hang.
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=problem.NUM_WORKERS + 1)
    server = tf.distribute.Server(resolver.cluster_spec(), resolver.task_type, resolver.task_id, "grpc", config)
    server.join()


def train(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> None:
    """Train, and print the result."""
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    examples = problem.load_train()
    clock = measure.make_clock()
    with strategy.scope():
        variables = tf2_mnist.make_variables()
        global_step = tf.Variable(0, dtype=tf.int64)
        optimizer = tf2_mnist.make_optimizer(global_step)

    def make_dataset() -> tf.data.Dataset:
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        images = tf.constant(examples.images)[worker :: problem.NUM_WORKERS]
        labels = tf.constant(examples.labels)[worker :: problem.NUM_WORKERS]
        return tf2_mnist.batches(images, labels, stream=worker)

    def replica_step(images: tf.Tensor, labels: tf.Tensor) -> None:
        optimizer.apply_gradients(zip(tf2_mnist.gradients(variables, images, labels), variables, strict=True))
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
            clock.keep(int(global_step), tf2_mnist.read_parameters(variables))
    coordinator.join()  # raises the errors of the workers
    clock.stop(int(global_step))
    measure.print_result(clock, tf2_mnist.read_parameters(variables))
