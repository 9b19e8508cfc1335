"""Ten kinds of scripts for TensorFlow 1, each with the function of its model as such scripts have it.

A module here is a user's model.py, and mnist_input.py as well where it has a `load()`; else its data is MNIST.
"""

from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of script. A worker takes the steps that one plain session takes; a cluster trains some kinds, too."""

    script: str  # what it is
    module: str  # of this package
    changed: str  # what its user had to change, besides pasting the function
    clip_norm: float | None = None
    ema_decay: float | None = None
    has_tf_config: bool = False
    num_updates: int = 0  # that a cluster takes
    batch_size: int = 100  # of one update; each of two workers has half of it
    figure: str = "accuracy"  # of the test
    bounds: tuple[float, float] = (0.9, 1.0)  # of the figure
    tolerance: float = 0.02  # how much it may differ from that of one plain session, whose seeds alone differ by 0.01
    says: str = ""  # part of the output
    writes: str = ""  # the tag of a summary


KINDS = {
    "replica": Kind(
        "`tf.Variable` and Adam on MNIST",
        "replica",
        "labels as numbers, so `tf.one_hot` in the loss; the optimizer in `build_optimizer()`",
    ),
    "tf_config": Kind(
        "the same script, synchronous, with its cluster in `TF_CONFIG`",
        "replica",
        "no further change; add `--issync`",
        num_updates=300,
        has_tf_config=True,
    ),
    "deep": Kind(
        "a convolutional network with dropout and `exponential_decay`",
        "deep",
        "`keep_prob` from `is_training`; the decay in `build_learning_rate()`",
    ),
    "wide_deep": Kind(
        "wide and deep: feature columns with crosses, Ftrl and Adagrad, AUC",
        "wide_deep",
        "columns as `INPUT`, a dict; `tf.metrics.auc` in `build_metrics()`; the optimizers by scope",
    ),
    "resnet": Kind(
        "a residual network: batch normalisation, l2 over all variables, momentum, `piecewise_constant`",
        "resnet",
        "the rates in `build_learning_rate()`; `UPDATE_OPS` need no `control_dependencies`",
    ),
    "regression": Kind(
        "a regression with float labels",
        "regression",
        "a mean instead of a sum, and `build_metrics()` without an accuracy",
    ),
    "word2vec": Kind(
        "word2vec with `nce_loss`",
        "word2vec",
        "the variables of `nce_loss` in `build_loss()`; both embeddings become tables",
        num_updates=400,
        figure="loss",
        bounds=(1.0, 5.0),
        tolerance=0.1,
    ),
    "lstm": Kind(
        "an LSTM by `dynamic_rnn` with sequence lengths",
        "lstm",
        "sequences and lengths as `INPUT`, a dict",
    ),
    "cifar": Kind(
        "`losses` collection, RMSProp, gradient clipping, moving averages of the parameters",
        "cifar",
        "`train()` is left out: `build_optimizer()`, `--clip_norm` and `--ema_decay` replace it",
        clip_norm=5.0,
        ema_decay=0.9,
    ),
    "logger": Kind(
        "summaries in the model, and a hook that logs the loss",
        "logger",
        "the hook in `hooks=` of `distributed.py`, where the loss is `graph.updates.loss`",
        num_updates=300,
        says="logger: run 0, loss = ",
        writes="layer1/summaries/stddev",
    ),
}
