"""One plain session of a user's functions, as a script has it that knows of no cluster."""

import tensorflow.compat.v1 as tf


class PlainSession:
    """One graph and one session, as a script has them that knows of no cluster."""

    def __init__(self, users, data, examples, is_training):
        tf.set_random_seed(0)
        self.step = tf.train.create_global_step()
        self.columns = [tf.placeholder(column.dtype, [None, *column.shape[1:]]) for column in examples]
        inputs, self.labels = data.decode(*self.columns)
        self.outputs = users.build_logits(inputs, is_training)
        self.loss = users.build_loss(self.outputs, self.labels)
        self.session = tf.Session()

    def run(self, fetches, batch):
        return self.session.run(fetches, dict(zip(self.columns, batch, strict=True)))


def build_training(kind, users, plain):
    """Build what a script's `train()` has, and the variables that it tests."""
    rate = users.build_learning_rate(plain.step) if hasattr(users, "build_learning_rate") else 0.0
    optimizers = users.build_optimizer(rate)
    trained = tf.trainable_variables()
    gradients = tf.gradients(plain.loss, trained)
    if kind.clip_norm:
        gradients, _ = tf.clip_by_global_norm(gradients, kind.clip_norm)
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        by_scope = optimizers if isinstance(optimizers, dict) else {"": optimizers}
        updates = [
            optimizer.apply_gradients(
                [pair for pair in zip(gradients, trained, strict=True) if pair[1].name.startswith(scope)]
            )
            for scope, optimizer in by_scope.items()
        ]
        updates.append(tf.assign_add(plain.step, 1))
    tested = {variable.op.name: variable for variable in tf.global_variables()}
    if kind.ema_decay:
        averages = tf.train.ExponentialMovingAverage(kind.ema_decay)
        with tf.control_dependencies(updates):
            updates = [averages.apply(trained)]
        tested |= {variable.op.name: averages.average(variable) for variable in trained}
    return updates, tested
