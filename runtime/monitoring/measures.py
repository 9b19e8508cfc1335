"""How good a model is: what a test has measured, and what is good enough."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from runtime.process.errors import DIVERGED, UnusableError
from runtime.process.output import in_words


class Measures(NamedTuple):
    """How good the model is on some examples."""

    loss: float
    metrics: dict[str, float]  # by name, the most important one first
    global_step: int  # that the parameters had
    parameters: dict[str, Any]  # their values, arrays by name; of tables the `Rows` that the examples need
    find_mistakes: Callable[[Any], dict[str, Any]]  # looks for them only when it is called, with what an input is

    @property
    def scalars(self) -> dict[str, float]:
        """What there is to draw."""
        return {f"test_{name}": value for name, value in {**self.metrics, "loss": self.loss}.items()}

    @property
    def figures(self) -> dict[str, float]:
        """What files tell of them, with six significant digits."""
        return {"global_step": self.global_step, **{name: float(f"{v:.6g}") for name, v in self.scalars.items()}}

    def __str__(self) -> str:
        return describe(self.scalars)


def describe(scalars: Mapping[str, float]) -> str:
    """Return `Measures.scalars` in words: the first metric and the loss."""
    (first, value), *others = scalars.items()
    name = first.removeprefix("test_").replace("_", " ")
    return f"test {name} {in_words(value)}" + (f" (test loss {in_words(scalars['test_loss'])})" if others else "")


class Target(NamedTuple):
    """What is good enough: a metric, or the loss, that is as high as this; or as low."""

    name: str
    value: float
    is_ceiling: bool = False

    @classmethod
    def parse(cls, text: str) -> "Target":
        """Return what `NAME:VALUE` says, or `NAME:<VALUE` for a ceiling.

        Raises:
          ValueError: it is neither.
        """
        name, _, value = text.partition(":")
        number = float(value.removeprefix("<"))
        if not name.isidentifier() or np.isnan(number):
            raise ValueError(text)
        return cls(name, number, value.startswith("<"))

    def is_reached(self, value: float) -> bool:
        """Return whether a value is good enough."""
        return value <= self.value if self.is_ceiling else value >= self.value

    def __str__(self) -> str:
        return f"{self.name}:{'<' * self.is_ceiling}{self.value}"


def check_finite(values: Mapping[str, Any], remedy: str = DIVERGED) -> None:
    """Raise an UnusableError if one of `values`, by name, is not finite: nothing of such a model is reported."""
    for name, value in values.items():
        if not np.isfinite(value).all():
            raise UnusableError(f"{name} is not finite: {remedy}")
