"""What README.md and README.zh-CN.md say of the comparison: rounded ratios, and the seconds of the commands."""
# ruff: noqa: RUF001  # Chinese has punctuation of its own

from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.contenders import CLASSIC, DDP, OURS, TORCH, XLA


class Language(NamedTuple):
    """The sentences of one README."""

    times: str
    as_long: str  # of the first of the others
    others: dict[str, str]  # by contender: its name
    times_more: str  # of the rest
    separator: str
    last_separator: str
    faster: str  # one that takes less time
    commands: str


ENGLISH = Language(
    "The command below reaches 97.5 % test accuracy after {secs} s of training. {others}.",
    "{} takes {} times as long",
    {
        DDP: "PyTorch's `DistributedDataParallel`",
        TORCH: "one PyTorch process",
        XLA: "one TensorFlow process that XLA has compiled",
        CLASSIC: "the classic script of the tutorials",
    },
    "{} {} times",
    ", ",
    ", and ",
    " Without a cluster it goes faster: {} takes {} times as long.",
    " From the command to the printed accuracy, everything included, it takes {} s, XLA's one process {} s, a plain"
    " script in one PyTorch process {} s, and `torchrun` with two processes {} s.",
)
CHINESE = Language(
    "用下面的命令训练 {secs} 秒，测试准确率就达到 97.5%。{others}。",
    "{}所需时间是本脚本的 {} 倍",
    {
        DDP: "PyTorch 的 `DistributedDataParallel` ",
        TORCH: "单个 PyTorch 进程",
        XLA: "用 XLA 编译的单个 TensorFlow 进程",
        CLASSIC: "教程里的经典脚本",
    },
    "{}是 {} 倍",
    "，",
    "，",
    "不用集群会更快：{}所需时间是本脚本的 {} 倍。",
    "从敲下命令到打印出准确率，总共需要 {} 秒；用 XLA 编译的单个进程需要 {} 秒，"
    "单个 PyTorch 进程的普通脚本需要 {} 秒，两个进程的 `torchrun` 需要 {} 秒。",
)


def describe(secs: Mapping[str, float], command_secs: list[float], language: Language) -> str:
    """Return the sentences, from median seconds: to the target (infinity: never), and of the commands, if there are."""
    ratios = {name: secs[name] / secs[OURS] for name in language.others if secs.get(name, float("inf")) < float("inf")}
    others: list[str] = []
    faster = ""
    for name, ratio in ratios.items():
        if ratio < 1:
            faster += language.faster.format(language.others[name], f"{ratio:.1f}")
        else:
            sentence = language.times_more if others else language.as_long
            others.append(sentence.format(language.others[name], f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"))
    others[0] = others[0][0].upper() + others[0][1:]
    joined = language.last_separator.join([language.separator.join(others[:-1]), others[-1]])
    text = language.times.format(secs=f"{secs[OURS]:.1f}", others=joined) + faster
    return text + (language.commands.format(*(f"{secs:.1f}" for secs in command_secs)) if command_secs else "")
