"""What is translated says what its original says: the same commands, code, links and figures, section by section."""

import collections
import re

import pytest

from tests.test_links import FENCE, LINK, PROJECT, README, label

ORIGINALS = [README, *(PROJECT / "docs" / name for name in ("tutorial.md", "lab.md"))]


def sections(path):
    """Return the text of each section, in order."""
    return re.split(r"^## .*\n", path.read_text(), flags=re.MULTILINE)


def in_pairs(original, find):
    """Return what `find` returns of each section in English and in Chinese."""
    english, chinese = sections(original), sections(original.with_suffix(".zh-CN.md"))
    assert len(english) == len(chinese)
    return [(find(one), find(other)) for one, other in zip(english, chinese, strict=True)]


def find_commands(text):
    return [code for language, code in FENCE.findall(text) if language == "sh" or code.startswith("$")]


def find_names(text):
    """Return the names in the blocks that explain files, which the first word of each line is."""
    blocks = [code for language, code in FENCE.findall(text) if language == "text" and not code.startswith("$")]
    return [line.split()[0] for code in blocks for line in code.splitlines()]


def find_code(text):
    return collections.Counter(re.findall(r"`([^`\n]+)`", FENCE.sub("", text)))


def find_arrows(text):
    return [code.count("--") for language, code in FENCE.findall(text) if language == "mermaid"]


def find_links(text):
    """Return the links, except those between the languages; what is translated counts as its original."""
    links = LINK.findall(re.sub(r"\[(?:中文|English)\]\(.*?\)", "", text))
    return collections.Counter(link.replace(".zh-CN.md", ".md") for link in links)


def find_numbers(text):
    return collections.Counter(re.findall(r"\d[\d.]*\b", re.sub(r"`[^`\n]+`", "", FENCE.sub("", text))))


@pytest.mark.parametrize("original", ORIGINALS, ids=label)
@pytest.mark.parametrize("find", [find_commands, find_names, find_arrows, find_code, find_links, find_numbers])
def test_both_have_the_same(original, find):
    for english, chinese in in_pairs(original, find):
        assert english == chinese
