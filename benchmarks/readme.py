"""What README.md and README.zh-CN.md say of the comparison, with medians and spreads."""
# ruff: noqa: RUF001  # Chinese has punctuation of its own

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.contenders import CLASSIC, DDP, OURS, XLA


class Language(NamedTuple):
    """The words of one README: how long this script takes, and how long the others do."""

    ours: str
    rounds: str  # after the spread of this script
    others: dict[str, str]  # by contender
    spread: str  # of the rounds: the shortest, the longest, and what follows
    never: str  # how many rounds missed the target
    after_ours: str
    separator: str
    last_separator: str
    end: str


ENGLISH = Language(
    "The command below trains to 97.5 % test accuracy in {} s",
    " in {} rounds on two cores",
    {
        DDP: "PyTorch's `DistributedDataParallel` takes {} s",
        CLASSIC: "the classic script {} s",
        XLA: "one process compiled by XLA {} s",
    },
    " ({} to {}{})",
    ", but {} missed the target",
    ". ",
    ", ",
    ", and ",
    ". See [Performance](docs/performance.md#compared-with-other-programs).",
)
CHINESE = Language(
    "测试准确率达到 97.5%，下面的命令需要训练 {} 秒",
    "，双核机器，共 {} 次",
    {
        DDP: "PyTorch 的 `DistributedDataParallel` 需要 {} 秒",
        CLASSIC: "经典脚本需要 {} 秒",
        XLA: "用 XLA 编译的单个进程需要 {} 秒",
    },
    "（{} 到 {}{}）",
    "，但有 {} 次达不到",
    "，",
    "，",
    "，",
    "：见[性能](docs/performance.md#compared-with-other-programs)。",
)


def describe(secs: Mapping[str, Sequence[float]], language: Language) -> str:
    """Return the text, from the seconds that each contender took in each round (infinity: never)."""
    ours = _describe(secs[OURS], language.ours, language, language.rounds.format(len(secs[OURS])))
    *others, last = [_describe(secs[name], text, language) for name, text in language.others.items() if name in secs]
    listed = [language.separator.join(others)] if others else []
    return ours + language.after_ours + language.last_separator.join([*listed, last]) + language.end


def _describe(secs: Sequence[float], text: str, language: Language, rounds: str = "") -> str:
    reached = sorted(value for value in secs if value < float("inf"))
    median = statistics.median(secs)
    described = text.format(f"{median:.1f}" if median < float("inf") else "∞")
    missed = language.never.format(len(secs) - len(reached)) if len(reached) < len(secs) else ""
    if not reached:
        return described
    return described + language.spread.format(f"{reached[0]:.1f}", f"{reached[-1]:.1f}", rounds + missed)
