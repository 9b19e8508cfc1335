"""A user's two files, as what traces them calls their functions: what each is given, and what it must return."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from runtime.model.users_files import call, describe, inputs_of, place_of
from runtime.process.errors import UnusableError
from runtime.process.phases import find_place_of, preparing


class Files:
    """Calls the functions of both modules, `model` and `reader`. A mistake in one is reported with its place."""

    def __init__(self, model: Any, mnist_input: Any):
        """Take the modules.

        Raises:
          UnusableError: only training would change the inputs.
        """
        self.model, self.reader = model, mnist_input
        self.inputs = inputs_of(mnist_input.INPUT)
        self._has_pipeline = hasattr(mnist_input, "build_dataset")
        if self._has_pipeline and isinstance(mnist_input.INPUT, Mapping):
            self.inputs = dict(sorted(self.inputs.items()))  # as the columns of a dict are
        if self._has_pipeline and hasattr(mnist_input, "decode") and not hasattr(mnist_input, "to_inputs"):
            raise UnusableError(
                "mnist_input.py has decode() but no to_inputs(): add it for tests and the exported model; it returns"
                " its argument if only training changes the inputs"
            )

    def has(self, function: str) -> bool:
        """Return whether the model has a function that it need not have."""
        return hasattr(self.model, function)

    def decode(self, parts: Sequence[Any]) -> tuple[Any, Any]:
        """Build the inputs and the labels of a batch for training, from its parts: columns, or structures of them."""
        if self._has_pipeline and not hasattr(self.reader, "decode"):
            labels = parts[1:]
            return self.to_inputs(parts), labels[0] if len(labels) == 1 else tuple(labels) or None
        found = call(self.reader, "decode", *parts)
        if not (isinstance(found, tuple | list) and len(found) == 2):
            raise self._expected("decode", "the inputs and the labels", found)
        return found[0], found[1]

    def to_inputs(self, parts: Sequence[Any]) -> Any:
        """Build the inputs of a batch, without what only training does to them."""
        if self._has_pipeline and not hasattr(self.reader, "to_inputs"):
            return parts[0]
        return call(self.reader, "to_inputs", *parts[: 1 if self._has_pipeline else len(self.inputs)])

    def build_logits(self, inputs: Any, is_training: bool) -> Any:
        """Build the outputs of the model: a tensor, or a structure of them."""
        logits = call(self.model, "build_logits", inputs, is_training)
        with preparing(self._where("build_logits")):  # a structure may be none, such as a dict of unlike keys
            flat = tf.nest.flatten(logits)
        if not any(isinstance(part, tf.Tensor) for part in flat):
            raise self._expected("build_logits", "a tensor, or a dict of them", logits)
        return logits

    def build_loss(self, logits: Any, labels: Any) -> tf.Tensor:
        """Build the loss, float32 []."""
        return self._check_scalar("build_loss", call(self.model, "build_loss", logits, labels))

    def build_metrics(self, logits: Any, labels: Any) -> dict[str, Any]:
        """Build the metrics, by name: means over a batch, or pairs as of `tf.metrics`."""
        if not self.has("build_metrics"):
            return {}
        metrics = call(self.model, "build_metrics", logits, labels)
        if not isinstance(metrics, Mapping):
            raise self._expected("build_metrics", "a dict by name", metrics)
        checked: dict[str, Any] = {}
        for name, metric in metrics.items():
            if not (isinstance(name, str) and METRIC_NAME.fullmatch(name)) or name in ("loss", "global_step"):
                raise self._expected("build_metrics", "names of letters, digits and _, other than loss", name)
            if isinstance(metric, tuple) and len(metric) == 2:
                value, update = metric
                update = _read(update)  # else it is what tf.assign_add() returns
                if not isinstance(update, tf.Tensor | tf.Operation):
                    raise self._expected("build_metrics", f"a tensor or an op as the update of {name}", update)
                checked[name] = (self._to_scalar(value, f" as the value of {name}"), update)
            else:
                checked[name] = self._to_scalar(metric, f" as {name}")
        return checked

    def build_predictions(self, logits: Any) -> dict[str, tf.Tensor]:
        """Build what an exported model returns, by name."""
        predictions = call(self.model, "build_predictions", logits)
        if not (isinstance(predictions, Mapping) and all(isinstance(t, tf.Tensor) for t in predictions.values())):
            raise self._expected("build_predictions", "a dict of tensors by name", predictions)
        return dict(predictions)

    def build_learning_rate(self, steps: tf.Tensor) -> tf.Tensor:
        """Build the learning rate, float32 [], after so many steps, int64 []."""
        rate = _read(call(self.model, "build_learning_rate", steps))
        if isinstance(rate, int | float) or getattr(rate, "dtype", tf.string) != tf.string:
            rate = tf.cast(rate, tf.float32)
        return self._check_scalar("build_learning_rate", rate)

    def build_optimizer(self, learning_rate: tf.Tensor) -> "ScopedOptimizers":
        """Build the optimizers for a rate, float32 []."""
        found = call(self.model, "build_optimizer", learning_rate)
        by_scope = dict(found) if isinstance(found, Mapping) else {"": found}
        for optimizer in by_scope.values():
            if not isinstance(optimizer, tf.train.Optimizer):
                expected = "a tf.train.Optimizer, or a dict of them by variable scope"
                raise self._expected("build_optimizer", expected, optimizer)
            if isinstance(optimizer, tf.train.SyncReplicasOptimizer):
                remedy = "return the optimizer that it wraps, and give --sync_replicas"
                raise UnusableError(f"{self._where('build_optimizer')} returns a SyncReplicasOptimizer: {remedy}")
            for method in ("compute_gradients", "minimize"):
                if getattr(type(optimizer), method) is not getattr(tf.train.Optimizer, method):
                    raise UnusableError(
                        f"{self._where('build_optimizer')} returns a {type(optimizer).__name__}, whose {method}() is"
                        " never called here: let its apply_gradients() do all that it does to gradients"
                    )
        return ScopedOptimizers(by_scope, self._where("build_optimizer"))

    def name_classes(self, data_dir: str, num_classes: int) -> list[str]:
        """Return the names of the classes by their labels, or none: those of `find_classes()`.

        Raises:
          UnusableError: the model, if it is a classifier, has another number of classes.
        """
        if not hasattr(self.reader, "find_classes"):
            return []
        found = call(self.reader, "find_classes", data_dir)
        if not isinstance(found, tuple | list) or num_classes not in (0, len(found)):
            expected = f"a list of names, one for each class of the model ({num_classes or 'any number'})"
            raise self._expected("find_classes", expected, found)
        names = [str(name) for name in found]
        return [] if names == [str(label) for label in range(len(names))] else names

    def place_of(self, of: Any) -> str:
        """Return the file and the line that have made an op or a variable."""
        return find_place_of(getattr(of, "op", of)) or "model.py"

    def _where(self, name: str) -> str:
        return place_of(self.model if self.has(name) else self.reader, name)

    def _expected(self, name: str, what: str, found: Any) -> UnusableError:
        return UnusableError(f"{self._where(name)} must return {what}, found {describe(found)}")

    def _check_scalar(self, name: str, value: Any, what: str = "") -> tf.Tensor:
        """Return what a function has returned, as `what`; raise an UnusableError unless it is float32 []."""
        if not (isinstance(value, tf.Tensor) and value.dtype == tf.float32 and value.shape.rank in (0, None)):
            raise self._expected(name, f"float32 []{what}", value)
        return tf.ensure_shape(value, [])

    def _to_scalar(self, value: Any, what: str) -> tf.Tensor:
        """Return a metric as it must be; some of `tf.metrics` are float64, and a total is a variable."""
        value = _read(value)
        if isinstance(value, tf.Tensor) and value.dtype.is_floating:
            value = tf.cast(value, tf.float32)
        return self._check_scalar("build_metrics", value, what)


class ScopedOptimizers:
    """Several optimizers, each for the variables of a scope."""

    def __init__(self, by_scope: Mapping[str, tf.train.Optimizer], where: str):
        """Take the optimizers, made `where`; of two scopes that a variable is in, the longer one counts."""
        self._by_scope, self.where = by_scope, where

    def apply_gradients(self, pairs: Sequence[tuple[Any, tf.Variable]]) -> tf.Operation:
        """Build what applies each gradient to its variable.

        Raises:
          UnusableError: a variable is in no scope.
        """
        groups: dict[str, list[tuple[Any, tf.Variable]]] = {}
        for gradient, variable in pairs:
            name = variable.op.name
            scopes = [scope for scope in self._by_scope if f"{name}/".startswith(f"{scope}/" if scope else "")]
            if not scopes:
                raise UnusableError(f"{self.where} returns no optimizer for {name}: add one for the scope ''")
            groups.setdefault(max(scopes, key=len), []).append((gradient, variable))
        with preparing(self.where):
            return tf.group(*(self._by_scope[scope].apply_gradients(of_scope) for scope, of_scope in groups.items()))


METRIC_NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)


def _read(value: Any) -> Any:
    return tf.convert_to_tensor(value) if hasattr(value, "read_value") else value
